"""Following a job from the admin side: what is new, in words, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from fedretina.errors import NotDoneError, TimeOverError, UnreachableError
from fedretina.flare.admin_jobs import WAITING, Job
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.progress_board import Report
from fedretina.kit.second_machine import SecondMachine

_PATIENCE_S = 60.0


class Sight(NamedTuple):
    """A job at one moment.

    Attributes:
        job: The job.
        report: How far it is; None while its process does not say.
        lost: Whether the server has forgotten it.
        missing: While it waits: sites of the job that are not connected.
        second: Sites whose kit a second machine has, which is being refused at this moment.
    """

    job: Job
    report: Report | None
    lost: bool
    missing: tuple[str, ...] = ()
    second: tuple[SecondMachine, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.job.ended or self.lost

    def words(self) -> str:
        """One line for people, and one for each second machine."""
        return "\n".join([self._words(), *(one.words() for one in self.second)])

    def _words(self) -> str:
        if self.lost:
            return f"{self.job.status}, but the server was started anew since and does not run it: resume the run"
        if self.job.ended:
            return f"{self.job.status} after {_clock(self.job.duration)}"
        if self.job.status == WAITING:
            missing = f"not connected: {', '.join(self.missing)}" if self.missing else "waits for its sites to be free"
            return f"submitted; {missing}"
        words = f"{self.job.status}; its processes start or end" if self.report is None else _step_words(self.report)
        return "; ".join([words, *(why.rstrip(".") for why in self.job.refusals)])


def see(session: AdminSession, job_id: str, run: str | None = None) -> Sight:
    """Look at a job once.

    Args:
        session: A connected session.
        job_id: The job.
        run: Name of its run, where the job itself does not say it.
    """
    job = Job.of(session.job(job_id))
    job = job._replace(run=job.run or run)
    if job.ended:
        return Sight(job, None, False)
    second = tuple(one for one in session.second_machines() if one.ongoing)
    if job.status == WAITING:
        return Sight(job, None, False, tuple(sorted(set(job.sites) - set(session.federation().sites))), second)
    report = session.report(job_id)
    return Sight(job, report, report is None and job.lost(session.federation()), second=second)


def watch(
    session: AdminSession, job_id: str, interval_s: float = 2.0, timeout_s: float = 0.0, run: str | None = None
) -> Iterator[Sight]:
    """Yield a job whenever something has changed, at last when it is over.

    A server that does not answer for a minute is not yet a reason to stop: it may be restarted.

    Args:
        session: A connected session.
        job_id: The job.
        interval_s: Seconds between looks.
        timeout_s: Longest time to watch in seconds; 0 for ever. A look that waits for a silent server is ended by the
            session's own time, not by this.
        run: Name of its run, where the job itself does not say it.

    Raises:
        NotDoneError: The time is over, the job is not.
        UnreachableError: The server is away for longer than a minute.
    """
    began = heard = time.monotonic()
    last: object = None
    status = "not known"
    while True:
        try:
            sight = _look(session, job_id, run, time.monotonic() - heard <= _PATIENCE_S)
        except TimeOverError as error:
            raise NotDoneError(f"job {job_id} was {status} when it was last seen; {error}") from error
        if sight is not None:
            heard, status, now = time.monotonic(), sight.job.status, _news(sight)
            if now != last:
                last = now
                yield sight
            if sight.over:
                return
        if timeout_s and time.monotonic() - began + interval_s > timeout_s:
            seen = f"its status is {status}" if sight else f"no server answers, and its status was {status}"
            raise NotDoneError(f"job {job_id} has not ended within the time given; {seen}.")
        time.sleep(interval_s)


def _look(session: AdminSession, job_id: str, run: str | None, patient: bool) -> Sight | None:
    """Look once, and connect anew where no server answers; None then, unless nobody is patient any more."""
    try:
        return see(session, job_id, run)
    except UnreachableError:
        if not patient:
            raise
    with suppress(UnreachableError):
        session.connect()
    return None


def _news(sight: Sight) -> object:
    """All that is worth a line: not the seconds."""
    report = sight.report
    return (
        sight.job.status,
        sight.lost,
        sight.missing,
        report and report._replace(seconds=0.0, seconds_left=None, attempt=0),
        [(one.site, one.refused, one.there) for one in sight.second],
    )


def _step_words(report: Report) -> str:
    if not report.task:
        return "all steps are done; its processes end"
    learns = report.task in ("pretrain", "train")
    name = f"{report.phase} round {report.round} of {report.rounds}" if learns else report.task
    asked = len(report.answered) + len(report.waiting) + len(report.refused)
    parts = [f"{len(report.answered)} of {asked} sites answered" if asked else "begins"]
    if report.waiting and report.answered:
        parts.append(f"waiting for {', '.join(report.waiting)}")
    parts += [f"{site} does not count: {why.rstrip('.')}" for site, why in report.refused.items()]
    if report.seconds_left is not None:
        parts.append(f"about {_span(report.seconds_left)} of training left")
    return f"{name}: {'; '.join(parts)}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _clock(duration: str) -> str:
    return duration.partition(".")[0].replace("N/A", "") or "no time"
