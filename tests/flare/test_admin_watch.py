"""Following a job, against a server made of a list of moments."""

import re

import pytest

from fedretina.cli.admin import printable
from fedretina.errors import AWAITS, NotDoneError, TimeOverError, UnreachableError
from fedretina.flare import admin_runs
from fedretina.flare.admin_runs import see, watch
from fedretina.flare.admin_session import Federation
from fedretina.flare.progress_board import Report
from fedretina.kit.second_machine import SecondMachine
from printed import blocks, form

REPORT = Report("r", 1, 5, "train", "train", 2, 3, 1, [], ["a", "b"], {}, 0.5, 90.0)


class Moments:
    """Each look sees the next moment: a status, or a status and a report, or None while no server answers."""

    def __init__(self, *moments):
        self.moments, self.connections, self.started = list(moments), 0, 0.0
        self.second, self.refusals = (), 0

    def job(self, job_id):
        self.now = self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]
        if self.now is None:
            raise UnreachableError("gone")
        status = self.now if isinstance(self.now, str) else self.now[0]
        meta = {"job_id": job_id, "status": status, "last_schedule_time": 10.0, "duration": "0:01:02.5"}
        return {**meta, "deploy_map": {}}

    def report(self, job_id):
        return None if isinstance(self.now, str) else self.now[1]

    def federation(self):
        return Federation(self.started, (), frozenset())

    def second_machines(self):
        """One more refusal a look; of another site, of yesterday, too."""
        self.refusals += bool(self.second)
        return tuple(one._replace(times=self.refusals) for one in self.second)

    def connect(self):
        self.connections += 1


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Sleeping costs no time but moves the clock."""
    hands = [0.0]
    monkeypatch.setattr(admin_runs.time, "monotonic", lambda: hands[0])
    monkeypatch.setattr(admin_runs.time, "sleep", lambda seconds: hands.__setitem__(0, hands[0] + seconds))
    return hands


def lines(*moments, **words):
    return [sight.words() for sight in watch(Moments(*moments), "x", **words)]


def test_every_change_is_told_once_and_the_last_is_the_end():
    half = REPORT._replace(answered=["b"], waiting=["a"], seconds_left=75.4)
    late = half._replace(waiting=[], refused={"a": "it did not answer in time."}, seconds_left=None)
    told = lines(
        "SUBMITTED",
        "SUBMITTED",
        "RUNNING",
        ("RUNNING", REPORT),
        ("RUNNING", REPORT._replace(seconds=9.0, seconds_left=80.0)),  # no news but the time
        ("RUNNING", half),
        ("RUNNING", late),
        (
            "RUNNING",
            REPORT._replace(task="validate", phase="validate", answered=["a", "b"], waiting=[], seconds_left=None),
        ),
        ("RUNNING", REPORT._replace(task="", done=5)),
        "FINISHED:COMPLETED",
    )
    assert told == [
        "submitted; waits for its sites to be free",
        "RUNNING; its processes start or end",
        "train round 2 of 3: 0 of 2 sites answered; about 1 min 30 s of training left",
        "train round 2 of 3: 1 of 2 sites answered; waiting for a; about 1 min 15 s of training left",
        "train round 2 of 3: 1 of 2 sites answered; a does not count: it did not answer in time",
        "validate: 2 of 2 sites answered",
        "all steps are done; its processes end",
        "FINISHED:COMPLETED after 0:01:02",
    ]


def test_a_site_that_waits_for_its_hospital_is_told_as_that():
    waits = REPORT._replace(answered=["b"], waiting=[], refused={"a": AWAITS}, seconds_left=None)
    told = see(Moments(("RUNNING", waits)), "x").words()
    assert told == "train round 2 of 3: 1 of 2 sites answered; a is waiting for the hospital's approval"


def test_the_pages_show_moments_in_these_words():
    first = REPORT._replace(waiting=["site-1", "site-2"], seconds_left=None)
    half = {"answered": ["site-2"], "waiting": ["site-1"]}
    steps = [one._replace(**words) for one in (first, first._replace(seconds_left=90.0)) for words in ({}, half)]
    steps += [first._replace(task=task, **words) for task in ("validate", "finalise") for words in ({}, half)]
    steps += [first._replace(answered=["site-2"], waiting=[], refused={"site-1": AWAITS})]
    told = lines("SUBMITTED", "RUNNING", *(("RUNNING", step) for step in steps), "FINISHED:COMPLETED")
    told += lines("FINISHED:EXECUTION_EXCEPTION")
    for page in ("docs/admin.md", "poc/README.md"):
        shown = {line for block in blocks(page) for line in block.splitlines() if re.search(MOMENT, line)}
        assert len(shown) > 5
        assert {form(line).removeprefix("CLOCK  ") for line in shown} <= set(map(form, told))


MOMENT = "sites answered|RUNNING; its|FINISHED:[A-Z_]+ after [0-9]|submitted; waits"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (7384.0, "2 h 03 min")])
def test_the_time_left_in_words(seconds, words):
    sight = see(Moments(("RUNNING", REPORT._replace(seconds_left=seconds))), "x")
    assert f"about {words} of training left" in sight.words()


def test_a_server_that_is_restarted_is_waited_for(clock):
    session = Moments("RUNNING", None, None, "FINISHED:ABORTED")
    assert [sight.job.status for sight in watch(session, "x", 2.0)] == ["RUNNING", "FINISHED:ABORTED"]
    assert session.connections == 2


def test_a_server_that_stays_away_ends_the_watching(clock):
    with pytest.raises(UnreachableError):
        lines("RUNNING", None)
    assert 60.0 < clock[0] < 70.0


def test_the_time_is_over():
    with pytest.raises(NotDoneError, match="the time given; its status is RUNNING"):
        lines("RUNNING", timeout_s=10.0)


def test_the_time_is_over_while_the_server_is_silent():
    session = Moments("RUNNING", "RUNNING")
    look = session.job

    def job(job_id):
        if len(session.moments) == 1:
            raise TimeOverError("the time of --timeout was over before we could ask for a job.")
        return look(job_id)

    session.job = job
    with pytest.raises(NotDoneError, match="job x was RUNNING when it was last seen; the time of --timeout was over"):
        list(watch(session, "x"))


def test_a_job_that_waits_says_for_whom():
    session = Moments("SUBMITTED")
    job = session.job
    session.job = lambda job_id: {**job(job_id), "deploy_map": {"app": ["server", "b", "a", "c"]}}
    session.federation = lambda: Federation(0.0, ("b",), frozenset())
    assert see(session, "x").words() == "submitted; not connected: a, c"


def test_a_lost_job_is_over():
    session = Moments("RUNNING")
    session.started = 20.0
    (sight,) = watch(session, "x")
    assert (sight.over, sight.lost) == (True, True)
    assert "resume the run" in sight.words()


def test_a_second_machine_is_told_once_while_it_is_there():
    session = Moments("RUNNING", "RUNNING", "RUNNING", ("RUNNING", REPORT), "FINISHED:COMPLETED")
    there = SecondMachine("a", "10.0.0.2", "10.0.0.1", 0.0, 0.0, 1, True)
    session.second = (there, there._replace(site="b", ongoing=False))
    first, second, last = [sight.words().splitlines() for sight in watch(session, "x")]
    assert [len(first), len(second), len(last)] == [2, 2, 1]
    assert first[1].startswith("a: a second machine with its kit, at 10.0.0.2, is being refused (1 times")
    assert second[1].startswith("a: a second machine with its kit, at 10.0.0.2, is being refused (4 times")


def test_a_sites_sentence_does_not_steer_the_terminal():
    assert printable("site-1: \x1b[2Jgone\r\nnext é") == "site-1: ?[2Jgone?\nnext é"
