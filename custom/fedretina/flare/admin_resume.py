"""Going on with a run from the admin side: one that stopped, or one that is complete but for some sites' results."""

from __future__ import annotations

from fedretina.errors import AdminError
from fedretina.flare.admin_jobs import Job, Submission, find_job
from fedretina.flare.admin_results import outcome
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.admin_watch import Sight


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
