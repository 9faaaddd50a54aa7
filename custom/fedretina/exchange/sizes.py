"""How large a number of a model may be: beyond that no training goes well, and it would take others down with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from fedretina.exchange.payload import Tensors
from fedretina.settings.exchange import Kind

_PARAMETER = 1e6
_SQUARE = _PARAMETER**2
_SUM = _SQUARE * 1e6
_LARGEST: Mapping[Kind, float] = {Kind.STATISTIC: _SQUARE, Kind.CALIBRATION: _SUM}


class Absurd(NamedTuple):
    """The first tensor that holds an absurd value.

    Attributes:
        kind: Of the tensor.
        size: The largest size of its values; nan or inf where one is not finite.
        most: The largest that is taken.
    """

    kind: Kind
    size: float
    most: float


def largest(key: str, kind: Kind) -> float:
    """Largest size of a number under a key, both ways.

    Weights, gradients and control variates of a network that answers lie below 1000: 1e6 leaves room for one that is
    about to diverge. A variance is a square of what a network holds, so 1e12; calibration sums are sums of squares
    over images, so 1e18. All of them are so far below the largest float32, 3.4e38, that what the server adds up over a
    run's rounds stays below it too.
    """
    return _SQUARE if key.endswith("running_var") else _LARGEST.get(kind, _PARAMETER)


def size_of(tensor: torch.Tensor) -> float:
    """Largest size of a tensor's values; 0 of an empty one, nan or inf where a value is not finite."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def absurd(tensors: Tensors, kinds: Mapping[str, Kind]) -> Absurd | None:
    """The first of these tensors, in the order of their keys, with a value that is not finite or beyond `largest`.

    Args:
        tensors: By key; whole-number ones, and keys of no kind, are not looked at.
        kinds: The kind of every key.
    """
    for key in sorted(tensors):
        if key in kinds and tensors[key].is_floating_point():
            size, most = size_of(tensors[key]), largest(key, kinds[key])
            if not math.isfinite(size) or size > most:
                return Absurd(kinds[key], size, most)
    return None
