"""Fetching what a job left: results and table, or why it stopped."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import AdminError, NotDoneError, StateError
from fedretina.flare.admin_jobs import Job
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.admin_watch import Sight
from fedretina.flare.publication import RESULTS, published, why_stopped


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
        with tempfile.TemporaryDirectory(prefix=".download-", dir=out) as folder:
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
        why: Why not, as far as it says; or what FLARE thinks of a job whose run is complete all the same.
    """

    complete: bool
    why: str | None


def outcome(session: AdminSession, sight: Sight) -> Outcome:
    """Tell what became of a job that is over; what it left is looked at where FLARE calls it a failure."""
    if sight.job.completed:
        return Outcome(True, None)
    if sight.lost:
        return Outcome(False, f"the server lost it: `fedretina resume {sight.job.run or 'RUN'}` goes on with its run.")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return outcome_of(fetch(session, sight.job, Path(folder)), sight.job)
        except AdminError as error:  # whoever may watch a job may not always fetch it
            return Outcome(False, f"FLARE calls it {sight.job.status}; why is not known here, since {error}")


def outcome_of(downloaded: Path, job: Job) -> Outcome:
    """Tell what became of a downloaded job."""
    if results_file(downloaded) is not None:
        return Outcome(
            True, None if job.completed else f"the run is complete, though FLARE calls its job {job.status}."
        )
    why = why_stopped(downloaded) or (
        f"FLARE calls it {job.status}, and the run left no word: it was aborted, or a process of the job at the server "
        "or at a site died; their logs say which."
    )
    return Outcome(False, f"{why} `fedretina resume {job.run}` goes on with its run." if job.run else why)
