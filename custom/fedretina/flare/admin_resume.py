"""Going on with a run from the admin side: one that stopped, one that lacks sites' results, one that goes back."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import AdminError, RefusedError
from fedretina.flare.admin_jobs import Job, Submission, find_job
from fedretina.flare.admin_results import fetch, outcome
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.admin_watch import Sight
from fedretina.flare.named_job import NamedJob, experiments, named_copy
from fedretina.flare.publication import known_steps
from fedretina.settings.plan import Plan, RestartSettings


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
