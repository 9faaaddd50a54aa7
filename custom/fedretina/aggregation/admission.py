"""Which updates the server accepts: the right stamp, exactly the agreed keys and scalars, finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from fedretina.analytic.sums import Sums
from fedretina.errors import DataError, RefusedError
from fedretina.exchange.encryption import require_sealed
from fedretina.exchange.partition import GRAM, STATISTIC, SUMS, VARIANCE, Partition, largest, size_of
from fedretina.exchange.payload import Payload, Tensors
from fedretina.exchange.stamp import Stamp
from fedretina.plurals import counted
from fedretina.settings.scalars import RANGES


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
        _admit_once(key, tensor)
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
    joint = torch.cat(
        [
            torch.cat([sums.second.sum(0), sums.first.T], dim=1),
            torch.cat([sums.first, torch.diag(sums.counts)], dim=1),
        ]
    )
    least = float(torch.linalg.eigvalsh(joint)[0])
    if least < -1e-6 * float(joint.diagonal().abs().sum()):
        raise RefusedError(
            "the sums are not those of any images: their second moments are not positive, or smaller than their first "
            "moments and counts allow."
        )


def _admit_once(key: str, tensor: torch.Tensor) -> None:
    """Check what a site says once of its activations or features, from which the server divides or draws roots."""
    if key.startswith(STATISTIC) and key.endswith(VARIANCE) and bool((tensor < 0).any()):
        raise RefusedError(
            f"tensor {key!r} holds a negative variance; noise of the site's own policy can make one of a small one."
        )
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
        if mixed[key].is_floating_point() and not bool(torch.isfinite(mixed[key]).all()):
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
