"""Figures over several sites from their binned answers alone, exact on the edges that all of them share.

Sites grade by different criteria, so their grades are never pooled. What is pooled here is only whether an answer
was right, by the site's own criteria, and how sure it claimed to be. A pooled figure also holds the differences
between the sites: u is K / S, so a site with more grades answers with a larger u, and a site with harder images errs
more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import TrainingError
from fedretina.evaluation.binned_answers import Bins, ConfidenceBins, UncertaintyBins
from fedretina.evaluation.curves import RiskCoverage


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
