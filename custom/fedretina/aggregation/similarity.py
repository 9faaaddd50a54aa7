"""FedAP's weights: each site mixes the others by how alike their BatchNorm statistics are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedretina.exchange.parts import MEAN, VARIANCE
from fedretina.exchange.payload import Tensors
from fedretina.parts import Register
from fedretina.settings.aggregation import RuleSettings, SimilaritySettings

personal_rule: Register[Callable[[Mapping[str, Tensors], Any], dict[str, dict[str, float]]]] = Register(
    "fedretina.aggregation.similarity"
)
"""Registers the function below it as a rule that gives each site a model of its own."""


def distance(one: Tensors, other: Tensors) -> float:
    """How far two sites' activations lie apart: the sum over layers of the distance of two Gaussians.

    d = sum_l sqrt(||mu_i - mu_j||^2 + ||sqrt(var_i) - sqrt(var_j)||^2), the 2-Wasserstein distance of diagonal
    Gaussians (Lu et al., FedAP, IEEE Transactions on Big Data 2022).

    Args:
        one: Statistics of a site, by key: a mean and a variance [C] for each layer.
        other: Those of another site, with the same keys.
    """
    total = 0.0
    for key in sorted(one):
        if key.endswith(MEAN):
            spread = key.removesuffix(MEAN) + VARIANCE
            means = one[key].double() - other[key].double()
            spreads = one[spread].double().sqrt() - other[spread].double().sqrt()
            total += float((means.square().sum() + spreads.square().sum()).sqrt())
    return total


def similarity_weights(statistics: Mapping[str, Tensors], own_share: float) -> dict[str, dict[str, float]]:
    """The weights W that each site's personal model gives the sites.

    W_ii = m and W_ij = (1 - m) (1 / d_ij) / sum_{k != i} (1 / d_ik). Where others are at distance 0, they share the
    1 - m alone (the limit); a site without others weighs itself with 1.

    Args:
        statistics: By site, see `distance`.
        own_share: m, 0 to 1; 0.5 in FedAP.

    Returns:
        By site, the weights of all sites; each sums to 1.
    """
    sites = sorted(statistics)
    apart: NDArray[np.float64] = np.array([[distance(statistics[i], statistics[j]) for j in sites] for i in sites])
    table: dict[str, dict[str, float]] = {}
    for at, site in enumerate(sites):
        others = [number for number in range(len(sites)) if number != at]
        if not others:
            table[site] = {site: 1.0}
            continue
        far = apart[at, others]
        near = (far == 0).astype(np.float64) if np.any(far == 0) else 1 / far
        shares = (1 - own_share) * near / np.sum(near)
        weights = {sites[number]: float(share) for number, share in zip(others, shares, strict=True)}
        table[site] = {name: own_share if name == site else weights[name] for name in sites}
    return table


@personal_rule(SimilaritySettings)
def _by_similarity(statistics: Mapping[str, Tensors], settings: SimilaritySettings) -> dict[str, dict[str, float]]:
    return similarity_weights(statistics, settings.own_share)


def personal_weights(statistics: Mapping[str, Tensors], settings: RuleSettings) -> dict[str, dict[str, float]]:
    """The weights of each site's own model, by the rule that the settings choose; each site's sum to 1."""
    return personal_rule.of(settings)(statistics, settings)


def among(weights: Mapping[str, float], answered: list[str]) -> dict[str, float]:
    """The weights among the sites that answered, in proportion; uniform where none of them had any."""
    found = {site: weights.get(site, 0.0) for site in answered}
    total = sum(found.values())
    return {site: value / total if total > 0 else 1 / len(answered) for site, value in found.items()}
