"""The choice of a robust rule: how the sites' values are combined, beside how the sites are weighed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.aggregation.spool import Spool
from fedretina.errors import QuorumError
from fedretina.exchange.payload import Tensors
from fedretina.parts import Register
from fedretina.settings.aggregation import (
    KrumSettings,
    MedianSettings,
    NormBoundSettings,
    NotRobustSettings,
    RobustSettings,
    TrimmedMeanSettings,
)


class RoundUpdates(NamedTuple):
    """The accepted updates of a round and what they started from.

    Attributes:
        spool: The updates.
        weights: The weight rule's w_i by site; positive, sum 1.
        received: What was sent to the sites: the last aggregate, by key.
        like: Type of each tensor that is to be combined, by key.
        parameters: Which of these are parameters; the others are buffers.
    """

    spool: Spool
    weights: Mapping[str, float]
    received: Tensors
    like: Mapping[str, torch.dtype]
    parameters: frozenset[str]

    @property
    def sites(self) -> list[str]:
        """Names of the sites, sorted."""
        return sorted(self.weights)

    def groups(self) -> list[list[str]]:
        """The keys, sorted, in vectors of one scale each: parameters, running statistics, counters.

        A running variance or a counter is larger than any weight by orders of magnitude, so one length over all of
        them would be a length of the buffers alone, and a site could hide a poisoned encoder behind it. Where
        only parameters travel there is one group, and lengths and distances are those of the papers.
        """
        rank = {key: 0 if key in self.parameters else 1 if self.like[key].is_floating_point else 2 for key in self.like}
        found = [[key for key in sorted(self.like) if rank[key] == group] for group in range(3)]
        return [keys for keys in found if keys]

    def norms(self, keys: list[str]) -> dict[str, float]:
        """Length ||x_i - w_t|| of each site's difference from what it was sent, over these keys."""

        def visit(key: str, which: slice, numbers: Iterator[tuple[str, NDArray[np.float64]]]) -> list[float]:
            begun = self.received[key].reshape(-1)[which].to(torch.float64).numpy()
            return [float(np.square(values - begun).sum()) for _, values in numbers]

        totals = np.zeros(len(self.sites))
        for squares in self.spool.walk(self.sites, keys, visit):
            totals += squares
        return {site: float(np.sqrt(total)) for site, total in zip(self.sites, totals, strict=True)}


class AggregationResult(NamedTuple):
    """The aggregate and how it came about.

    Attributes:
        tensors: By key.
        weights: The weight that each site had in it; they sum to 1.
        figures: Numbers by name and site for the round's record, beside the weights.
    """

    tensors: dict[str, torch.Tensor]
    weights: Mapping[str, float]
    figures: Mapping[str, Mapping[str, float]]


def weighted_mean(accepted: RoundUpdates) -> AggregationResult:
    """Combine by sum_i w_i x_i: what every rule of weights means without a robust rule."""
    return AggregationResult(accepted.spool.weighted_mean(accepted.weights, accepted.like), accepted.weights, {})


robust: Register[Callable[[RoundUpdates, Any], AggregationResult]] = Register("fedretina.aggregation.robust")
"""Registers the function below it as the robust rule of some settings."""


@robust(NotRobustSettings)
def _weighted_mean(accepted: RoundUpdates, settings: NotRobustSettings) -> AggregationResult:
    return weighted_mean(accepted)


@robust(NormBoundSettings)
def _norm_bound(accepted: RoundUpdates, settings: NormBoundSettings) -> AggregationResult:
    return norm_bound(accepted, settings.bound, settings.limit)


@robust(TrimmedMeanSettings)
def _trimmed_mean(accepted: RoundUpdates, settings: TrimmedMeanSettings) -> AggregationResult:
    return trimmed_mean(accepted, settings.hostile)


@robust(MedianSettings)
def _median(accepted: RoundUpdates, settings: MedianSettings) -> AggregationResult:
    return median(accepted)


