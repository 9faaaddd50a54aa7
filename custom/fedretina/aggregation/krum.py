"""Krum: the aggregate is the update that lies closest to most of the others."""

from __future__ import annotations

from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.aggregation.combining import Accepted, Combined


def krum(accepted: Accepted, hostile: int, keep: int) -> Combined:
    """Take the `keep` sites whose nearest others are nearest, and their plain mean.

    s(i) = sum of ||x_i - x_j||^2 over the n - f - 2 sites j nearest to i (Blanchard et al., "Machine Learning with
    Adversaries", NeurIPS 2017, section 3); the least s(i) wins, the first name among equals. keep = 1 is Krum, more is
    the paper's m-Krum. Its proof needs n >= 2f + 3. Differs from the paper where buffers travel beside the
    parameters: the squared distance is then the sum over the groups of `Accepted.groups`, each divided by its
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
    return Combined(tensors, {site: 1 / keep if site in chosen else 0.0 for site in sites}, {"score": scores})


def _squared_distances(accepted: Accepted) -> NDArray[np.float64]:
    """Squared distance of every two sites, [n, n]; equal updates are at exactly 0."""
    sites, groups = accepted.sites, accepted.groups()
    apart: NDArray[np.float64] = np.zeros((len(sites), len(sites)))
    for keys in groups:
        # One group is left as it is: a scale would change no choice.
        scale = (median(accepted.norms(keys).values()) ** 2 or 1.0) if len(groups) > 1 else 1.0
        for key in keys:
            for block in accepted.spool.blocks(key, sites):
                values = block.to(torch.float64)
                for at in range(len(sites) - 1):
                    squares = (values[at + 1 :] - values[at]).square_().sum(1).numpy() / scale
                    apart[at, at + 1 :] += squares
                    apart[at + 1 :, at] += squares
    return apart
