"""Pooling is exact on the shared edges: against the raw answers of all sites in one place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from raw_answers import SITES, Raw

from fedretina.errors import TrainingError
from fedretina.evaluation.curves import risk_coverage
from fedretina.evaluation.metrics import brier, error_detection_auroc
from fedretina.evaluation.pooled import (
    SiteBrier,
    decode,
    pool,
    pooled_brier,
    pooled_ece,
    pooled_error_auroc,
    pooled_risk_coverage,
)
from fedretina.exchange.min_count import encode, place


def on_edges(values: np.ndarray, ends: np.ndarray, fine: int) -> np.ndarray:
    return np.searchsorted(ends, place(values, fine), side="left")


def test_pooled_figures_are_those_of_the_pooled_answers_on_the_shared_edges():
    found = [decode(raw.sent()) for raw in SITES]
    pooled = pool(found)
    shared = set(range(15)).intersection(*(bins.confidence.ends.tolist() for bins in found))
    assert pooled.confidence.ends.tolist() == sorted(shared)
    assert 1 < len(pooled.uncertainty.ends) < 20

    confidence = np.concatenate([raw.probabilities.max(1) for raw in SITES])
    wrong = np.concatenate([raw.wrong for raw in SITES])
    u = np.concatenate([raw.uncertainty for raw in SITES])
    bins = on_edges(confidence, pooled.confidence.ends, 15)
    slow = sum(abs(confidence[bins == b].sum() - (~wrong)[bins == b].sum()) for b in range(len(pooled.confidence.ends)))
    assert pooled_ece(pooled) == pytest.approx(slow / wrong.size, abs=1e-12)
    binned = on_edges(u, pooled.uncertainty.ends, 20)
    assert pooled_error_auroc(pooled) == pytest.approx(error_detection_auroc(binned, wrong), abs=1e-12)
    curve, raw_curve = pooled_risk_coverage(pooled), risk_coverage(binned, wrong)
    for coverage, risk in zip(*curve, strict=True):
        at = int(np.argmin(np.abs(raw_curve.coverage - coverage)))
        assert raw_curve.coverage[at] == pytest.approx(coverage)
        assert raw_curve.risk[at] == pytest.approx(risk)


def test_pooling_one_site_changes_nothing_and_the_order_of_sites_does_not_matter():
    found = [decode(raw.sent()) for raw in SITES]
    alone = pool(found[:1])
    for one, other in zip(itertools.chain(*found[0]), itertools.chain(*alone), strict=True):
        assert np.array_equal(one, other)
    assert pooled_ece(pool(found)) == pytest.approx(pooled_ece(pool(found[::-1])), abs=1e-15)


def test_the_pooled_brier_score_is_that_of_all_images():
    raws = [Raw(1, 30), Raw(2, 70)]
    parts = [SiteBrier(brier(raw.probabilities, raw.labels), raw.labels.size) for raw in raws]
    whole = brier(np.concatenate([r.probabilities for r in raws]), np.concatenate([r.labels for r in raws]))
    assert pooled_brier(parts) == pytest.approx(whole, abs=1e-14)
    assert pooled_brier([]) is None


def test_without_errors_there_is_no_pooled_auroc():
    labels = np.zeros(20, int)
    sent = encode(np.tile([0.9, 0.1], (20, 1)), labels, np.linspace(0, 1, 20), [str(n) for n in range(20)])
    assert pooled_error_auroc(pool([decode(sent)])) is None
    assert pooled_risk_coverage(pool([decode(sent)])).risk.tolist() == [0, 0, 0]
    with pytest.raises(TrainingError, match="no site"):
        pool([])
