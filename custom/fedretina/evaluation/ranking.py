"""The area under the ROC curve by ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auroc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float | None:
    """Chance that a positive scores above a negative, half a point for a tie (Mann-Whitney).

    Written by hand because scikit-learn costs a second of import in every task of a site.

    Args:
        scores: Finite [N].
        positive: bool [N].

    Returns:
        A number in [0, 1], or None without a positive or without a negative.
    """
    ones = int(positive.sum())
    zeros = positive.size - ones
    if ones == 0 or zeros == 0:
        return None
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(sizes) - (sizes - 1) / 2  # mean rank of each group of equal scores, from 1
    rank_sum = float(middle[group][positive].sum())
    return (rank_sum - ones * (ones + 1) / 2) / (ones * zeros)
