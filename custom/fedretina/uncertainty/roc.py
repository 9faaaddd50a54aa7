"""The points of a ROC curve as whole numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Roc(NamedTuple):
    """A ROC curve at the observed scores, without the point at infinity.

    Attributes:
        thresholds: Distinct scores, descending [M].
        hits: Positives with score >= threshold [M].
        alarms: Negatives with score >= threshold [M].
    """

    thresholds: NDArray[np.floating]
    hits: NDArray[np.int64]
    alarms: NDArray[np.int64]


def roc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> Roc:
    """Count hits and false alarms of the rule "score >= threshold" in O(N log N).

    The points are those of scikit-learn's `roc_curve(drop_intermediate=False)` without its first, which
    lies at an infinite threshold. Counts instead of rates keep comparisons free of rounding.

    Args:
        scores: Finite [N], N at least 1.
        positive: bool [N].

    Returns:
        The curve.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), scores.size - 1)
    hits = np.cumsum(positive[order], dtype=np.int64)[ends]
    return Roc(ranked[ends], hits, ends + 1 - hits)
