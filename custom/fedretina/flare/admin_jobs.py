"""Jobs as the admin side sees them: the run each belongs to, why one was not taken, and submitting a run only once.

What FLARE keeps of a job was written by its server and by the sites; what we know is said in our words, anything else
is quoted, short and printable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.errors import AdminError, NotFoundError, SettingsError
from fedretina.flare.admin_session import AdminSession, Federation
from fedretina.flare.job_store import when_begun
from fedretina.flare.submitted_job import DIGEST, SUBMITTED_AS, NamedJob, job_sites
from fedretina.kit.job_folder import ALLOWED_CLASSES, classes_named
from fedretina.settings.plan import RUN_KEY
from fedretina.told import one_line

COMPLETED = "FINISHED:COMPLETED"
WAITING = "SUBMITTED"
_NOT_DEPLOYED, _NOT_SCHEDULED = "FINISHED:FAILED_TO_RUN", "FINISHED:CAN_NOT_SCHEDULE"
_ENDED = "FINISHED"
_SHORTEST_PREFIX = 4
_QUOTED = 300
_NAME = 100
_MANY = 200
_LOG_END = 200_000
_EXPORTED = "submit what `fedretina job export` writes"
_CHANGED = "the job's files were changed after it was signed: submit it again, and ask who runs the server"
_KNOWN = (
    ("BYOC not permitted", f"the job brings code (a `custom` folder), which nobody may do there: {_EXPORTED}"),
    ("does not pass signature verification", _CHANGED),
    ("job signature verification failed", _CHANGED),
    (
        "unsigned job",
        "the job is not signed: submit it with an admin's kit of this consortium, and it is signed on the way",
    ),
    ("privacy scope", "the job's meta.json asks for a privacy scope that is not there: leave `scope` out"),
    ("Missing required config", f"the job lacks a configuration that is read there: {_EXPORTED}"),
    ("not authorized", "whoever submitted the job may not do so there: local/authorization.json says which roles may"),
    ("no reply (deployment timeout)", "it did not answer in time: see whether `fedretina status` lists it"),
)
"""Words of FLARE 2.9, and ours for them."""
_TOO_FEW = re.compile(r"num_ok_sites (\d+) < required_min_sites (\d+)")
_TOO_FEW_CONNECTED = re.compile(r"connected sites \((\d+)\) < min_sites \((\d+)\)")
_MISSING = re.compile(r"missing required site (\S+)")
_NOT_LISTED = re.compile(r"Component '([\w.]{1,200})' at config path '[^']{0,200}' is not in allow_list")


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


def find_job(session: AdminSession, asked: str | None, run: str | None) -> Job:
    """Find a job by its id, by the beginning of its id, or the newest of a run.

    Raises:
        SettingsError: Neither or both are given, or the beginning fits several jobs.
        NotFoundError: There is no such job.
    """
    if (asked is None) == (run is None):
        raise SettingsError("name a job by its id, or a run by --run; `fedretina status` lists them.")
    jobs = all_jobs(session)
    if run is not None:
        return _of_run(jobs, run)[-1]
    assert asked is not None
    found = [job for job in jobs if job.id == asked]
    if not found and len(asked) >= _SHORTEST_PREFIX:
        found = [job for job in jobs if job.id.startswith(asked.lower())]
    if len(found) > 1:
        raise SettingsError(f"{len(found)} jobs begin with {asked!r}: write more of the id.")
    if not found:
        raise NotFoundError(
            f"there is no job {asked!r}: `fedretina status` lists the jobs, --run finds one by its run."
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


def refusals(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Who did not take a job, and why, a sentence each; empty where everybody took it."""
    by_reason: dict[str, list[str]] = {}
    more = []
    for entry in _texts(meta.get("job_deploy_detail")):
        found = _TOO_FEW.search(entry)
        if found:
            more.append(f"{found[1]} sites took the job, and it needs {found[2]} (`min_clients` in its meta.json).")
            continue
        if entry.startswith("failed to deploy to required client"):
            more.append(f"The job is not begun without {one_line(entry.split()[-1], _NAME)} (`mandatory_clients`).")
            continue
        who, _, said = entry.partition(":")
        if said.strip() == "OK":
            continue
        if who == "invalid_clients":
            more.append(f"Not connected any more: {one_line(said.strip(), _NAME)}.")
            continue
        by_reason.setdefault(_in_words(said), []).append(one_line(who.strip(), _NAME))
    told = [f"{_listed(who)} did not take the job: {why}." for why, who in by_reason.items()]
    return (*told, *more)


def not_scheduled(meta: Mapping[str, Any]) -> str | None:
    """Why FLARE gave up to begin a job, from the last time that it tried; None where it says nothing."""
    tries = [entry for entry in _texts(meta.get("schedule_history")) if "exceeded max schedule count" not in entry]
    if not tries:
        return None
    last = tries[-1]
    few, missing = _TOO_FEW_CONNECTED.search(last), _MISSING.search(last)
    if few:
        why = f"{few[1]} of its sites were connected, and it needs {few[2]}"
    elif missing:
        why = f"it is not begun without {one_line(missing[1], _NAME)}, which was not connected"
    else:
        why = f'FLARE says "{one_line(last, _QUOTED)}"'
    return f"FLARE tried {len(tries)} times to begin the job and gave up: {why}."


def not_listed(downloaded: Path) -> str | None:
    """Which class kept a downloaded job from being built; None where none is known to.

    The server's reason stands in the job's log, which comes with the download. A site's stands in its own log alone, so
    of a job that names a class of which no hardened site knows, that much is said.
    """
    path = downloaded / "workspace" / "error_log.txt"
    if path.is_file():
        found = _NOT_LISTED.search(path.read_bytes()[-_LOG_END:].decode("utf-8", "replace"))
        if found:
            return f"the server's allow-list does not hold {found[1]}, which the job names: {_EXPORTED}, as a new run."
    foreign = foreign_classes(downloaded / "job")
    if foreign and not list((downloaded / "job").glob("*/*/custom")):  # where code may be brought, so may any class
        named = one_line(foreign[0], _NAME)
        return (
            f"the job names {named}, which the allow-list of a hardened site does not hold, so most likely a site did "
            f"not build it; its own log says so. Then {_EXPORTED}, as a new run."
        )
    return None


def foreign_classes(folder: Path) -> list[str]:
    """Classes outside the allow-list of hardened kits that the configurations below a folder name."""
    found = set()
    for path in sorted(folder.rglob("config_fed_*.json")):
        try:
            found |= set(classes_named(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError):
            continue  # a file that is no JSON names nothing; whoever reads it says so
    return sorted(found - set(ALLOWED_CLASSES))


def _in_words(said: str) -> str:
    said = said.strip().removeprefix("NVFLARE_ERROR:").strip()
    for theirs, ours in _KNOWN:
        if theirs in said:
            return ours
    return f'"{one_line(said, _QUOTED)}"' if said else "it does not say why"


def _listed(names: Sequence[str]) -> str:
    return ", ".join("the server" if name == "server" else name for name in names)


def _texts(found: object) -> list[str]:
    return [entry for entry in found if isinstance(entry, str)][-_MANY:] if isinstance(found, list) else []
