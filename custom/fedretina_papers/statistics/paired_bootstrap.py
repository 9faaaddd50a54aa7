"""The difference of two rows over the same patients, by drawing those patients again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.bootstrap import Counts, interval_of, patient_draws

Column = NDArray[np.float64]
_MOST_UNDEFINED = 0.1
_LEAST_SPREAD = 1e-12  # rounding alone


class Sample(NamedTuple):
    """One test set as answered by one row: its figures and its patients.

    Attributes:
        figures: Takes how often each image was drawn [B, N] and gives each figure [B], NaN where undefined; such as
            `ResampledFigures`.
        patients: Patient of each image [N].
    """

    figures: Callable[[Counts], Mapping[str, Column]]
    patients: Sequence[str]


class Difference(NamedTuple):
    """Where a difference would mostly lie with other patients of the same kind.

    Attributes:
        low: Lower bound; None where no interval can be told.
        high: Upper bound; None where no interval can be told.
        p: Two-sided: twice the share of the draws on the rarer side of zero, or on it; 1 for rows that answer alike,
            None where no interval can be told otherwise.
        draws_used: Draws in which the difference was defined.
        variance: Over the draws; None where no interval can be told, 0 for rows that answer alike.
    """

    low: float | None
    high: float | None
    p: float | None
    draws_used: int
    variance: float | None


def draw_together(samples: Sequence[Sample], seed: int, draws: int = 2000) -> list[dict[str, Column]]:
    """Compute the figures of several test sets under the same draws of the patients of all.

    Each draw takes as many patients as all test sets have together, with all their images, and every set sees those
    of its own. So two rows meet the same patients, and seeds whose test sets share patients vary together as they
    do in truth.

    Args:
        samples: One or more.
        seed: The same seed draws the same patients.
        draws: Number of draws.

    Returns:
        For each sample its figures by name [draws]; NaN also where a draw has no patient of this set.

    Raises:
        SettingsError: draws is below 1.
        TrainingError: A sample has no images.
    """
    if draws < 1:
        raise SettingsError(f"draws is {draws}: use 1 or more, 1000 or more for an interval.")
    if not samples or any(not sample.patients for sample in samples):
        raise TrainingError("A difference was asked for a split without images. Give the split at least one image.")
    names = np.unique(np.concatenate([np.asarray(sample.patients) for sample in samples]))
    owners = [np.searchsorted(names, np.asarray(sample.patients)) for sample in samples]
    found: list[dict[str, list[Column]]] = [{} for _ in samples]
    for drawn in patient_draws(names.tolist(), seed, draws):
        for sample, owner, columns in zip(samples, owners, found, strict=True):
            counts = drawn[:, owner]
            empty = np.sum(counts, axis=1) == 0
            counts[empty] = 1  # no figure is defined without images; the rule need not know
            for name, column in sample.figures(counts).items():
                columns.setdefault(name, []).append(np.where(empty, np.nan, column))
    return [{name: np.concatenate(parts) for name, parts in columns.items()} for columns in found]


def mean_over_seeds(first: Sequence[Column], second: Sequence[Column]) -> Column:
    """Difference first - second in each draw [B], the mean over the seeds in which both are defined.

    A draw that misses a rare grade leaves one seed's macro AUC undefined. The other seeds then stand for it; a draw
    is NaN where no seed is left.

    Args:
        first: A figure of the first row in each draw, for each seed.
        second: The same of the second row, under the same draws.
    """
    gaps = np.stack(first) - np.stack(second)
    there = np.isfinite(gaps)
    seeds = np.sum(there, axis=0)
    total = np.sum(np.where(there, gaps, 0.0), axis=0)
    mean: Column = np.divide(total, seeds, out=np.full(total.shape, np.nan), where=seeds > 0)
    return mean


def mean_over_sites(sites: Sequence[Column]) -> Column | None:
    """Mean difference over sites in each draw; None where a site has too many undefined draws, or without sites.

    The patients of two sites are drawn apart, so that any draw of one may meet any draw of the other: each site's
    defined draws are lined up, and a rare grade here costs no draw there.

    Args:
        sites: Difference in each draw [B], a column a site.
    """
    defined = [column[np.isfinite(column)] for column in sites]
    if not sites or any(
        some.size < (1 - _MOST_UNDEFINED) * column.size for some, column in zip(defined, sites, strict=True)
    ):
        return None
    shortest = min(some.size for some in defined)
    return np.asarray(np.mean([some[:shortest] for some in defined], axis=0), dtype=np.float64)


def difference_of(draws: Column, alone: bool = False) -> Difference:
    """95 % interval and p value of a difference from its draws.

    The p value answers the same question as the interval: it is below 0.05 where the 95 % interval leaves out zero
    (to within a draw). It can be no smaller than 2 / (draws + 1).

    Args:
        draws: The difference in each draw [B], NaN where undefined.
        alone: Whether there is only one patient to draw.
    """
    defined = draws[np.isfinite(draws)]
    interval = interval_of(draws, alone=alone)
    if interval.low is None:
        alike = defined.size >= (1 - _MOST_UNDEFINED) * draws.size and bool(np.all(np.abs(defined) < _LEAST_SPREAD))
        told = alike and not alone
        return Difference(None, None, 1.0 if told else None, interval.draws_used, 0.0 if told else None)
    rarer = min(int(np.sum(defined <= 0)), int(np.sum(defined >= 0)))
    p = min(1.0, 2 * (rarer + 1) / (defined.size + 1))
    return Difference(interval.low, interval.high, p, interval.draws_used, float(np.var(defined, ddof=1)))
