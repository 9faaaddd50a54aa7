"""Fetching what a job left: results and table, or why it stopped."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from fedretina.aggregation.owed import owed, owed_words
from fedretina.errors import AdminError, NotDoneError, StateError
from fedretina.flare.admin_jobs import Job
from fedretina.flare.admin_reasons import not_listed
from fedretina.flare.admin_session import AdminSession
from fedretina.flare.admin_watch import Sight
from fedretina.flare.publication import RESULTS, published, why_stopped
from fedretina.storage import read_json


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
        why = "\n".join(words for words in [*said, *job.refusals, owed_words(results)] if words)
        return Outcome(True, why or None, owed(results))
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
