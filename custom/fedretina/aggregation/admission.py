"""Which updates the server accepts: as they come by stamp, keys, scalars and finite numbers, in the end by proportion.

An update that is out of all proportion to the others' and to what was sent would end a run alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from statistics import median_high
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.aggregation.spool import Buffers, Spool
from fedretina.analytic.sums import Sums
from fedretina.errors import DataError, RefusedError
from fedretina.exchange.encryption import require_sealed
from fedretina.exchange.partition import (
    CONTROL,
    GRAM,
    KEY,
    MOMENT,
    SUMS,
    VARIANCES,
    Partition,
    largest,
    negative_variance,
    size_of,
)
from fedretina.exchange.payload import Payload, Stamp, Tensors
from fedretina.plurals import counted
from fedretina.settings.exchange import Kind
from fedretina.settings.scalars import RANGES, Task


def admit(
    payload: Payload,
    expected: Stamp,
    partition: Partition,
    scalars: frozenset[str],
    keys: tuple[str, ...],
    largest_theta: float = 1.0,
    needed: frozenset[str] = frozenset(),
) -> None:
    """Check a site's update; every refusal says what was found.

    Args:
        payload: The update as it arrived.
        expected: The stamp of the running round.
        partition: What travels.
        scalars: Names that this task may and must bring.
        keys: Keys of the tensors that this task must bring; none for scalars alone.
        largest_theta: Largest theta that the run's rule can give; a larger one would buy weight.
        needed: Scalars that the run's rule cannot do without, though a site may hold them back elsewhere.

    Raises:
        RefusedError: The first rule that the update breaks.
    """
    payload.stamp.require(expected)
    admit_tensors(payload.tensors, partition, keys)
    admit_scalars(payload.scalars, scalars, needed)
    theta = payload.scalars.get("theta", 0.0)
    if theta > largest_theta:
        raise RefusedError(f"scalar 'theta' is {theta:g}, the run's rule gives at most {largest_theta:g}.")


def admit_tensors(tensors: Tensors, partition: Partition, keys: tuple[str, ...]) -> None:
    """Check keys, shapes, types and values; exactly the named keys must come.

    Raises:
        RefusedError: Unknown or missing keys, another shape or type, or a value that is not finite, is absurdly large,
            or cannot be what its key says.
    """
    unknown = sorted(set(tensors) - set(keys))
    if unknown:
        some = counted(len(unknown), "tensor does", "tensors do")
        raise RefusedError(f"{some} not travel in this run, the first is {unknown[0][:100]!r}.")
    missing = sorted(set(keys) - set(tensors))
    if missing:
        raise RefusedError(f"{counted(len(missing), 'tensor is', 'tensors are')} missing, the first is {missing[0]!r}.")
    for key in sorted(tensors):
        tensor = tensors[key]
        if key in partition.sealed:
            require_sealed(key, tensor, partition.sizes[key][0])
            continue
        if tuple(tensor.shape) != tuple(partition.shapes[key]):
            raise RefusedError(
                f"tensor {key!r} has shape {tuple(tensor.shape)}, expected {tuple(partition.shapes[key])}."
            )
        if tensor.dtype != partition.dtypes[key]:
            raise RefusedError(f"tensor {key!r} has type {tensor.dtype}, expected {partition.dtypes[key]}.")
        if tensor.is_floating_point() and tensor.numel():
            size, most = size_of(tensor), largest(key, partition.kinds[key])
            if not math.isfinite(size):
                raise RefusedError(f"tensor {key!r} holds a value that is not finite.")
            if size > most:
                raise RefusedError(
                    f"tensor {key!r} holds a value of size {size:.3g}, at most {most:g} is taken: no training that "
                    "goes well comes near it."
                )
        _admit_roots(key, tensor)
    if partition.sums and not partition.sealed and set(partition.sums) <= set(tensors):
        _admit_sums({key.removeprefix(SUMS): tensors[key] for key in partition.sums})


def _admit_sums(tensors: Tensors) -> None:
    """Check that sums are those of some images: nothing can be said of which, so a hostile site may invent images.

    With y an image's classes and phi its features, the second moments of (phi, y) are positive, and counts are no less
    than those of y.
    """
    try:
        sums = Sums.unpacked(tensors)
    except DataError as error:
        raise RefusedError(f"the sums cannot be those of images: {error}") from error
    images = float(sums.counts.sum())
    if images < 1:
        raise RefusedError(f"the sums count {images:g} images, at least 1 must be behind them.")
    # By class, where they are kept by class: a site weighs classes, and each of them must stay positive.
    for at, second in enumerate(sums.second):
        chosen = slice(at, at + 1) if sums.by_class else slice(None)
        first, counts = sums.first[chosen], sums.counts[chosen]
        joint = torch.cat([torch.cat([second, first.T], dim=1), torch.cat([first, torch.diag(counts)], dim=1)])
        least = float(torch.linalg.eigvalsh(joint)[0])
        if least < -1e-6 * float(joint.diagonal().abs().sum()):
            raise RefusedError(
                "the sums are not those of any images: their second moments are not positive, or smaller than their "
                "first moments and counts allow."
            )


def _admit_roots(key: str, tensor: torch.Tensor) -> None:
    """Check that nothing is negative of which the server, or a site's BatchNorm, draws roots or by which it divides."""
    if negative_variance(key, tensor):
        raise RefusedError(f"tensor {key!r} holds a negative variance, which no images have.")
    if key == GRAM:
        if not float(tensor[-1, -1]) >= 1:
            raise RefusedError(f"tensor {key!r} counts {float(tensor[-1, -1]):g} images, at least 1 must be behind it.")
        if bool((tensor.diagonal() < 0).any()):
            raise RefusedError(
                f"tensor {key!r} holds a negative sum of squares; noise of the site's own policy can make one of a "
                "small one."
            )


