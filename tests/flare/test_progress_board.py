"""What the admin side sees of the running step."""

import pytest

from fedretina.aggregation.coordinator import Progress
from fedretina.flare import progress_board
from fedretina.flare.progress_board import ProgressBoard, Report
from fedretina.settings.plan import Step

TRAIN = Step(1, "train", "train", 1, 3)


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until it is told."""
    hands = [100.0]
    monkeypatch.setattr(progress_board.time, "monotonic", lambda: hands[0])
    return hands


def progress(done, step, answered=(), refused=None, asked=("a", "b", "c", "d")):
    return Progress("r", done, 5, max(0, 3 - done), step, 0, asked, answered, refused or {})


def test_sites_are_answered_refused_or_waited_for(now):
    board = ProgressBoard()
    board.begin()
    now[0] += 2.5
    report = board.report(progress(1, TRAIN, ("b", "a"), {"d": "too late."}))
    assert (report.answered, report.waiting, report.refused) == (["a", "b"], ["c"], {"d": "too late."})
    assert (report.phase, report.round, report.rounds, report.attempt) == ("train", 2, 3, 1)
    assert report.seconds == 2.5
    assert report.seconds_left is None  # no round of this job is done
    assert Report.read(report._asdict()) == report


def test_the_time_left_is_the_mean_of_the_last_rounds(now):
    board = ProgressBoard()
    for length in (50.0, 10.0, 20.0, 30.0):  # only the last three count
        board.begin()
        now[0] += length
        board.end(trained=True)
    board.begin()
    now[0] += 5.0
    assert board.report(progress(1, TRAIN)).seconds_left == 20.0 + 15.0  # rounds 2 and 3 of 3
    now[0] += 95.0
    assert board.report(progress(1, TRAIN)).seconds_left == 20.0  # late, but it has to end some time


def test_validation_and_the_end_have_no_estimate(now):
    board = ProgressBoard()
    board.begin()
    now[0] += 10.0
    board.end(trained=True)
    validate = board.report(progress(3, Step(3, "validate", "validate", 0, 1)))
    assert (validate.task, validate.seconds_left, validate.seconds) == ("validate", None, 0.0)
    assert (board.report(progress(5, None)).task, board.report(progress(5, None)).round) == ("", 0)


@pytest.mark.parametrize("words", [None, "x", {}, {"run": "r"}, {**dict.fromkeys(Report._fields), "more": 1}])
def test_another_servers_words_are_no_report(words):
    assert Report.read(words) is None
