"""What a model says about images, whichever estimator was asked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Answer(NamedTuple):
    """What a model says about N images.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        uncertainty: float64 [N], within `range`; larger means less sure.
        name: Name of the estimator, as it stands in `ESTIMATORS`.
        range: Smallest and largest uncertainty that the estimator can give.
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    name: str
    range: tuple[float, float]