def require_finite(mixed: Tensors, step: str) -> None:
    """Refuse to go on from an aggregate that is not finite, though each update was.

    Raises:
        RefusedError: It names the step and the tensor.
    """
    for key in sorted(mixed):
        if mixed[key].is_floating_point() and not math.isfinite(size_of(mixed[key])):
            raise RefusedError(
                f"{step}: the aggregate is not finite in tensor {key!r}, so nothing of this step is kept: a site sends "
                "numbers that grow without bound. Leave it out, lower the learning rate, or begin a new run with a "
                "robust rule (aggregation.robust)."
            )


def admit_scalars(scalars: Mapping[str, float], names: frozenset[str], needed: frozenset[str] = frozenset()) -> None:
    """Check names, finiteness and ranges; some may be left out, being undefined (an AUC) or held back by the site.

    Raises:
        RefusedError: An unknown name, a required scalar that is missing, or a value out of range.
    """
    for name, value in sorted(scalars.items()):
        if name not in names:
            raise RefusedError(f"scalar {name[:100]!r} is not one of those that this task sends.")
        low, high, _ = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RefusedError(f"scalar {name!r} is not a finite number.")
        if not low <= value <= high:
            raise RefusedError(f"scalar {name!r} is {value:g}, expected {low:g} to {high:g}.")
    for name in sorted(names - set(scalars)):
        if RANGES[name][2] or name in needed:
            raise RefusedError(f"scalar {name!r} is missing, which this run cannot do without.")


_PARAMETERS, _STATISTICS = 0.1, 1.0
"""Share of the length of what was sent that a usual round may change, however little the others changed. Running
statistics follow a site's images anew in every round, parameters are what all rounds before have learned."""


_STRETCH = 2**16  # numbers that are worked on at once


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
    nothing: Tensors = {}
    waiting = list(names)
    start = nothing if once or not names else sent(names[0])
    while waiting:
        # Sites that were sent the same are measured in one pass; of what each was sent alone, one is in memory at once.
        together, other = [waiting.pop(0)], start
        while waiting and (other := nothing if once else sent(waiting[0])) is start:
            together.append(waiting.pop(0))
        changes |= _changes(spool, together, listed, start)
        own = [_own_length(group.keys, start) for group in listed]
        lengths |= dict.fromkeys(together, own)
        start = other
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


def _changes(spool: Spool, sites: list[str], listed: list[Group], start: Tensors) -> dict[str, list[float]]:
    """||x_i - w|| by site and group; ||x_i|| where there is no w, as of controls, which are changes themselves."""
    places = {key: at for at, group in enumerate(listed) for key in group.keys}
    buffers = Buffers()

    def visit(key: str, which: slice, numbers: Iterator[tuple[str, NDArray[np.float64]]]) -> tuple[int, list[float]]:
        begun = None
        if key in start and not key.startswith(CONTROL):
            held = buffers.of(which.stop - which.start, torch.float64)
            begun = _even(key, held.copy_(start[key].reshape(-1)[which])).numpy()
        squares = []
        for _, values in numbers:
            way = _even(key, torch.from_numpy(values)).numpy()
            if begun is not None:
                way -= begun
            squares.append(float(np.square(way, out=way).sum()))
        return places[key], squares

    totals = np.zeros((len(sites), len(listed)))
    for at, squares in spool.walk(sites, list(places), visit) if places else ():
        totals[:, at] += squares
    return dict(zip(sites, np.sqrt(totals).tolist(), strict=True))


def _own_length(keys: Collection[str], start: Tensors) -> float:
    """||w|| over some keys; of controls the server's own or their parameters', whichever is longer."""
    steered = [key.removeprefix(CONTROL) for key in keys if key.startswith(CONTROL)]
    own, parameters = (
        math.sqrt(sum(_squares(key, start[key]) for key in these if key in start)) for these in (keys, steered)
    )
    return max(own, parameters)


def _squares(key: str, tensor: torch.Tensor) -> float:
    """Sum of squares in float64, by stretches that stay in the cache: a model's whole copy takes ten times as long."""
    flat = tensor.reshape(-1)
    parts = (flat[at : at + _STRETCH] for at in range(0, len(flat), _STRETCH))
    return sum(float(np.square(_even(key, part).numpy()).sum()) for part in parts)


def _even(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, squares and sums over images by their roots."""
    value = tensor.to(torch.float64)
    if key.endswith(VARIANCES) or key in (GRAM, MOMENT) or key.startswith(SUMS):
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
