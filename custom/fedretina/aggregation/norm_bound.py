"""Norm bound: no site moves the aggregate further than the others do."""

from __future__ import annotations

from statistics import median

import torch

from fedretina.aggregation.combining import Accepted, Combined


def norm_bound(accepted: Accepted, factor: float, limit: float | None) -> Combined:
    """Shorten each site's difference from what it was sent to a bound M, then mix by the weights of the rule.

    x_i becomes w_t + min(1, M / ||x_i - w_t||) (x_i - w_t) (Sun et al., "Can You Really Backdoor Federated Learning?",
    2019, section 4, norm thresholding). Differs from the paper: M is a multiple of the median length of
    the round, since a good fixed length depends on network, rate and round, and nobody knows it beforehand; the paper's
    fixed M is `limit`. The median is an honest length, or lies between two, as long as fewer than half of the sites
    are hostile. Parameters, running statistics and counters each have a length, and under `factor` a bound, of
    their own (`Accepted.groups`). The paper's added noise is a matter of the site's policy here.

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
        bound = factor * median(norms.values()) if limit is None else limit  # M
        share = {site: 1.0 if norm <= bound else bound / norm for site, norm in norms.items()}
        shares.update(dict.fromkeys(keys, share))
        taken = {site: min(taken[site], share[site]) for site in taken}

    def shorten(site: str, key: str, value: torch.Tensor) -> torch.Tensor:
        share = shares[key][site]
        return value if share == 1 else torch.lerp(accepted.received[key].to(value.dtype), value, share)

    tensors = accepted.spool.weighted_mean(accepted.weights, accepted.like, shorten)
    return Combined(tensors, accepted.weights, {"norm": first, "taken": taken})