@robust(KrumSettings)
def _krum(accepted: RoundUpdates, settings: KrumSettings) -> AggregationResult:
    return krum(accepted, settings.hostile, settings.keep)


def combining(settings: RobustSettings) -> Callable[[RoundUpdates], AggregationResult]:
    """The chosen rule, which combines a round's updates.

    It raises a QuorumError for too few updates for what the rule promises. A run's quorum is never lower, so this is
    for those who call it themselves.

    Raises:
        SettingsError: No rule is registered for the settings.
    """
    chosen, least = robust.of(settings), settings.least

    def combine(accepted: RoundUpdates) -> AggregationResult:
        if len(accepted.weights) < least:
            raise QuorumError(
                f"{settings.name!r} as it is set needs {least} updates, there are "
                f"{len(accepted.weights)}: ask more sites, or set aggregation.robust.hostile lower."
            )
        return chosen(accepted, settings)

    return combine


def krum(accepted: RoundUpdates, hostile: int, keep: int) -> AggregationResult:
    """Take the `keep` sites whose nearest others are nearest, and their plain mean.

    s(i) = sum of ||x_i - x_j||^2 over the n - f - 2 sites j nearest to i (Blanchard et al., "Machine Learning with
    Adversaries", NeurIPS 2017, section 3); the least s(i) wins, the first name among equals. keep = 1 is Krum, more is
    the paper's m-Krum. Its proof needs n >= 2f + 3. Differs from the paper where buffers travel beside the
    parameters: the squared distance is then the sum over the groups of `RoundUpdates.groups`, each divided by its
    median squared length of the round, so that a running variance does not drown the weights.

    Krum assumes that honest sites differ by noise alone. Hospitals differ by more, and with keep = 1 the
    knowledge of all but one is dropped each round: docs/robust_rules.md measures what that costs.

    Args:
        accepted: The round; its weights are not read, every site counts alike.
        hostile: f.
        keep: m, at most n - f.

    Returns:
        The weights are 1/m for the sites that were taken, else 0; the figure `score` is s(i).
    """
    sites = accepted.sites
    near = len(sites) - hostile - 2
    apart = _squared_distances(accepted)
    scores = {site: float(np.sum(np.sort(np.delete(apart[at], at))[:near])) for at, site in enumerate(sites)}
    chosen = sorted(sites, key=lambda site: (scores[site], site))[:keep]
    tensors = accepted.spool.weighted_mean(dict.fromkeys(chosen, 1 / keep), accepted.like)
    return AggregationResult(tensors, {site: 1 / keep if site in chosen else 0.0 for site in sites}, {"score": scores})


def _squared_distances(accepted: RoundUpdates) -> NDArray[np.float64]:
    """Squared distance of every two sites, [n, n]; equal updates are at exactly 0."""
    sites, groups = accepted.sites, accepted.groups()
    apart: NDArray[np.float64] = np.zeros((len(sites), len(sites)))
    for keys in groups:
        # One group is left as it is: a scale would change no choice.
        scale = (statistics.median(accepted.norms(keys).values()) ** 2 or 1.0) if len(groups) > 1 else 1.0
        for key in keys:
            for block in accepted.spool.blocks(key, sites):
                values = block.to(torch.float64)
                for at in range(len(sites) - 1):
                    squares = (values[at + 1 :] - values[at]).square_().sum(1).numpy() / scale
                    apart[at, at + 1 :] += squares
                    apart[at + 1 :, at] += squares
    return apart


