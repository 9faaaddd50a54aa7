"""A run from the admin side: following its job until it has ended, fetching what it left, going on with it or back."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedretina.aggregation.results import unfinished, unfinished_note
from fedretina.errors import AWAITS, AdminError, NotDoneError, RefusedError, StateError, TimeOverError, UnreachableError
from fedretina.flare.admin_jobs import WAITING, Job, Submission, find_job, not_listed
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.progress_board import Report
from fedretina.flare.results_upload import RESULTS, known_steps, published, why_stopped
from fedretina.flare.submitted_job import NamedJob, experiments, named_copy
from fedretina.kit.second_machine import SecondMachine
from fedretina.settings.plan import Plan, RestartSettings
from fedretina.storage import read_json

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
    parts += [
        f"{site} {'is' if why == AWAITS else 'does not count:'} {why.rstrip('.')}"
        for site, why in report.refused.items()
    ]
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


def fetch(session: AdminSession, job: Job, out: Path) -> Path:
    """Download a job that has ended into `out / job.id`; an earlier download there is replaced.

    Raises:
        NotDoneError: The job has not ended.
        StateError: The disk is full or not writable.
    """
    if not job.ended:
        raise NotDoneError(f"job {job.id} is {job.status}: `fedretina watch {job.id}` waits for its end.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=out, ignore_cleanup_errors=True) as folder:
            fetched = session.download(job.id, Path(folder))
            final = out / job.id
            shutil.rmtree(final, ignore_errors=True)
            fetched.rename(final)
    except OSError as error:
        raise StateError(f"the results were not saved under {out}: {error}.") from error
    return final


def results_file(downloaded: Path) -> Path | None:
    """The run's results in a downloaded job; None where it has none."""
    path = published(downloaded) / RESULTS
    return path if path.exists() else None


class Outcome(NamedTuple):
    """What became of a job that is over.

    Attributes:
        complete: Whether its run is complete.
        why: Why not, as far as it says; of a complete run, which sites lack a result, or what FLARE thinks of its job.
        owed: Sites that trained for its model and have no result; resuming the run asks for it.
    """

    complete: bool
    why: str | None
    owed: tuple[str, ...] = ()


def outcome(session: AdminSession, sight: Sight) -> Outcome:
    """Tell what became of a job that is over, from what it left, where that may be fetched."""
    if sight.lost:
        return Outcome(False, f"the server lost it: `fedretina resume {sight.job.run or 'RUN'}` goes on with its run.")
    if sight.job.begun_never:
        return Outcome(False, _why_never_begun(sight.job))
    # A download that was given up may still be writing there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            became = outcome_of(fetch(session, sight.job, Path(folder)), sight.job)
        except AdminError as error:  # whoever may watch a job may not always fetch it
            if sight.job.completed:
                return Outcome(True, "\n".join(sight.job.refusals) or None)
            known = "".join(f" {words}" for words in sight.job.refusals)
            return Outcome(False, f"FLARE calls it {sight.job.status}; why is not known here, since {error}{known}")
    return Outcome(True, None) if sight.job.completed and not became.complete else became


def outcome_of(downloaded: Path, job: Job) -> Outcome:
    """Tell what became of a downloaded job."""
    path = results_file(downloaded)
    if path is not None:
        results = read_json(path)
        said = [None if job.completed else f"the run is complete, though FLARE calls its job {job.status}."]
        why = "\n".join(words for words in [*said, *job.refusals, unfinished_note(results)] if words)
        return Outcome(True, why or None, unfinished(results))
    if job.begun_never:
        return Outcome(False, _why_never_begun(job))
    stopped = why_stopped(downloaded)
    unbuilt = None if stopped else not_listed(downloaded)
    if unbuilt:  # to resume would submit the same job again
        return Outcome(False, " ".join([unbuilt, *job.refusals]))
    unsaid = (
        f"FLARE calls it {job.status}, and the run left no word: it was aborted, or a process of the job at the server "
        "or at a site died; their logs say which."
    )
    why = " ".join([stopped or unsaid, *job.refusals])
    return Outcome(False, f"{why} `fedretina resume {job.run}` goes on with its run." if job.run else why)


