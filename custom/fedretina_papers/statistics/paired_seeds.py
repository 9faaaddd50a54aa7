"""The paired test over seeds, and how many seeds a claim needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedretina.errors import SettingsError

MOST_SEEDS = 1000
_SIGHT, _LEVEL = 0.8, 0.05  # chance to see a difference; level of the two-sided test
_NO_SPREAD = 1e-12  # rounding alone
_MOST_FREEDOM = 1e6  # the normal distribution


class SeedTest(NamedTuple):
    """Differences of two rows over the same seeds.

    Attributes:
        n: Number of seeds.
        mean: Mean difference; None without seeds.
        sd: Standard deviation of the differences; None with fewer than two seeds.
        low: Lower bound of the interval of the mean; None where there is no test.
        high: Upper bound; None where there is no test.
        p: Two-sided; None with fewer than two seeds, or where all differ by the same.
    """

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    p: float | None


def seed_test(differences: Sequence[float], patient_variance: float = 0.0, level: float = 0.95) -> SeedTest:
    """Student's paired t test over seeds, alone or together with the chance of the patients.

    Alone it is the likeliest test behind FedUAA's Table 4 (the paper names none). It asks whether another training
    would come out alike and knows nothing of other patients: seeds on one test set, or on test sets that share
    patients, agree more than they would on fresh ones. With the variance that drawing patients gives the mean
    difference, both chances add up, and the degrees of freedom are Welch and Satterthwaite's. What part of the spread
    over seeds comes from their own test patients then counts twice, which errs on the safe side. Alone it is scipy's
    `ttest_1samp`, which has no place for a second variance.

    Args:
        differences: One a seed, paired: the same split and the same start for both rows.
        patient_variance: Variance of the mean difference over drawn patients; 0 for the plain test.
        level: Of the interval, in (0, 1).

    Returns:
        The test; together it is never surer than alone. Without any spread there is no p: seeds that all say exactly
        the same have not been independent.

    Raises:
        SettingsError: level or patient_variance is out of range.
    """
    if not 0 < level < 1 or not 0 <= patient_variance < np.inf:
        raise SettingsError(
            f"level is {level} and patient_variance {patient_variance}: use a level in (0, 1) and a variance of 0 or "
            "more."
        )
    values = np.asarray(differences, dtype=np.float64)
    n = values.size
    if n == 0:
        return SeedTest(0, None, None, None, None, None)
    mean = float(np.mean(values))
    if n < 2:
        return SeedTest(n, mean, None, None, None, None)
    sd = float(np.std(values, ddof=1))
    ways = [_error(n, sd, variance) for variance in {0.0, patient_variance}]
    if max(error for error, _ in ways) < _NO_SPREAD:
        return SeedTest(n, mean, sd, None, None, None)
    from scipy.special import stdtr, stdtrit

    # Welch's degrees of freedom may outgrow a small variance: what adds a chance must not make anything surer.
    tests = [
        (float(stdtrit(freedom, (1 + level) / 2)) * error, 2 * float(stdtr(freedom, -abs(mean) / error)))
        for error, freedom in ways
        if error >= _NO_SPREAD
    ]
    half, p = max(half for half, _ in tests), max(p for _, p in tests)
    return SeedTest(n, mean, sd, mean - half, mean + half, p)


def seeds_needed(sd: float, difference: float, patient_variance: float = 0.0) -> int | None:
    """Fewest seeds with which `seed_test` sees a difference at the 5 % level with a chance of 80 % (noncentral t).

    Args:
        sd: Standard deviation of the differences over seeds. From few seeds it is itself a rough guess: from three,
            the true one may be half as large or six times as large.
        difference: The true mean difference to be seen; its sign does not matter.
        patient_variance: As in `seed_test`; no number of seeds makes it smaller.

    Returns:
        A number of 2 or more; None where there is nothing to see, or more than `MOST_SEEDS` were needed.

    Raises:
        SettingsError: A value is out of range.
    """
    if not (0 <= sd < np.inf and 0 <= patient_variance < np.inf):
        raise SettingsError(f"sd is {sd} and patient_variance {patient_variance}: use spreads of 0 or more.")
    if difference == 0:
        return None

    def enough(n: int) -> bool:
        return _power(*_error(n, sd, patient_variance), abs(difference), _LEVEL) >= _SIGHT

    low, high = 1, MOST_SEEDS
    if not enough(high):
        return None
    while high - low > 1:  # power grows with the number of seeds
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def smallest_seen(n: int, sd: float | None, patient_variance: float = 0.0, level: float = _LEVEL) -> float | None:
    """Smallest true mean difference that `seed_test` sees with so many seeds, alone and together, in 80 % of studies.

    Args:
        n: Number of seeds.
        sd: Standard deviation of the differences over seeds; None where it is not known.
        patient_variance: As in `seed_test`.
        level: Of the test, two-sided, in (0, 1).

    Returns:
        A difference of 0 or more, to a thousandth of itself; None with fewer than two seeds.
    """
    if sd is None or n < 2:
        return None
    return max(_seen(*_error(n, sd, variance), level) for variance in (0.0, patient_variance))


def _seen(error: float, freedom: float, level: float) -> float:
    if error < _NO_SPREAD:
        return 0.0
    low, high = 0.0, error
    while _power(error, freedom, high, level) < _SIGHT:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _power(error, freedom, middle, level) >= _SIGHT else (middle, high)
    return high


def _error(n: int, sd: float, patient_variance: float) -> tuple[float, float]:
    """Standard error of the mean difference, and its degrees of freedom; the patients' variance counts as known."""
    own = sd**2 / n
    both = own + patient_variance
    return sqrt(both), (min((n - 1) * (both / own) ** 2, _MOST_FREEDOM) if own > 0 else _MOST_FREEDOM)


def _power(error: float, freedom: float, difference: float, level: float) -> float:
    if error < _NO_SPREAD:
        return 1.0
    from scipy.special import nctdtr, stdtrit

    shift = difference / error
    bound = float(stdtrit(freedom, 1 - level / 2))
    missed = float(nctdtr(freedom, shift, bound))  # a verdict for the wrong side is no sight of it either
    return (
        1 - missed if np.isfinite(missed) else float(shift > bound)
    )  # the library gives up far out, where all is sure
