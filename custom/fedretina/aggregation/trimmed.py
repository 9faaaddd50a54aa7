"""Trimmed mean and median: number by number, the most extreme sites are left out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.aggregation.combining import Accepted, Combined


def trimmed_mean(accepted: Accepted, hostile: int) -> Combined:
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
    return Combined(tensors, dict(zip(sites, weights, strict=True)), {})


def median(accepted: Accepted) -> Combined:
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
