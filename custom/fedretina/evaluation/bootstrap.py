"""Intervals by drawing patients again: how much would a figure move with other patients of the same kind?

The eyes and visits of a patient resemble each other, so whole patients are drawn (the clustered bootstrap); an
interval over single images would be too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.seeds import generator

Indices = NDArray[np.intp]
Counts = NDArray[np.int64]
_MOST_UNDEFINED = 0.1
_NO_SPREAD = 1e-12  # rounding alone
_CHUNK = 1_000_000  # numbers in one table of counts, 8 MB


class Interval(NamedTuple):
    """A percentile interval.

    Attributes:
        low: Lower bound; None where no interval can be told.
        high: Upper bound; None where no interval can be told.
        draws_used: Draws in which the figure was defined.
    """

    low: float | None
    high: float | None
    draws_used: int


def patient_bootstrap(
    statistics: Callable[[Indices], Mapping[str, float | None]],
    patients: Sequence[str],
    seed: int,
    draws: int = 1000,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile intervals of any figures of a split, from draws of its patients with replacement.

    Each draw takes as many patients as there are, with all their images; the number of images differs between
    draws. There is no interval where more than a tenth of the draws leave a figure undefined (a split with two
    errors often draws none), with fewer than two patients, and where all draws agree: no error among 20 patients
    does not mean that there will never be one. With few patients (below about 30) percentile intervals are
    too narrow; a report should say so.

    Args:
        statistics: Figures by name of the images at these places, None where undefined. Called once a draw;
            `patient_bootstrap_counts` is the faster way for figures that can be computed for many draws at once.
        patients: Patient of each image [N].
        seed: The same seed draws the same patients.
        draws: Number of draws.
        level: Share of the draws inside the interval, in (0, 1).

    Returns:
        An interval for each name that any draw gave.

    Raises:
        SettingsError: draws or level is out of range.
        TrainingError: There are no images.
    """

    def by_row(counts: Counts) -> dict[str, NDArray[np.float64]]:
        rows = [statistics(np.repeat(np.arange(counts.shape[1]), row)) for row in counts]
        names = sorted({name for row in rows for name in row})
        return {name: np.array([_number(row.get(name)) for row in rows]) for name in names}

    return patient_bootstrap_counts(by_row, patients, seed, draws, level)


def patient_bootstrap_counts(
    statistics: Callable[[Counts], Mapping[str, NDArray[np.float64]]],
    patients: Sequence[str],
    seed: int,
    draws: int = 1000,
    level: float = 0.95,
) -> dict[str, Interval]:
    """The same intervals as `patient_bootstrap`, for figures that are computed for many draws at once.

    Args:
        statistics: Takes how often each image was drawn [B, N] and gives each figure [B], NaN where undefined.
        patients: Patient of each image [N].
        seed: The same seed draws the same patients, and the same as in `patient_bootstrap`.
        draws: Number of draws.
        level: Share of the draws inside the interval, in (0, 1).

    Returns:
        An interval for each name.

    Raises:
        SettingsError: draws or level is out of range.
        TrainingError: There are no images.
    """
    if draws < 1 or not 0 < level < 1:
        raise SettingsError(f"draws is {draws} and level {level}: use 1 draw or more and a level in (0, 1).")
    if not patients:
        raise TrainingError("An interval was asked for a split without images. Give the split at least one image.")
    values: dict[str, list[NDArray[np.float64]]] = {}
    done = 0
    for counts in patient_draws(patients, seed, draws):
        for name, column in statistics(counts).items():
            # A name that only some chunks know was undefined in all draws before.
            values.setdefault(name, [np.full(done, np.nan)]).append(column)
        done += counts.shape[0]
        for columns in values.values():
            columns.append(np.full(done - sum(map(len, columns)), np.nan))
    alone = len(set(patients)) < 2
    return {name: interval_of(np.concatenate(columns), level, alone) for name, columns in values.items()}


def patient_draws(patients: Sequence[str], seed: int, draws: int) -> Iterator[Counts]:
    """How often each image is drawn, [B, N] at a time; `draws` rows in all.

    Args:
        patients: Patient of each image [N], N at least 1.
        seed: The same seed draws the same patients.
        draws: Number of draws.
    """
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    rng = generator("bootstrap", seed)
    size = max(1, _CHUNK // owner.size)
    for begin in range(0, draws, size):
        rows = min(size, draws - begin)
        drawn = rng.integers(0, names.size, (rows, names.size)) + names.size * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * names.size).reshape(rows, names.size)
        yield counts[:, owner]


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def interval_of(values: NDArray[np.float64], level: float = 0.95, alone: bool = False) -> Interval:
    """The percentile interval of a figure's draws, by the rules of `patient_bootstrap`.

    Args:
        values: One a draw [B], NaN where undefined.
        level: Share of the draws inside, in (0, 1).
        alone: Whether all draws are of one patient, so that there is no interval.
    """
    defined = values[np.isfinite(values)]
    if alone or defined.size < (1 - _MOST_UNDEFINED) * values.size or np.ptp(defined) < _NO_SPREAD:
        return Interval(None, None, int(defined.size))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), int(defined.size))
