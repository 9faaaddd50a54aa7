"""Jobs as the admin side sees them, the run each belongs to, and submitting a run once and only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedretina.errors import AdminError, NotFoundError, SettingsError
from fedretina.flare.admin_reasons import not_scheduled, refusals
from fedretina.flare.admin_session import AdminSession, Federation
from fedretina.flare.job_store import when_begun
from fedretina.flare.named_job import DIGEST, SUBMITTED_AS, NamedJob, job_sites
from fedretina.settings.plan import RUN_KEY

COMPLETED = "FINISHED:COMPLETED"
WAITING = "SUBMITTED"
_NOT_DEPLOYED, _NOT_SCHEDULED = "FINISHED:FAILED_TO_RUN", "FINISHED:CAN_NOT_SCHEDULE"
_ENDED = "FINISHED"
_SHORTEST_PREFIX = 4


class Job(NamedTuple):
    """One job of the federation.

    Attributes:
        id: FLARE's id.
        name: Name in the job's meta.
        run: Name of the run; None for a job that does not say: one that was submitted by other means than
            `fedretina submit`, and not written by `fedretina job export --run` either.
        status: FLARE's word.
        submitted: When, as FLARE writes it.
        submitter: The admin's name.
        begun: When the server began it, in seconds since 1970; None before that.
        duration: How long it ran, as FLARE writes it.
        digest: Of what was submitted; None where it is not known.
        sites: Names of the sites that it goes to; empty for all.
        resumes: Id of the job whose settings it has.
        refusals: Who did not take it, and why, a sentence each.
    """

    id: str
    name: str
    run: str | None
    status: str
    submitted: str
    submitter: str
    begun: float | None
    duration: str
    digest: str | None
    sites: tuple[str, ...]
    resumes: str | None
    refusals: tuple[str, ...] = ()

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Job:
        """Read a job's meta."""
        name = str(meta.get("name", ""))
        return cls(
            id=str(meta["job_id"]),
            name=name,
            run=name if meta.get("job_folder_name") == SUBMITTED_AS else _marked(meta),
            status=str(meta.get("status", "")),
            submitted=str(meta.get("submit_time_iso", "")),
            submitter=str(meta.get("submitter_name", "")),
            begun=when_begun(meta),
            duration=str(meta.get("duration", "")),
            digest=meta.get(DIGEST),
            sites=job_sites(dict(meta)),
            resumes=meta.get("cloned_from"),
            refusals=_refusals(meta),
        )

    @property
    def ended(self) -> bool:
        """Whether FLARE says that it has ended."""
        return self.status.startswith(_ENDED)

    @property
    def completed(self) -> bool:
        """Whether FLARE says that it ended well."""
        return self.status == COMPLETED

    @property
    def begun_never(self) -> bool:
        """Whether it ended before any process of it began, so that its run has nothing to go on from."""
        return self.status in (_NOT_DEPLOYED, _NOT_SCHEDULED)

    def lost(self, federation: Federation) -> bool:
        """Whether the server has forgotten it: listed as running, but begun by a server process that is no more.

        FLARE 2.9 leaves such a job as it is for ever.
        """
        if self.ended or self.status == WAITING or self.id in federation.jobs or self.begun is None:
            return False
        return self.begun < federation.started


class Submission(NamedTuple):
    """What became of a request to submit or resume.

    Attributes:
        job: The job of the run.
        new: Whether it was submitted now.
        owed: Where the run is complete: sites that trained and have no result, which resuming asks for.
    """

    job: Job
    new: bool
    owed: tuple[str, ...] = ()


def all_jobs(session: AdminSession) -> list[Job]:
    """All jobs, the oldest first; a job that resumes another belongs to its run."""
    found: dict[str, Job] = {}
    for job in map(Job.of, session.jobs()):
        resumed = found.get(job.resumes or "")
        # FLARE's clone keeps the name of the job and of its folder, and nothing that it does not know.
        found[job.id] = job._replace(run=resumed.run) if job.run is None and resumed is not None else job
    return list(found.values())


def find_job(session: AdminSession, words: str | None, run: str | None) -> Job:
    """Find a job by its id, by the beginning of its id, or the newest of a run.

    Raises:
        SettingsError: Neither or both are given, or the beginning fits several jobs.
        NotFoundError: There is no such job.
    """
    if (words is None) == (run is None):
        raise SettingsError("name a job by its id, or a run by --run; `fedretina status` lists them.")
    jobs = all_jobs(session)
    if run is not None:
        return _of_run(jobs, run)[-1]
    assert words is not None
    found = [job for job in jobs if job.id == words]
    if not found and len(words) >= _SHORTEST_PREFIX:
        found = [job for job in jobs if job.id.startswith(words.lower())]
    if len(found) > 1:
        raise SettingsError(f"{len(found)} jobs begin with {words!r}: write more of the id.")
    if not found:
        raise NotFoundError(
            f"there is no job {words!r}: `fedretina status` lists the jobs, --run finds one by its run."
        )
    return found[0]


def submit(session: AdminSession, named: NamedJob, before: Callable[[], None] | None = None) -> Submission:
    """Submit a run that is not there yet; a run that runs or has completed is left alone.

    Args:
        session: A connected session.
        named: The job, ready to be submitted.
        before: Is called before something is sent; what it raises keeps the job here.

    Raises:
        AdminError: The run is there with other settings, or ended badly, or the server refuses the job.
    """
    ours = [job for job in all_jobs(session) if job.run == named.run]
    jobs = [job for job in ours if not job.begun_never]  # of the others nothing is left that other settings could spoil
    if not jobs:
        if before is not None:
            before()
        return Submission(_new(session, named, len(ours) + 1), True)
    known = next((job.digest for job in jobs if job.digest), None)
    if known is not None and known != named.digest:
        raise AdminError(
            f"run {named.run} was submitted before with other settings (job {jobs[-1].id}): choose another name."
        )
    newest = jobs[-1]
    lost = newest.lost(session.federation())
    if newest.completed or not (newest.ended or lost):
        return Submission(newest, False)
    became = "was lost by the server" if lost else f"ended as {newest.status}"
    raise AdminError(f"job {newest.id} of run {named.run} {became}: `fedretina resume {named.run}` goes on with it.")


def _of_run(jobs: list[Job], run: str) -> list[Job]:
    found = [job for job in jobs if job.run == run]
    if not found:
        raise NotFoundError(
            f"no job here is known to belong to a run {run!r}: see `fedretina status`. A job that was submitted by "
            "other means than `fedretina submit` is named by its id; "
            f"`fedretina submit JOB_FOLDER --run {run}`, with the folder that was submitted, goes on with such a run."
        )
    return found


def _marked(meta: Mapping[str, Any]) -> str | None:
    run = meta.get(RUN_KEY)
    return run if isinstance(run, str) and run else None


def _refusals(meta: Mapping[str, Any]) -> tuple[str, ...]:
    unscheduled = not_scheduled(meta) if meta.get("status") == _NOT_SCHEDULED else None
    return (*refusals(meta), *([unscheduled] if unscheduled else []))


def _new(session: AdminSession, named: NamedJob, number: int) -> Job:
    # The server keeps the token of a deleted job and gives it out to nobody: then the next number is free.
    while (job_id := session.submit(named.folder, f"fedretina:{named.run}:{number}")) is None:
        number += 1
    return Job.of(session.job(job_id))
