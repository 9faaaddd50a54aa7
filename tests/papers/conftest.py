"""One made benchmark with its statistics, shared by the tests that only read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import write_benchmark

from fedretina_papers.compared import statistics

ROWS = ("singleset", "fedbn", "moon", "feduaa", "feduaa_tuned")


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Five planned rows of which MOON was not run; the variant answers exactly as FedUAA does."""
    out = tmp_path_factory.mktemp("made")
    run = tuple(row for row in ROWS if row != "moon")
    write_benchmark(out, ROWS, run=run, twins={"feduaa_tuned": "feduaa"})
    statistics(out, draws=300)
    return out
