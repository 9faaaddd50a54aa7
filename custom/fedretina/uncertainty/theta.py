"""The threshold theta of a site: the uncertainty that best parts its right answers from its wrong ones.

FedUAA weighs sites by softmax(theta), so a theta that is infinite or NaN destroys the global model in one
round. Here theta is finite whatever the data, and every theta carries the reason for its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import TrainingError
from fedretina.parts import Register
from fedretina.settings.theta import OfficialSettings, ThetaSettings, YoudenSettings

Reason = Literal[
    "youden",
    "too_few_patients",
    "empty",
    "not_finite",
    "no_errors",
    "all_errors",
    "too_few_errors",
    "too_few_right",
    "tied",
    "uninformative",
]


HALF = 0.5  # the official code's value when it finds no ROC


class Theta(NamedTuple):
    """A site's threshold and how it came about.

    Attributes:
        value: theta in (0, 1]; up to 2 under the official rule, or where such a theta is `previous`.
        youden: J = TPR - FPR at the threshold, in (0, 1]; None where theta was not measured.
        reason: "youden" if measured, else what stood in the way.
        errors: Number of wrong answers.
        samples: Number of answers.
    """

    value: float
    youden: float | None
    reason: Reason
    errors: int
    samples: int


theta_rule: Register[Callable[[NDArray[np.floating], NDArray[np.bool_], Any, float | None], Theta]] = Register(
    "fedretina.uncertainty.theta"
)
"""Registers the function below it as a rule of theta: of u, wrong, its settings and the site's last theta."""


def site_theta(
    u: NDArray[np.floating], wrong: NDArray[np.bool_], settings: ThetaSettings, previous: float | None
) -> Theta:
    """A site's theta by the rule that the settings choose; see `youden_theta` for what goes in and out."""
    return theta_rule.of(settings)(u, wrong, settings, previous)


def _checked(u: NDArray[np.floating], wrong: NDArray[np.bool_]) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    if u.ndim != 1 or u.shape != wrong.shape:
        raise TrainingError(
            "theta needs one uncertainty and one verdict per image, but got others. Collect both from the same forward "
            "passes."
        ).with_note(f"Their shapes are {u.shape} and {wrong.shape}.")
    if not np.isin(wrong, (0, 1)).all():
        raise TrainingError("theta needs a verdict of 0 (right) or 1 (wrong) an image, but found others.")
    if np.any(np.isfinite(u) & ((u < 0) | (u > 1))):
        raise TrainingError(
            "theta needs uncertainties in (0, 1], but found one outside. Give u = K / S of an evidential "
            "head, or an estimator whose range is 0 to 1."
        )
    return u, wrong.astype(np.bool_)


def _obstacle(u: NDArray[np.floating], errors: int, least: int) -> Reason | None:
    """First reason, in a fixed order, why no ROC curve can be trusted."""
    right = u.size - errors
    found: tuple[tuple[Reason, bool], ...] = (
        ("empty", u.size == 0),
        ("not_finite", not bool(np.isfinite(u).all())),
        ("no_errors", errors == 0),
        ("all_errors", right == 0),
        ("too_few_errors", errors < least),
        ("too_few_right", right < least),
        ("tied", bool((u == u[:1]).all())),
    )
    return next((reason for reason, holds in found if holds), None)


def _median(u: NDArray[np.floating], previous: float | None) -> float:
    middle = float(np.median(u)) if u.size else HALF
    return middle if math.isfinite(middle) and middle > 0 else HALF


_FALLBACKS: Mapping[str, Callable[[NDArray[np.floating], float | None], float]] = MappingProxyType(
    {
        "previous": lambda u, previous: HALF if previous is None else previous,
        "half": lambda u, previous: HALF,
        "median_u": _median,
    }
)


