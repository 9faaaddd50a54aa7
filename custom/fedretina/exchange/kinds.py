"""The kinds of tensors that a site's policy allows or forbids to leave."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a tensor of a payload is.

    In the encoder a BatchNorm is told apart, because its statistics describe the site's images. A head, an
    exit or a projector is one kind with all that it holds, its BatchNorm too.
    """

    ENCODER = "encoder"
    """Weights of the encoder outside BatchNorm."""
    NORM = "norm"
    """Scale and shift of the encoder's BatchNorm (gamma, beta)."""
    STATISTIC = "statistic"
    """Running mean and variance of the encoder's BatchNorm."""
    COUNTER = "counter"
    """`num_batches_tracked` of the encoder: never travels, except under the official name match."""
    HEAD = "head"
    """The classifier."""
    EXIT = "exit"
    """Early exits."""
    PROJECTOR = "projector"
    """Projection and prediction layers of contrastive training."""
    CONTROL = "control"
    """Control variates and drift memories; they accompany a state and are never part of it."""
    CALIBRATION = "calibration"
    """Sums over the features of a site's validation images, and the temperature model that is solved from them."""
