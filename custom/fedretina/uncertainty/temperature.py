"""One temperature per site, so that its probabilities are as often right as they say."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.metric_inputs import checked_scores

TemperatureReason = Literal[
    "fitted", "too_few_images", "one_class", "no_errors", "too_few_errors", "uninformative", "at_bound"
]
LEAST_IMAGES = 20
LEAST_ERRORS = 5
BOUNDS = (0.05, 20.0)


class Temperature(NamedTuple):
    """A temperature and how it came about.

    Attributes:
        value: T, within `BOUNDS`; 1 leaves the probabilities as they are. Above 1 the model was too sure of itself.
        nll_before: Mean negative log likelihood at T = 1, in nats.
        nll_after: The same at `value`; never above `nll_before`.
        images: Number of images that it was fitted on.
        reason: "fitted", else why T stayed 1.
    """

    value: float
    nll_before: float
    nll_after: float
    images: int
    reason: TemperatureReason


def fit_temperature(probabilities: ArrayLike, labels: ArrayLike) -> Temperature:
    """The T that minimises the negative log likelihood of p^(1/T), normalised, on a validation split.

    For a softmax this is temperature scaling (Guo et al., ICML 2017): p^(1/T) normalised is the softmax of z / T. An
    evidential answer alpha / S has no such logits, and the same power acts on it. The largest class stays the largest.
    u is left alone: the referral threshold was set on it as it is.

    Not by scikit-learn's `CalibratedClassifierCV(method="temperature")`, which knows none of the reasons below to leave
    T at 1.

    The loss is convex in 1/T, so a bounded search on log T finds its one minimum. Where the data cannot bear a
    temperature, T stays 1, the first that holds:

    | case | reason | why |
    |---|---|---|
    | fewer than 20 images | too_few_images | T would follow single images |
    | one true class | one_class | it would learn how common the class is, not how sure the model may be |
    | every answer right | no_errors | the loss falls without end as T goes to 0: a certainty that nothing vouches for |
    | fewer than 5 wrong | too_few_errors | T would be low, so sure, on the word of a few images |
    | no better than uniform | uninformative | the minimum lies at 1/T <= 0: no temperature mends it |
    | minimum at an end of `BOUNDS` | at_bound | something else is wrong with the model |

    Args:
        probabilities: [N, K]; rows sum to 1.
        labels: [N], 0 to K - 1.

    Returns:
        The temperature.

    Raises:
        TrainingError: No images; shapes or labels are unfit; or rows that are no probabilities, NaN among them.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    matrix, classes = checked_scores(probabilities, labels)
    logs = _logs(matrix)
    rows = np.arange(classes.size)

    def loss(log_temperature: float) -> float:
        return float(-np.mean(log_softmax(logs / math.exp(log_temperature), axis=1)[rows, classes]))

    before = loss(0.0)
    kept = _obstacle(logs, matrix, classes)
    if kept is not None:
        return Temperature(1.0, before, before, classes.size, kept)
    low, high = math.log(BOUNDS[0]), math.log(BOUNDS[1])
    found = float(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6}).x)
    if min(found - low, high - found) < 1e-3:
        return Temperature(1.0, before, before, classes.size, "at_bound")
    after = loss(found)
    if after >= before:  # the search stops within a millionth of the minimum, so 1 may be the better of the two
        return Temperature(1.0, before, before, classes.size, "fitted")
    return Temperature(math.exp(found), before, after, classes.size, "fitted")


def tempered(probabilities: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """p^(1/T), each row normalised; the very same numbers where T is 1.

    Args:
        probabilities: [N, K]; rows sum to 1.
        temperature: T, finite and above 0.

    Returns:
        float64 [N, K].

    Raises:
        SettingsError: T is not a finite number above 0.
        TrainingError: The rows are no probabilities.
    """
    from scipy.special import softmax

    if not (math.isfinite(temperature) and temperature > 0):
        raise SettingsError(f"temperature is {temperature}; it must be a finite number above 0, and 1 changes nothing.")
    matrix = np.asarray(probabilities, dtype=np.float64)
    logs = _logs(matrix)
    return matrix.copy() if temperature == 1 else np.asarray(softmax(logs / temperature, axis=1), dtype=np.float64)


def _logs(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    # A probability of 0 counts as the smallest normal number, as in `metrics.nll`, so that no loss is infinite.
    if matrix.ndim != 2 or not np.all(matrix >= 0) or not np.allclose(np.sum(matrix, axis=1), 1, atol=1e-6):
        raise TrainingError(
            "a temperature needs probabilities [N, K] that are not negative and sum to 1 in each row. Give what an "
            "estimator answers."
        )
    return np.asarray(np.log(np.maximum(matrix, np.finfo(np.float64).tiny)), dtype=np.float64)


def _obstacle(
    logs: NDArray[np.float64], matrix: NDArray[np.float64], classes: NDArray[np.int64]
) -> TemperatureReason | None:
    errors = int(np.sum(np.argmax(matrix, axis=1) != classes))
    # The slope of the loss at 1/T = 0: where it is not negative, the minimum lies at or below 0.
    slope = float(np.mean(logs) - np.mean(logs[np.arange(classes.size), classes]))
    found: tuple[tuple[TemperatureReason, bool], ...] = (
        ("too_few_images", classes.size < LEAST_IMAGES),
        ("one_class", bool(np.all(classes == classes[0]))),
        ("no_errors", errors == 0),
        ("too_few_errors", errors < LEAST_ERRORS),
        ("uninformative", slope >= 0),
    )
    return next((reason for reason, holds in found if holds), None)
