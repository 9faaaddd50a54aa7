"""The paired test over seeds, and how many seeds a claim needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np

from fedretina.errors import SettingsError

MOST_SEEDS = 1000
_NO_SPREAD = 1e-12  # rounding alone


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


def seed_test(differences: Sequence[float], shared: float = 0.0, level: float = 0.95) -> SeedTest:
    """Student's paired t test over seeds, the likeliest test behind FedUAA's Table 4 (the paper names none).

    On one split of the patients it asks whether another training would come out alike; it knows nothing of other
    patients. Seeds that split the patients anew still share many, so that they agree more than seeds with fresh
    patients would. Nadeau and Bengio (Machine Learning 2003) mend it: for a correlation r of two seeds the variance of
    the mean is not 1 / n of theirs but 1 / n + r / (1 - r). Their r is the test split's share of all images, which is
    the share that two random test splits have in common; here that share is given as it was measured, because
    splits may leave images out.

    Args:
        differences: One a seed, paired: the same split and the same start for both rows.
        shared: Share of a seed's test patients that another seed tests too, in [0, 1); 0 for the plain test.
        level: Of the interval, in (0, 1).

    Returns:
        The test. Without spread there is no p: seeds that all say exactly the same have not been independent.

    Raises:
        SettingsError: level or shared is out of range.
    """
    if not 0 < level < 1 or not 0 <= shared < 1:
        raise SettingsError(f"level is {level} and shared {shared}: use a level in (0, 1) and a share in [0, 1).")
    values = np.asarray(differences, dtype=np.float64)
    n = values.size
    if n == 0:
        return SeedTest(0, None, None, None, None, None)
    mean = float(np.mean(values))
    if n < 2:
        return SeedTest(n, mean, None, None, None, None)
    sd = float(np.std(values, ddof=1))
    if sd < _NO_SPREAD:
        return SeedTest(n, mean, sd, None, None, None)
    from scipy.special import stdtr, stdtrit

    error = sd * sqrt(1 / n + shared / (1 - shared))
    half = float(stdtrit(n - 1, (1 + level) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return SeedTest(n, mean, sd, mean - half, mean + half, p)


def seeds_needed(
    sd: float, difference: float, shared: float = 0.0, power: float = 0.8, level: float = 0.05
) -> int | None:
    """Fewest seeds with which the paired t test sees a difference (noncentral t).

    Args:
        sd: Standard deviation of the differences over seeds. From few seeds it is itself a rough guess: from three,
            the true one may be half as large or six times as large.
        difference: The true mean difference to be seen; its sign does not matter.
        shared: As in `seed_test`. Where seeds share patients, their number helps only so far.
        power: Chance to see it, in (0, 1).
        level: Of the test, two-sided, in (0, 1).

    Returns:
        A number of 2 or more; None where there is nothing to see, or more than `MOST_SEEDS` were needed.

    Raises:
        SettingsError: sd is negative or not finite, or another value is out of range.
    """
    if not (np.isfinite(sd) and sd >= 0 and 0 <= shared < 1 and 0 < power < 1 and 0 < level < 1):
        raise SettingsError(
            f"sd is {sd}, shared {shared}, power {power} and level {level}: use a spread of 0 or more, and shares in "
            "(0, 1)."
        )
    if difference == 0:
        return None
    low, high = 1, MOST_SEEDS
    if _power(high, sd, abs(difference), shared, level) < power:
        return None
    while high - low > 1:  # power grows with the number of seeds
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, sd, abs(difference), shared, level) >= power else (middle, high)
    return high


def _power(n: int, sd: float, difference: float, shared: float, level: float) -> float:
    if sd < _NO_SPREAD:
        return 1.0
    from scipy.special import nctdtr, stdtrit

    shift = difference / (sd * sqrt(1 / n + shared / (1 - shared)))
    bound = float(stdtrit(n - 1, 1 - level / 2))
    missed = float(nctdtr(n - 1, shift, bound))  # a verdict for the wrong side is no sight of it either
    return (
        1 - missed if np.isfinite(missed) else float(shift > bound)
    )  # the library gives up far out, where all is sure
