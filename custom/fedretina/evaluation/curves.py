"""The curves behind two figures: the reliability diagram (ECE) and the risk-coverage curve (AURC)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.exchange.min_count import place
from fedretina.metric_inputs import checked_errors
from fedretina.settings.scalars import CONFIDENCE_BINS


class Reliability(NamedTuple):
    """Answers counted by their confidence, in bins (lo, hi] of equal width.

    Attributes:
        edges: Bounds of the B bins [B + 1], 0 to 1.
        images: Answers in each bin [B].
        right: Right answers in each bin [B].
        confidence: Sum of the confidence in each bin [B].
    """

    edges: NDArray[np.float64]
    images: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def ece(self) -> float:
        """Expected calibration error of these bins, in [0, 1]."""
        return float(np.sum(np.abs(self.confidence - self.right)) / np.sum(self.images))


class RiskCoverage(NamedTuple):
    """Error rate of the surest answers, by how many are kept.

    Attributes:
        coverage: Share of the images kept [N], rising to 1.
        risk: Error rate among them [N], in [0, 1]; its mean is the AURC.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


def reliability(confidence: ArrayLike, right: ArrayLike, bins: int = CONFIDENCE_BINS) -> Reliability:
    """Count answers by their confidence.

    Args:
        confidence: Largest probability of each answer [N], N at least 1.
        right: Whether the answer was right [N].
        bins: Number of bins.

    Returns:
        The counts; an empty bin holds zeros.

    Raises:
        SettingsError: bins is below 1.
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(confidence, right)
    at = place(scores, bins)
    return Reliability(
        edges=np.linspace(0, 1, bins + 1),
        images=np.bincount(at, minlength=bins),
        right=np.bincount(at[verdicts], minlength=bins),
        confidence=np.bincount(at, weights=scores, minlength=bins).astype(np.float64),
    )


def risk_coverage(uncertainty: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """Error rate among the n surest answers, for n = 1 to N.

    Equal uncertainties share their errors evenly, as in `aurc`, so the order of the images changes nothing.

    Args:
        uncertainty: [N], larger means less sure; N at least 1.
        wrong: bool [N].

    Returns:
        The curve, N points.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=verdicts) / sizes
    kept = np.arange(1, scores.size + 1)
    return RiskCoverage(kept / scores.size, np.cumsum(np.repeat(share, sizes)) / kept)
