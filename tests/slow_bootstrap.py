"""Drawing patients and asking for the figures of one draw at a time: the plain form of the product's bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import Counts, Interval, patient_bootstrap


def bootstrapped_slowly(
    statistics: Callable[[NDArray[np.intp]], Mapping[str, float | None]],
    patients: Sequence[str],
    seed: int,
    draws: int = 1000,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Intervals of the figures of the images at these places, None where undefined, called once a draw."""

    def by_row(counts: Counts) -> dict[str, NDArray[np.float64]]:
        rows = [statistics(np.repeat(np.arange(counts.shape[1]), row)) for row in counts]
        names = sorted({name for row in rows for name in row})
        return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in names}

    return patient_bootstrap(by_row, patients, seed, draws, level)
