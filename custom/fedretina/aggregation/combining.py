"""What a way of combining sees of a round, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from fedretina.aggregation.spool import Spool
from fedretina.exchange.payload import Tensors


class Accepted(NamedTuple):
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
        squares = dict.fromkeys(self.sites, 0.0)
        for key in keys:
            start = self.received[key].to(torch.float64)
            for site in squares:
                way = self.spool.tensor(site, key).to(torch.float64).sub_(start)
                squares[site] += float(way.square_().sum())
        return {site: float(np.sqrt(total)) for site, total in squares.items()}


class Combined(NamedTuple):
    """The aggregate and how it came about.

    Attributes:
        tensors: By key.
        weights: The weight that each site had in it; they sum to 1.
        figures: Numbers by name and site for the round's record, beside the weights.
    """

    tensors: dict[str, torch.Tensor]
    weights: Mapping[str, float]
    figures: Mapping[str, Mapping[str, float]]


def weighted_mean(accepted: Accepted) -> Combined:
    """Combine by sum_i w_i x_i: what every rule of weights means without a robust rule."""
    return Combined(accepted.spool.weighted_mean(accepted.weights, accepted.like), accepted.weights, {})
