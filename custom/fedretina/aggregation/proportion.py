"""Which updates are out of all proportion to the others' and to what was sent: one of them alone would end a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from statistics import median_high
from typing import NamedTuple

import torch

from fedretina.aggregation.spool import Spool
from fedretina.exchange.partition import CONTROL, GRAM, KEY, MOMENT, SUMS, VARIANCE, Partition
from fedretina.exchange.payload import Tensors
from fedretina.settings.exchange import Kind
from fedretina.settings.scalars import Task

_PARAMETERS, _STATISTICS = 0.1, 1.0
"""Share of the length of what was sent that a usual round may change, however little the others changed. Running
statistics follow a site's images anew in every round, parameters are what all rounds before have learned."""
_SQUARES = ("running_var", VARIANCE)


class Group(NamedTuple):
    """Tensors that are measured together.

    Attributes:
        name: As it stands in a sentence: the kind of the tensors.
        keys: Their keys, sorted.
        share: See `_PARAMETERS`.
    """

    name: str
    keys: tuple[str, ...]
    share: float


class Proportion(NamedTuple):
    """How far out of proportion an update is.

    Attributes:
        value: Its change over what the others' changes and the aggregate make plausible, in the worst group; 0 or more.
        group: Name of that group.
    """

    value: float
    group: str


def groups(parts: Partition, task: Task) -> list[Group]:
    """The tensors that a task's answers hold, by kind, in groups of one scale each.

    Running statistics stand apart from the parameters of their kind, and so do controls and the key network: one length
    over all would be the length of the largest. Left out are counters, from which nothing is computed, and what travels
    encrypted, which nobody here can read.
    """
    found: dict[str, list[str]] = {}
    parameters = set(parts.parameters)
    for key in parts.sent(task):
        if key in parts.sealed or not parts.dtypes[key].is_floating_point:
            continue
        name = parts.kinds[key].value
        if key.startswith(KEY):
            name = f"{name} of the key network"
        elif key in parts.shared and key not in parameters and name != Kind.STATISTIC.value:
            name = f"{name} statistic"
        found.setdefault(name, []).append(key)
    return [
        Group(name, tuple(sorted(found[name])), _STATISTICS if name.endswith(Kind.STATISTIC.value) else _PARAMETERS)
        for name in sorted(found)
    ]


def proportions(
    spool: Spool, sites: Collection[str], parts: Partition, task: Task, sent: Callable[[str], Tensors]
) -> dict[str, Proportion]:
    """Measure each update against the others' and against what it started from.

    In each group, p_i = ||x_i - w_i|| / max(median over the other sites of ||x_j - w_j||, s ||w_i||), where x_i is the
    update, w_i what the site was sent, and s 0.1, of running statistics 1; the largest over the groups counts. It is
    norm bounding (Sun et al., "Can You Really Backdoor Federated Learning?", 2019) with the median of the round's
    lengths as its unit, so wide that it refuses what would end a run and shortens nothing. The second witness is for
    honest sites: one that takes a thousand steps where the others take one is long beside them, and still moves its
    model by about its own length at most; and of two sites it tells which is the odd one.

    Controls begin at 0 and are changes already: beside them stands the longer of the server's own and the parameters
    that they steer. Variances and sums over images are taken by their roots, since they grow with the square of what
    they measure, or with the number of images. What is sent once, before or after the training, has nothing that it
    started from: it is measured against the others alone, and not at all with fewer than two others, since nobody could
    tell which of two is the odd one.

    Args:
        spool: The updates.
        sites: Names of the sites whose update it holds.
        parts: What travels.
        task: What the sites were asked.
        sent: What a site was sent, by its name; the same object where it is the same for all.

    Returns:
        By site, in alphabetical order; none where the answers hold no tensors, or there is nothing to compare with.
    """
    listed, names = groups(parts, task), sorted(sites)
    once = task in ("prepare", "calibrate", "sums")
    changes: dict[str, list[float]] = {}
    lengths: dict[str, list[float]] = {}
    known: Tensors | None = None
    own: list[float] = []
    for site in names:
        start: Tensors = {} if once else sent(site)
        changes[site] = [_length(group.keys, partial(spool.tensor, site), start) for group in listed]
        if start is not known:
            own, known = [_own_length(group.keys, start) for group in listed], start
        lengths[site] = own
    found: dict[str, Proportion] = {}
    for site in names:
        others = [other for other in names if other != site]
        if once and len(others) < 2:
            continue
        worst = Proportion(0.0, "")
        for at, group in enumerate(listed):
            usual = median_high(changes[other][at] for other in others) if others else 0.0
            plausible = max(usual, group.share * lengths[site][at])
            if plausible > 0 and changes[site][at] / plausible > worst.value:
                worst = Proportion(changes[site][at] / plausible, group.name)
        if listed:
            found[site] = worst
    return found


def _length(keys: Collection[str], tensor: Callable[[str], torch.Tensor], start: Tensors) -> float:
    """||x - w|| over some keys; ||x|| where there is no w, as of controls, which are changes themselves."""
    total = 0.0
    for key in keys:
        way = _even(key, tensor(key))
        if key in start and not key.startswith(CONTROL):
            way = way - _even(key, start[key])
        total += float(way.square().sum())
    return math.sqrt(total)


def _own_length(keys: Collection[str], start: Tensors) -> float:
    """||w|| over some keys; of controls the server's own or their parameters', whichever is longer."""
    steered = [key.removeprefix(CONTROL) for key in keys if key.startswith(CONTROL)]
    own, parameters = (
        _length([key for key in these if key in start], start.__getitem__, {}) for these in (keys, steered)
    )
    return max(own, parameters)


def _even(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, squares and sums over images by their roots."""
    value = tensor.to(torch.float64)
    if key.endswith(_SQUARES) or key in (GRAM, MOMENT) or key.startswith(SUMS):
        return value.abs().sqrt().copysign(value)
    return value


def refusal(found: Proportion, most: float) -> str:
    """Why an update that is out of proportion is not taken."""
    return (
        f"the change of its {found.group} tensors is out of all proportion: {found.value:.3g} times the larger of the "
        f"other sites' median change and a tenth of what it was sent; at most {most:g} times is taken "
        "(aggregation.proportion)."
    )


def told(found: Mapping[str, Proportion]) -> dict[str, float]:
    """The proportions for a step's record, to three digits."""
    return {site: float(f"{one.value:.3g}") for site, one in found.items()}
