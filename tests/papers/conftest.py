"""One made benchmark with its statistics, shared by the tests that only read it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_runs import write_benchmark

from fedretina_papers import runner
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


class Here(Executor):
    """Does each work at once and in this process, as a pool of processes does it elsewhere."""

    def __init__(self, **_: object) -> None:
        super().__init__()

    def submit(self, do, /, *words):
        """See `Executor.submit`."""
        future = Future()
        try:
            future.set_result(do(*words))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)
        return future


@contextmanager
def _in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "ProcessPoolExecutor", Here)
        yield


@pytest.fixture
def runs_here(little_encoder) -> Iterator[None]:
    """Runs of a benchmark in this process, over a little network.

    In processes of their own, over the whole one: tests/papers/test_command.py.
    """
    with _in_this_process():
        yield


@pytest.fixture(scope="module")
def all_runs_here(little_encoders) -> Iterator[None]:
    """As `runs_here`, for what all tests of a file share."""
    with _in_this_process():
        yield
