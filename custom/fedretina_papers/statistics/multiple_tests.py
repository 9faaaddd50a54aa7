"""Several tests together: over sites, over seeds that share patients, and over all rows that were compared."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, sqrt
from typing import NamedTuple

from fedretina.errors import SettingsError


class Combined(NamedTuple):
    """Several z values as one.

    Attributes:
        z: The combined value; None where there was none to combine.
        p: Two-sided; None with z.
        used: How many values went in.
    """

    z: float | None
    p: float | None
    used: int


class Averaged(NamedTuple):
    """Differences of several seeds as one.

    Attributes:
        difference: Their mean; None without any.
        variance: Of the mean, at most; None where a seed has none.
        z: difference / sqrt(variance), 0 where no seed differs; None where it cannot be told.
        p: Two-sided; None with z.
        used: How many seeds went in.
    """

    difference: float | None
    variance: float | None
    z: float | None
    p: float | None
    used: int


def two_sided(z: float) -> float:
    """Chance of a standard normal number at least as far from 0 as z."""
    return erfc(abs(z) / sqrt(2))


def stouffer(values: Sequence[float | None]) -> Combined:
    """Combine the z values of independent sites with equal weights: their sum over the root of their number.

    Stouffer's way and not Fisher's, because signs count: a row that wins at one site and loses at the next must come
    out even, where Fisher's would call both remarkable. Equal weights, because the tables' mean gives every site the
    same weight too. Sites that have no z are left out, and `used` says how many were not. Scipy's `combine_pvalues`
    takes p values, which have no sign.

    Args:
        values: A z a site, with signs; None where a site has none.
    """
    known = [value for value in values if value is not None]
    if not known:
        return Combined(None, None, 0)
    z = sum(known) / sqrt(len(known))
    return Combined(z, two_sided(z), len(known))


def over_dependent(differences: Sequence[float], variances: Sequence[float | None]) -> Averaged:
    """Average the differences of seeds whose test sets share patients.

    Such seeds are no independent witnesses, so their number must not shrink the variance: that of the mean of equally
    uncertain figures is at most their mean variance, whatever binds them (reached where they agree fully). Dividing
    by the root of the mean variance is therefore on the safe side; for seeds without common patients it is far on it.

    Args:
        differences: One a seed.
        variances: Of each difference; None where a seed has none.

    Raises:
        SettingsError: The lengths differ.
    """
    if len(differences) != len(variances):
        raise SettingsError(
            f"got {len(differences)} differences and {len(variances)} variances: give one of each a seed."
        )
    if not differences:
        return Averaged(None, None, None, None, 0)
    mean = sum(differences) / len(differences)
    known = [variance for variance in variances if variance is not None]
    if len(known) < len(variances):
        return Averaged(mean, None, None, None, len(differences))
    variance = sum(known) / len(known)
    if variance <= 0:
        alike = all(value == 0 for value in differences)
        return Averaged(mean, variance, 0.0 if alike else None, 1.0 if alike else None, len(differences))
    z = mean / sqrt(variance)
    return Averaged(mean, variance, z, two_sided(z), len(differences))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for their number (Holm, Scandinavian Journal of Statistics 1979).

    The k-th smallest of m is multiplied by m - k + 1, and none may be below one before it. To call all those below
    0.05 differences is then wrong anywhere in at most 5 % of such families, however the tests depend on each other.
    Scipy has `false_discovery_control` alone, which promises less.

    Args:
        p_values: Of one family; None for a comparison without a test, which does not count.

    Returns:
        Adjusted values in the same order, at most 1; None where there was none.

    Raises:
        SettingsError: A value is outside [0, 1].
    """
    known = sorted((value, at) for at, value in enumerate(p_values) if value is not None)
    if any(not 0 <= value <= 1 for value, _ in known):
        raise SettingsError("a p value is outside [0, 1]: give probabilities.")
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for smaller, (value, at) in enumerate(known):
        least = max(least, min(1.0, (len(known) - smaller) * value))
        adjusted[at] = least
    return adjusted
