"""Following a job from the admin side: what is new, in words, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from fedretina.errors import NotDoneError, UnreachableError
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
        if self.report is None:
            return f"{self.job.status}; its processes start or end"
        return _step_words(self.report)


def see(session: AdminSession, job_id: str) -> Sight:
    """Look at a job once."""
    job = Job.of(session.job(job_id))
    if job.ended:
        return Sight(job, None, False)
    second = tuple(one for one in session.second_machines() if one.ongoing)
    if job.status == WAITING:
        return Sight(job, None, False, tuple(sorted(set(job.sites) - set(session.federation().sites))), second)
    report = session.report(job_id)
    return Sight(job, report, report is None and job.lost(session.federation()), second=second)


def watch(session: AdminSession, job_id: str, interval_s: float = 2.0, timeout_s: float = 0.0) -> Iterator[Sight]:
    """Yield a job whenever something has changed, at last when it is over.

    A server that does not answer for a minute is not yet a reason to stop: it may be restarted.

    Args:
        session: A connected session.
        job_id: The job.
        interval_s: Seconds between looks.
        timeout_s: Longest time to watch in seconds; 0 for ever.

    Raises:
        NotDoneError: The time is over, the job is not.
        UnreachableError: The server is away for longer than a minute.
    """
    began = heard = time.monotonic()
    last: object = None
    while True:
        sight: Sight | None = None
        try:
            sight = see(session, job_id)
            heard = time.monotonic()
        except UnreachableError:
            if time.monotonic() - heard > _PATIENCE_S:
                raise
            _reconnect(session)
        if sight is not None:
            now = _news(sight)
            if now != last:
                last = now
                yield sight
            if sight.over:
                return
        if timeout_s and time.monotonic() - began + interval_s > timeout_s:
            status = "not known" if sight is None else sight.job.status
            raise NotDoneError(f"job {job_id} has not ended after {timeout_s:g} s; its status is {status}.")
        time.sleep(interval_s)


def _reconnect(session: AdminSession) -> None:
    try:
        session.connect()
    except UnreachableError:
        return


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
    return duration.partition(".")[0] or "no time"
