"""The exact interval of a share: k of n, and where the true share may lie."""

from __future__ import annotations

from typing import NamedTuple

from fedretina.errors import SettingsError


class Share(NamedTuple):
    """A share with its interval.

    Attributes:
        k: How many.
        n: Of how many, 1 or more.
        value: k / n.
        low: Lower bound, in [0, value].
        high: Upper bound, in [value, 1].
    """

    k: int
    n: int
    value: float
    low: float
    high: float


def exact_interval(k: int, n: int, confidence: float = 0.95) -> Share | None:
    """Clopper and Pearson's interval (Biometrika 1934), by quantiles of the beta distribution.

    It covers the true share at least as often as it says, however small n is. The usual interval, value plus or minus
    two standard errors, has no width at 0 of n, where a hospital most needs to know how far to trust it.

    The n must be independent of each other: count patients, not eyes.

    Args:
        k: How many, 0 to n.
        n: Of how many.
        confidence: In (0, 1).

    Returns:
        The share; None for n = 0, where there is none.

    Raises:
        SettingsError: k is not within 0 to n, or confidence not within (0, 1).
    """
    from scipy.special import betaincinv

    if not 0 <= k <= n or not 0 < confidence < 1:
        raise SettingsError(
            f"an interval was asked for {k} of {n} at confidence {confidence}: give 0 <= k <= n and a confidence "
            "between 0 and 1, such as 0.95."
        )
    if n == 0:
        return None
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Share(k, n, k / n, low, high)
