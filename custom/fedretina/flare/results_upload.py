"""What a job hands to the admin side: results and table, or why it stopped.

FLARE stores the server's folder of a job when the job ends, and lets the admin side download it. The state of a run
lies elsewhere and stays at the server; what may be downloaded is copied into that folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedretina.aggregation.results import results_table
from fedretina.errors import StateError
from fedretina.storage import read_json, write_json

if TYPE_CHECKING:  # the admin commands read what was published, and do not wait for torch
    from fedretina.aggregation.coordinator import Coordinator

FOLDER = "fedretina"
RESULTS = "results.json"
STOPPED = "stopped.json"
STEPS = "steps.json"
_REPORTS = (RESULTS, "report.json", "report.html")


def publish(run_folder: Path | None, job_folder: Path, stopped: str | None = None) -> None:
    """Copy the run's results into the folder of the job, where there are any.

    Args:
        run_folder: The server's folder of the run; None when it could not be opened.
        job_folder: The server's folder of the FLARE job.
        stopped: The sentence with which the job stops.

    Raises:
        StateError: The disk is full or not writable.
    """
    folder = job_folder / FOLDER
    if stopped is not None:
        write_json(folder / STOPPED, {"why": stopped})
    if run_folder is None or not (run_folder / RESULTS).exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _REPORTS:
            if (run_folder / name).exists():
                shutil.copyfile(run_folder / name, folder / name)
        table = results_table(read_json(run_folder / RESULTS))
        (folder / "table.txt").write_text(table + "\n", encoding="utf-8")
    except OSError as error:
        raise StateError(f"the results were not copied into the job's folder {folder}: {error}.") from error


def publish_steps(coordinator: Coordinator, job_folder: Path) -> None:
    """Write how far the run is, and to which of its steps it can go back, into the folder of the job.

    Raises:
        StateError: The disk is full or not writable.
    """
    done = [{"step": record["step"], "accepted": sorted(record["scalars"])} for record in coordinator.records]
    steps = {"done": done, "returns": [step.name for step in coordinator.returns]}
    write_json(job_folder / FOLDER / STEPS, steps, durable=False)  # FLARE's copy; the run's own record is durable


def published(downloaded: Path) -> Path:
    """Where a downloaded job holds what was published."""
    return downloaded / "workspace" / FOLDER


def why_stopped(downloaded: Path) -> str | None:
    """The sentence with which a downloaded job stopped, where it left one."""
    path = published(downloaded) / STOPPED
    return str(read_json(path).get("why")) if path.exists() else None


def known_steps(downloaded: Path) -> dict[str, Any] | None:
    """What `publish_steps` wrote into a downloaded job; None where its run was never opened."""
    path = published(downloaded) / STEPS
    return read_json(path) if path.exists() else None
