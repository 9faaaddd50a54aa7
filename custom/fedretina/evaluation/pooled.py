"""Figures over several sites from their binned answers alone, exact on the edges that all of them share.

Sites grade by different criteria, so their grades are never pooled. What is pooled here is only whether an answer
was right, by the site's own criteria, and how sure it claimed to be. A pooled figure also holds the differences
between the sites: u is K / S, so a site with more grades answers with a larger u, and a site with harder images errs
more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import RefusedError, TrainingError
from fedretina.evaluation.curves import RiskCoverage
from fedretina.settings.scalars import CONFIDENCE_BINS, MOST_GRADES, UNCERTAINTY_BINS, confusion_name


class SiteBrier(NamedTuple):
    """A site's Brier score and the number of images behind it."""

    brier: float
    images: int


def pool(sites: Sequence[Bins]) -> Bins:
    """Add up binned answers on the finest edges that all sites share.

    Raises:
        TrainingError: There are no sites.
    """
    if not sites:
        raise TrainingError("no site sent binned answers, so there is nothing to pool.")
    confidence, uncertainty = [site.confidence for site in sites], [site.uncertainty for site in sites]
    at = _shared([bins.ends for bins in confidence])
    where = _shared([bins.ends for bins in uncertainty])
    return Bins(
        ConfidenceBins(
            at,
            np.sum([_onto(at, bins.ends, bins.images) for bins in confidence], axis=0),
            np.sum([_onto(at, bins.ends, bins.right) for bins in confidence], axis=0),
            np.sum([_onto(at, bins.ends, bins.confidence) for bins in confidence], axis=0),
        ),
        UncertaintyBins(
            where,
            np.sum([_onto(where, bins.ends, bins.images) for bins in uncertainty], axis=0),
            np.sum([_onto(where, bins.ends, bins.wrong) for bins in uncertainty], axis=0),
        ),
    )


def pooled_ece(bins: Bins) -> float:
    """Expected calibration error of the pooled answers on these edges, in [0, 1].

    Merged bins hide errors that cancel inside them, so fewer edges give a smaller figure: name their number.
    """
    counted = bins.confidence
    return float(np.sum(np.abs(counted.confidence - counted.right)) / np.sum(counted.images))


def pooled_brier(sites: Sequence[SiteBrier]) -> float | None:
    """Brier score over all images: the sites' mean, weighted by images; None without sites."""
    images = sum(site.images for site in sites)
    return sum(site.brier * site.images for site in sites) / images if images else None


def pooled_error_auroc(bins: Bins) -> float | None:
    """Chance that a wrong answer stands in a less certain bin than a right one, half a point for the same bin.

    It is the AUROC of the pooled images with u replaced by its bin.

    Returns:
        A number in [0, 1]; None without a wrong or without a right answer.
    """
    counted = bins.uncertainty
    right = counted.images - counted.wrong
    pairs = int(np.sum(counted.wrong)) * int(np.sum(right))
    if not pairs:
        return None
    return float(np.sum(counted.wrong * (np.cumsum(right) - right / 2)) / pairs)


def pooled_risk_coverage(bins: Bins) -> RiskCoverage:
    """Error rate of the surest answers, a point at the end of each bin that holds answers."""
    counted = bins.uncertainty
    kept = np.cumsum(counted.images)
    there = counted.images > 0
    return RiskCoverage((kept / kept[-1])[there], np.cumsum(counted.wrong)[there] / kept[there])


