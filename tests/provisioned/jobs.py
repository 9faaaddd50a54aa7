"""Good jobs in their production form, and what somebody may do to a job to get at a site."""

import json
import zipfile

from hospital import GRADES
from simulation import SMALL, write_job

from federation import fedretina

SITES = tuple(GRADES)
WORDS = {**SMALL, "phantom_images": 0, "quorum": 3, "exchange": {"codec": "int8"}, "verdict": "own"}
IN_FLOAT32 = {"exchange": {"codec": "none"}}
"""For what does not go with encoded updates."""
ANOTHER = "nvflare.app_common.np.np_formatter.NPFormatter"


def export(federation, name, words=WORDS, change=None, sites=SITES, options=()):
    """A job in its production form, changed afterwards if the test wants so."""
    base = write_job(federation.folder / f"{name}-base", words, sites)
    job = federation.folder / name
    fedretina("job", "export", base, "--sites", ",".join(sites), "--out", job, "--run", name, *options)
    if change:
        change(job)
    return job


def bring_code(job):
    """Put a folder of code into a job, with an executor of its own that is used."""
    code = job / "app" / "custom"
    code.mkdir()
    (code / "theirs.py").write_text("from fedretina.flare.executor import TrainerExecutor as Theirs\n")
    path = job / "app" / "config" / "config_fed_client.json"
    path.write_text(path.read_text().replace("fedretina.flare.executor.TrainerExecutor", "theirs.Theirs"))


def another_class(end):
    """Let a job's server or sites build a class that is installed there but is none of our jobs'."""

    def change(job):
        path = job / "app" / "config" / f"config_fed_{end}.json"
        words = json.loads(path.read_text())
        words["components"].append({"id": "more", "path": ANOTHER, "args": {}})
        path.write_text(json.dumps(words))

    return change


def own_filters(*put):
    """Take a job's own result filters away, and put others there."""

    def change(job):
        path = job / "app" / "config" / "config_fed_client.json"
        words = json.loads(path.read_text())
        filters = [{"path": name, "args": args} for name, args in put]
        words["task_result_filters"] = [{"tasks": ["train"], "filters": filters}] if put else []
        path.write_text(json.dumps(words))

    return change


def change_in_store(storage, job_id, change=lambda name, data: data.replace(b"seed: 3", b"seed: 4")):
    """Change the files of a job that waits in a server's store, as somebody at the server could.

    Args:
        storage: The server's storage.
        job_id: The job.
        change: From a file's name and content to its new content; None leaves the file out.
    """
    path = storage / "jobs" / job_id / "data"
    with zipfile.ZipFile(path) as archive:
        old = {entry: archive.read(entry) for entry in archive.infolist()}
    new = {entry: change(entry.filename, data) for entry, data in old.items()}
    assert new != old
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in new.items():
            if data is not None:
                archive.writestr(entry, data)