def _why_never_begun(job: Job) -> str:
    why = " ".join(job.refusals) or f"FLARE calls it {job.status} and does not say why: the server's log does."
    if job.run and job.resumes:
        return f"{why} Nothing of this job has run: `fedretina resume {job.run}` tries again."
    again = ", under the same name if you like" if job.run else ""
    return f"{why} Nothing has run: mend that and submit the job again{again}."


def resume(session: AdminSession, run: str) -> Submission:
    """Submit the settings of a run's newest job again, under a new job.

    A run that has completed is left alone, unless a site that trained for its model has no result and is connected:
    then that is all that the new job asks for.

    Raises:
        NotFoundError: There is no such run.
        AdminError: Its job still runs.
    """
    newest = find_job(session, None, run)
    owed: tuple[str, ...] = ()
    if newest.completed:
        owed = outcome(session, Sight(newest, None, False)).owed
        if not set(owed) & set(session.federation().sites):
            return Submission(newest, False, owed)
    elif not newest.ended and not newest.lost(session.federation()):
        raise AdminError(f"job {newest.id} of run {run} is {newest.status}: watch it, or abort it before you resume.")
    return Submission(Job.of(session.job(session.clone(newest.id)))._replace(run=run), True, owed)


class Restart(NamedTuple):
    """A run that is about to go back.

    Attributes:
        named: The job that says so, ready to be submitted.
        step: The step that it starts again from.
        dropped: Names of the steps that are done and will be dropped; None where it is not known how far the run came.
        sites: Names of the sites whose accepted answers are among them.
        results: Whether the run has completed, so that its results are dropped too.
        settings_of: Id of the job whose settings it has.
        mark: See `RestartSettings`.
    """

    named: NamedJob
    step: str
    dropped: tuple[str, ...] | None
    sites: tuple[str, ...]
    results: bool
    settings_of: str
    mark: str


def plan_restart(session: AdminSession, run: str, step: str, into: Path) -> Restart:
    """Make the job with which a run goes back to one of its steps, from its newest job; nothing is submitted yet.

    Args:
        session: A connected session.
        run: Name of the run.
        step: Name of the step that is to be done again, and all after it.
        into: An existing folder for the job.

    Raises:
        NotFoundError: There is no such run.
        AdminError: Its job still runs or was lost, so that it cannot be downloaded.
        RefusedError: The run has no such step, has not come to it, or cannot go back as far.
    """
    newest = find_job(session, None, run)
    if not newest.ended:
        raise AdminError(
            f"job {newest.id} of run {run} is {newest.status}: abort it, or where the server lost it "
            "(`fedretina status` says so) clear it with `fedretina repair`, before the run goes back."
        )
    downloaded = fetch(session, newest, into / "download")
    restart = RestartSettings(step=step, mark=secrets.token_hex(4))
    # FLARE keeps a job under the name of the folder that was submitted, whoever submitted it.
    kept = [path.parent for path in sorted((downloaded / "job").glob("*/meta.json"))]
    if len(kept) != 1:
        raise AdminError(
            f"the server's copy of job {newest.id} holds {len(kept)} job folders, not one: submit it anew."
        )
    named = named_copy(kept[0], into, run, restart=restart)
    plan = Plan.of(experiments(named.folder)[0])
    number = plan.named(step).number
    known = known_steps(downloaded)
    if known is None:
        return Restart(named, step, None, (), False, newest.id, restart.mark)
    done = [(str(one["step"]), one["accepted"]) for one in known["done"]]
    if number > len(done):
        raise RefusedError(f"run {run} has not come to {step}: its next step is {plan[len(done)].name}.")
    if number < len(done) and step not in known["returns"]:
        names = ", ".join(known["returns"])
        raise RefusedError(
            f"the models that {step} would begin with are not kept any more: run {run} can go back to {names}."
        )
    dropped = done[number:]
    sites = tuple(sorted({str(site) for _, accepted in dropped for site in accepted}))
    complete = len(done) == len(plan)
    return Restart(named, step, tuple(name for name, _ in dropped), sites, complete, newest.id, restart.mark)


def submit_restart(session: AdminSession, restart: Restart) -> Job:
    """Submit the job of a run that goes back.

    Raises:
        AdminError: The server refuses it.
    """
    job_id = session.submit(restart.named.folder, f"fedretina:{restart.named.run}:back:{restart.mark}")
    if job_id is None:
        raise AdminError(f"the job with which run {restart.named.run} goes back was deleted: ask again.")
    return Job.of(session.job(job_id))