def _shared(ends: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.asarray(reduce(np.intersect1d, ends), dtype=np.int64)


def _onto(shared: NDArray[np.int64], ends: NDArray[np.int64], values: NDArray[Any]) -> NDArray[Any]:
    starts = np.concatenate([[0], np.searchsorted(ends, shared[:-1], side="right")])
    added: NDArray[Any] = np.add.reduceat(values, starts)
    return added


class ConfidenceBins(NamedTuple):
    """Answers by confidence; bin b holds those in (edges[b], edges[b + 1]], 0 in the first.

    Attributes:
        ends: Last fine bin of each merged one [B], rising to 14.
        images: Answers [B].
        right: Right answers [B].
        confidence: Sum of their confidence [B].
    """

    ends: NDArray[np.int64]
    images: NDArray[np.int64]
    right: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @property
    def edges(self) -> NDArray[np.float64]:
        """Bounds of the merged bins [B + 1], 0 to 1."""
        return _edges(self.ends, CONFIDENCE_BINS)


class UncertaintyBins(NamedTuple):
    """Answers by uncertainty, in bins as above.

    Attributes:
        ends: Last fine bin of each merged one [B], rising to 19.
        images: Answers [B].
        wrong: Wrong answers [B].
    """

    ends: NDArray[np.int64]
    images: NDArray[np.int64]
    wrong: NDArray[np.int64]

    @property
    def edges(self) -> NDArray[np.float64]:
        """Bounds of the merged bins [B + 1], 0 to 1."""
        return _edges(self.ends, UNCERTAINTY_BINS)


class Bins(NamedTuple):
    """The binned answers of one site, or of several together."""

    confidence: ConfidenceBins
    uncertainty: UncertaintyBins


def decode(scalars: Mapping[str, float]) -> Bins | None:
    """Read a site's binned answers.

    Args:
        scalars: What a site sent; names that mean something else are not read.

    Returns:
        The bins; None where the site sent none.

    Raises:
        RefusedError: The counts contradict each other.
    """
    confidence_at = _ends(scalars, "confidence", CONFIDENCE_BINS)
    uncertainty_at = _ends(scalars, "uncertainty", UNCERTAINTY_BINS)
    if not confidence_at and not uncertainty_at:
        return None

    def column(kind: str, ends: list[int], what: str) -> NDArray[np.float64]:
        values = [scalars.get(f"bin_{kind}_{end:02}_{what}", np.nan) for end in ends]
        return np.array(values, dtype=np.float64)

    confidence, uncertainty = (
        {what: column(kind, ends, what) for what in whats}
        for kind, ends, whats in (
            ("confidence", confidence_at, ("images", "right", "confidence_sum")),
            ("uncertainty", uncertainty_at, ("images", "wrong")),
        )
    )
    counts = (confidence["images"], confidence["right"], uncertainty["images"], uncertainty["wrong"])
    sound = (
        confidence_at[-1:] == [CONFIDENCE_BINS - 1]
        and uncertainty_at[-1:] == [UNCERTAINTY_BINS - 1]
        and all(bool(np.all(np.isfinite(values) & (values >= 0) & (values % 1 == 0))) for values in counts)
        and bool(np.all(confidence["right"] <= confidence["images"]))
        and bool(np.all(uncertainty["wrong"] <= uncertainty["images"]))
        and bool(np.all((confidence["confidence_sum"] >= 0) & (confidence["confidence_sum"] <= confidence["images"])))
        and float(np.sum(confidence["images"])) == float(np.sum(uncertainty["images"]))
        and float(np.sum(confidence["images"] - confidence["right"])) == float(np.sum(uncertainty["wrong"]))
    )
    if not sound:
        raise RefusedError("the binned answers contradict each other: the site must count them again.")
    return Bins(
        ConfidenceBins(
            np.array(confidence_at),
            confidence["images"].astype(np.int64),
            confidence["right"].astype(np.int64),
            confidence["confidence_sum"],
        ),
        UncertaintyBins(
            np.array(uncertainty_at),
            uncertainty["images"].astype(np.int64),
            uncertainty["wrong"].astype(np.int64),
        ),
    )


def confusion(scalars: Mapping[str, float], grades: int) -> list[list[int | None]] | None:
    """Read a site's confusion matrix [true][answer]; None for a cell that was withheld, or for all.

    Args:
        scalars: What a site sent.
        grades: Its number of grades; above 20 there is no matrix.
    """
    if grades > MOST_GRADES:
        return None
    table = [[scalars.get(confusion_name(true, answer)) for answer in range(grades)] for true in range(grades)]
    if all(cell is None for row in table for cell in row):
        return None
    return [[None if cell is None else round(cell) for cell in row] for row in table]


def _edges(ends: NDArray[np.int64], bins: int) -> NDArray[np.float64]:
    return np.asarray(np.linspace(0, 1, bins + 1)[np.concatenate([[0], ends + 1])], dtype=np.float64)


def _ends(scalars: Mapping[str, float], kind: str, bins: int) -> list[int]:
    return [at for at in range(bins) if f"bin_{kind}_{at:02}_images" in scalars]
