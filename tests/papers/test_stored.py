"""Differences of rows, read off the records."""

from __future__ import annotations

import pytest

from fedretina_papers.stored import Benchmark


def record(**sites):
    return {"sites": {site: {"test": {"auc": value}} for site, value in sites.items()}}


@pytest.fixture
def stored():
    runs = {
        "ours": {1: record(a=0.9, b=0.8), 2: record(a=0.7, b=None), 3: record(a=0.5, b=0.5)},
        "theirs": {2: record(a=0.6, b=0.1), 1: record(a=0.8, b=0.5), 4: record(a=0.1, b=0.1)},
    }
    return Benchmark({"sites": ["a", "b"]}, runs)


def test_gaps_are_of_shared_seeds_and_of_sites_that_both_have(stored):
    assert stored.gaps("ours", "theirs", "auc") == pytest.approx([0.2, 0.1])
    assert stored.gaps("theirs", "ours", "auc") == pytest.approx([-0.2, -0.1])
    assert stored.gaps("ours", "theirs", "auc", ["b"]) == pytest.approx([0.3])


def test_a_row_that_was_not_run_has_no_gaps(stored):
    assert stored.gaps("ours", "nothing", "auc") == []
    assert stored.gaps("ours", "theirs", "kappa") == []