def trimmed_mean(accepted: RoundUpdates, hostile: int) -> AggregationResult:
    """Leave out, for each number, the `hostile` largest and smallest values; the plain mean of the rest.

    Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, Definition 2, with beta = hostile / n. Each number
    of the result lies between two honest sites' as long as no more than `hostile` sites are not. Differs from the
    paper: it trims gradients, we trim models; all sites start from one model, so it is the same up to that model.
    Whole numbers (counters) are trimmed likewise and truncated, as in the plain mean.

    Args:
        accepted: The round; its weights are not read, every site counts alike.
        hostile: How many are left out at each end; fewer than half of the sites.

    Returns:
        The weights are each site's share of the values that counted, over all numbers; equal values share alike.
    """
    sites = accepted.sites
    shares = np.zeros(len(sites))
    tensors: dict[str, torch.Tensor] = {}
    for key in sorted(accepted.like):
        parts = []
        for block in accepted.spool.blocks(key, sites):
            values = block.to(torch.float64).numpy()
            kept = np.sort(values, axis=0)[hostile : len(sites) - hostile]
            counted = (values >= kept[0]) & (values <= kept[-1])
            shares += np.sum(counted / np.sum(counted, axis=0), axis=1)
            parts.append(torch.from_numpy(_mean(kept)))
        tensors[key] = torch.cat(parts).reshape(accepted.received[key].shape).to(accepted.like[key])
    weights = (shares / np.sum(shares)).tolist()
    return AggregationResult(tensors, dict(zip(sites, weights, strict=True)), {})


def median(accepted: RoundUpdates) -> AggregationResult:
    """The middle value of each number, or the mean of the two in the middle (Yin et al. 2018, Definition 1).

    It is the trimmed mean that leaves out all but those; see there.
    """
    return trimmed_mean(accepted, (len(accepted.weights) - 1) // 2)


def _mean(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the first dimension, summed in its order, whatever the width."""
    total: NDArray[np.float64] = rows[0].copy()
    for row in rows[1:]:
        total += row
    total /= len(rows)
    return total


def norm_bound(accepted: RoundUpdates, factor: float, limit: float | None) -> AggregationResult:
    """Shorten each site's difference from what it was sent to a bound M, then mix by the weights of the rule.

    x_i becomes w_t + min(1, M / ||x_i - w_t||) (x_i - w_t) (Sun et al., "Can You Really Backdoor Federated Learning?",
    2019, section 4, norm thresholding). Differs from the paper: M is a multiple of the median length of
    the round, since a good fixed length depends on network, rate and round, and nobody knows it beforehand; the paper's
    fixed M is `limit`. The median is an honest length, or lies between two, as long as fewer than half of the sites
    are hostile. Parameters, running statistics and counters each have a length, and under `factor` a bound, of
    their own (`RoundUpdates.groups`). The paper's added noise is a matter of the site's policy here.

    A site within the bound is taken as it is, so a round in which nobody is shortened has the bits of the plain mean.
    It stops no hostile site that keeps its length, such as one that turns its update round.

    Args:
        accepted: The round.
        factor: M over the median length.
        limit: M itself, instead; in the length of the difference.

    Returns:
        The weights are the rule's; the figures are each site's `norm` over the parameters, and `taken`, the smallest
        share of its difference that counted, 1 for all of it.
    """
    taken = dict.fromkeys(accepted.sites, 1.0)
    shares: dict[str, dict[str, float]] = {}
    first: dict[str, float] = {}
    for keys in accepted.groups():
        norms = accepted.norms(keys)
        first = first or norms
        bound = factor * statistics.median(norms.values()) if limit is None else limit  # M
        share = {site: 1.0 if norm <= bound else bound / norm for site, norm in norms.items()}
        shares.update(dict.fromkeys(keys, share))
        taken = {site: min(taken[site], share[site]) for site in taken}

    def shorten(site: str, key: str, which: slice, values: torch.Tensor) -> torch.Tensor:
        share = shares[key][site]
        return (
            values
            if share == 1
            else torch.lerp(accepted.received[key].reshape(-1)[which].to(values.dtype), values, share)
        )

    tensors = accepted.spool.weighted_mean(accepted.weights, accepted.like, shorten)
    return AggregationResult(tensors, accepted.weights, {"norm": first, "taken": taken})
