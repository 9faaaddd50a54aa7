"""What a model answered about a split and what is true of it, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class LabelledPredictions(NamedTuple):
    """Answers and truth of the same N images.

    Attributes:
        probabilities: float64 [N, K]; a row sums to 1.
        uncertainty: float64 [N]; larger means less sure.
        labels: int64 [N], 0 to K - 1.
        patients: Patient of each image; like the images it never leaves the site.
    """

    probabilities: NDArray[np.float64]
    uncertainty: NDArray[np.float64]
    labels: NDArray[np.int64]
    patients: Sequence[str]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The grade answered, as a class [N]."""
        return np.asarray(np.argmax(self.probabilities, axis=1), dtype=np.int64)

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether the grade answered is not the true one [N]."""
        return np.not_equal(self.predicted, self.labels)
