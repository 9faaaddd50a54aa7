"""How the server weighs the sites' updates: uniform, by images, UAW by theta, or one model per site by similarity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedretina.exchange.partition import MEAN, VARIANCE
from fedretina.exchange.payload import Tensors
from fedretina.parts import Register
from fedretina.settings.aggregation import (
    RuleSettings,
    SamplesSettings,
    SimilaritySettings,
    UawSettings,
    UniformSettings,
)

Scalars = Mapping[str, Mapping[str, float]]
"""Scalars by site and name."""

rule: Register[Callable[[Scalars, Any], dict[str, float]]] = Register("fedretina.aggregation.weights")
"""Registers the function below it as the rule of some settings."""
personal_rule: Register[Callable[[Mapping[str, Tensors], Any], dict[str, dict[str, float]]]] = Register(
    "fedretina.aggregation.weights"
)
"""Registers the function below it as a rule that gives each site a model of its own."""


@rule(UniformSettings)
def uniform_weights(scalars: Scalars, settings: UniformSettings) -> dict[str, float]:
    """Weigh every site alike: w_i = 1/N."""
    return {site: 1.0 / len(scalars) for site in sorted(scalars)}


@rule(SamplesSettings)
def sample_weights(scalars: Scalars, settings: SamplesSettings) -> dict[str, float]:
    """Weigh by training images: w_i = n_i / sum_j n_j (McMahan et al. 2017)."""
    total = sum(scalars[site]["images"] for site in sorted(scalars))
    return {site: scalars[site]["images"] / total for site in sorted(scalars)}


@rule(UawSettings)
def uaw_weights(scalars: Scalars, settings: UawSettings) -> dict[str, float]:
    """Weigh by uncertainty: w_i = exp(theta_i) / sum_j exp(theta_j) (FedUAA, section 2.2).

    Differs from the official code only where that code breaks: theta is finite here, since a site decides every
    degenerate case itself (`uncertainty.theta`) and the server refuses an update whose theta is not. The
    number of images plays no part, as in the paper. Theta = K/S at its threshold, so with equal evidence a site
    with more grades weighs more.
    """
    sites = sorted(scalars)
    theta = np.array([scalars[site]["theta"] for site in sites]) / settings.temperature  # Theta
    raised = np.exp(theta - np.max(theta))
    return dict(zip(sites, (raised / raised.sum()).tolist(), strict=True))  # w_i


def weighing(settings: RuleSettings) -> Callable[[Scalars], dict[str, float]]:
    """The chosen rule: it gives the weights of the sites, which are positive and sum to 1.

    Raises:
        SettingsError: No rule is registered for the settings.
    """
    chosen = rule.of(settings)
    return lambda scalars: chosen(scalars, settings)


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