@theta_rule(YoudenSettings)
def youden_theta(
    u: NDArray[np.floating], wrong: NDArray[np.bool_], settings: YoudenSettings, previous: float | None
) -> Theta:
    """The observed uncertainty that maximises Youden's J = TPR - FPR (FedUAA Eq. 3, supplement B).

    Positive is a wrong answer, the score is u, an image is flagged when u >= theta. Candidates are the
    observed values of u, in descending order; of equal J the first wins, that is the largest theta. J is
    compared in whole numbers, so rounding decides no tie.

    Differs from the official code, which takes the first point of scikit-learn's `roc_curve` as well
    (infinite since 1.3) and hides an undefined curve behind a bare except: here only observed values count,
    and a curve that is undefined, too thin or no better than chance (J <= 0) gives the fallback and says why.

    Args:
        u: Uncertainty [N] in (0, 1]. NaN or infinity anywhere gives the fallback, "not_finite".
        wrong: Whether the answer was wrong [N], bool or 0 and 1.
        settings: Fallback, least counts and smoothing.
        previous: The site's last theta, in (0, 2]; None in its first round.

    Returns:
        A theta that is always finite and above 0.

    Raises:
        TrainingError: The shapes differ, or a value or `previous` lies outside its range.
    """
    if previous is not None and not 0 < previous <= 2:
        raise TrainingError(f"The previous theta is {previous}, but a theta lies in (0, 2]. Start from None.")
    u, wrong = _checked(np.asarray(u), np.asarray(wrong))
    errors = int(wrong.sum())
    right = u.size - errors
    obstacle = _obstacle(u, errors, settings.min_errors)
    if obstacle is None:
        curve = roc(u, wrong)
        gain = curve.hits * right - curve.alarms * errors  # J x errors x right
        best = int(np.argmax(gain))
        if gain[best] > 0:
            value = float(curve.thresholds[best])
            if previous is not None:
                value = settings.smoothing * previous + (1 - settings.smoothing) * value
            return Theta(value, float(gain[best]) / (errors * right), "youden", errors, u.size)
        obstacle = "uninformative"
    return Theta(_FALLBACKS[settings.fallback](u, previous), None, obstacle, errors, u.size)


@theta_rule(OfficialSettings)
def official_theta(
    u: NDArray[np.floating], wrong: NDArray[np.bool_], settings: OfficialSettings, previous: float | None
) -> Theta:
    """Theta as the published FedUAA code (2025-07-10) computes it, kept for reproductions.

    It maximises TPR - FPR, in floating point, over scikit-learn's `roc_curve` with its first point. Where
    scikit-learn fails or the curve is undefined (no images, NaN, no errors, all errors) the code's bare
    except gives 0.5. Where no threshold beats J = 0 the first point wins: +inf since scikit-learn 1.3,
    max(u) + 1 before. We return max(u) + 1, at most 2, so that softmax(theta) stays defined; with a recent
    scikit-learn the published code sends inf there and the global model becomes NaN.

    Args:
        u: Uncertainty [N] in (0, 1].
        wrong: Whether the answer was wrong [N], bool or 0 and 1.
        settings: Not read: the rule has none of its own.
        previous: Not read.

    Returns:
        A theta in (0, 2]. J is None unless the reason is "youden".

    Raises:
        TrainingError: The shapes differ or a value lies outside its range.
    """
    u, wrong = _checked(np.asarray(u), np.asarray(wrong))
    errors = int(wrong.sum())
    obstacle = _obstacle(u, errors, least=0)
    if obstacle not in (None, "tied"):
        return Theta(HALF, None, obstacle, errors, u.size)
    curve = roc(u, wrong)
    kept = np.ones(curve.hits.size, dtype=bool)  # roc_curve leaves out points between equal steps
    if kept.size > 2:
        kept[1:-1] = (np.diff(curve.hits, 2) != 0) | (np.diff(curve.alarms, 2) != 0)
    gain = curve.hits[kept] / errors - curve.alarms[kept] / (u.size - errors)  # J
    best = int(np.argmax(gain))
    if gain[best] > 0:
        return Theta(float(curve.thresholds[kept][best]), float(gain[best]), "youden", errors, u.size)
    first = min(float(curve.thresholds[0]) + 1, 2.0)
    return Theta(first, None, obstacle or "uninformative", errors, u.size)


class Roc(NamedTuple):
    """The points of a ROC curve at the observed scores, as whole numbers, without the point at infinity.

    Attributes:
        thresholds: Distinct scores, descending [M].
        hits: Positives with score >= threshold [M].
        alarms: Negatives with score >= threshold [M].
    """

    thresholds: NDArray[np.floating]
    hits: NDArray[np.int64]
    alarms: NDArray[np.int64]


def roc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> Roc:
    """Count hits and false alarms of the rule "score >= threshold" in O(N log N).

    The points are those of scikit-learn's `roc_curve(drop_intermediate=False)` without its first, which
    lies at an infinite threshold. Counts instead of rates keep comparisons free of rounding.

    Args:
        scores: Finite [N], N at least 1.
        positive: bool [N].

    Returns:
        The curve.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), scores.size - 1)
    hits = np.cumsum(positive[order], dtype=np.int64)[ends]
    return Roc(ranked[ends], hits, ends + 1 - hits)
