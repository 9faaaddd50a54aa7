"""In which order a site's images come, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import TrainingError
from fedretina.seeds import generator
from fedretina.settings.training import TrainingSettings


def batches(images: int, settings: TrainingSettings, purpose: tuple[int | str, ...]) -> Iterator[NDArray[np.int64]]:
    """Numbers of the images of each batch of an epoch, in an order that the purpose decides.

    Args:
        images: How many images there are.
        settings: Size of a batch, and whether the last one must be full.
        purpose: What the order is for, such as (seed, site, phase, round, epoch).
    """
    size = settings.batch_size
    order = generator(*purpose, "order").permutation(images)
    for begin in range(0, images, size):
        samples = order[begin : begin + size]
        # A batch of one has no variance for BatchNorm, so it is left out even when drop_last is off.
        if len(samples) == size or (not settings.drop_last and len(samples) > 1):
            yield samples


def batches_an_epoch(images: int, batch_size: int, drop_last: bool) -> int:
    """How many batches `batches` gives."""
    whole, rest = divmod(images, batch_size)
    return whole + (not drop_last and rest > 1)


def require_a_batch(images: int, settings: TrainingSettings, what: str = "training images") -> None:
    """Refuse fewer images than a batch.

    Raises:
        TrainingError: There are fewer.
    """
    if images < settings.batch_size:
        raise TrainingError(
            f"the site's {what} are fewer than one batch of {settings.batch_size}: "
            "lower training.batch_size or let the site add images."
        ).with_note(f"There are {images} {what}.")
