"""Jobs that a server's crash left as running, in FLARE's store on disk."""

import json
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.errors import AdminError, NotFoundError
from fedretina.flare.job_store import ABANDONED, abandon, begun_jobs, job_store, obstacle
from ports import free_port

ID = str(uuid4())  # another test process's jobs run on the same machine
HELD = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A server's kit with an empty store, listening nowhere."""
    monkeypatch.delenv("NVFL_JOB_STORE_ROOT", raising=False)
    kit = tmp_path / "kit"
    for folder in ("startup", "local"):
        (kit / folder).mkdir(parents=True)
    server = {"servers": [{"service": {"target": f"localhost:{free_port()}"}}]}
    (kit / "startup/fed_server.json").write_text(json.dumps(server))
    manager = {"id": "job_manager", "args": {"uri_root": str(tmp_path / "store")}}
    (kit / "local/resources.json.default").write_text(json.dumps({"components": [{"id": "other"}, manager]}))
    (tmp_path / "store").mkdir()
    return kit


def store_job(tmp_path, job_id=ID, status="RUNNING", **meta):
    folder = tmp_path / "store" / job_id
    folder.mkdir()
    words = {"job_id": job_id, "name": "study", "status": status, "start_time": "2026-01-02T03:04:05+00:00", **meta}
    (folder / "meta").write_text(json.dumps(words))
    return words


def flare_process(*words):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HELD, *map(str, words)], **pipes)
    assert process.stdout.readline() == b"up\n"
    return process


def repair(kit, *words):
    return CliRunner().invoke(main, ["repair", "--server-kit", str(kit), *words])


def test_the_store_is_found_where_the_server_finds_it(kit, tmp_path, monkeypatch):
    assert job_store(kit) == tmp_path / "store"
    own = {"components": [{"id": "job_manager", "args": {"uri_root": str(tmp_path / "own")}}]}
    (kit / "local/resources.json").write_text(json.dumps(own))
    with pytest.raises(NotFoundError, match="own is not there"):
        job_store(kit)
    (tmp_path / "third").mkdir()
    monkeypatch.setenv("NVFL_JOB_STORE_ROOT", str(tmp_path / "third"))
    assert job_store(kit) == tmp_path / "third"


def test_a_kit_that_cannot_be_used_gets_a_sentence(kit, tmp_path):
    with pytest.raises(NotFoundError, match="no server's startup kit"):
        job_store(tmp_path)
    (kit / "local/resources.json").write_text("{")
    with pytest.raises(AdminError, match="cannot be read"):
        job_store(kit)
    (kit / "local/resources.json").write_text('{"components": []}')
    with pytest.raises(AdminError, match="job_manager"):
        job_store(kit)


def test_only_begun_jobs_are_looked_at_and_only_their_status_is_changed(kit, tmp_path):
    words = store_job(tmp_path, submitter_name="lead", fedretina_digest="abc")
    store_job(tmp_path, "a" * 8, "FINISHED:COMPLETED")
    store_job(tmp_path, "b" * 8, "SUBMITTED")
    store_job(tmp_path, "c" * 8, "DISPATCHED", start_time="", last_schedule_time=7.5)
    dispatched, running = begun_jobs(job_store(kit))
    assert (dispatched.id, dispatched.begun) == ("c" * 8, 7.5)
    assert (running.id, running.name) == (ID, "study")
    assert running.begun == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert obstacle(running, kit) is None  # no server, no process, nothing listens
    abandon(running)
    assert json.loads(running.path.read_text()) == {**words, "status": ABANDONED}
    assert [job.id for job in begun_jobs(job_store(kit))] == ["c" * 8]


def test_a_process_that_names_the_job_is_an_obstacle(kit, tmp_path):
    store_job(tmp_path)
    process = flare_process("nvflare.private.fed.app.server.runner_process", "-n", ID)
    try:
        assert f"process {process.pid} still runs it" in obstacle(*begun_jobs(tmp_path / "store"), kit)
    finally:
        process.kill()
        process.communicate()
    assert obstacle(*begun_jobs(tmp_path / "store"), kit) is None


def test_the_server_that_began_the_job_is_an_obstacle_a_later_one_is_not(kit, tmp_path):
    process = flare_process("nvflare.private.fed.app.server.server_train", "-m", kit)
    try:
        store_job(tmp_path)  # begun long ago, by a server before this one
        assert obstacle(*begun_jobs(tmp_path / "store"), kit) is None
        (tmp_path / "store" / ID / "meta").unlink()
        store_job(tmp_path, "d" * 8, start_time=datetime.now(UTC).isoformat())
        assert f"still runs (process {process.pid})" in obstacle(*begun_jobs(tmp_path / "store"), kit)
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_is_not_seen_but_answers_is_an_obstacle(kit, tmp_path):
    store_job(tmp_path)
    port = int(json.loads((kit / "startup/fed_server.json").read_text())["servers"][0]["service"]["target"][10:])
    with socket.create_server(("localhost", port)):
        assert "something answers" in obstacle(*begun_jobs(tmp_path / "store"), kit)


def test_the_command_shows_first_and_does_it_when_told(kit, tmp_path):
    store_job(tmp_path)
    before = (tmp_path / "store" / ID / "meta").read_bytes()
    shown = repair(kit, ID[:8])
    assert shown.exit_code == 0, shown.output
    assert f"would be set to {ABANDONED}" in shown.output
    assert "--yes" in shown.output
    assert (tmp_path / "store" / ID / "meta").read_bytes() == before
    done = repair(kit, ID[:8], "--yes", "--json")
    assert json.loads(done.output)["jobs"] == [{"job": ID, "name": "study", "done": True, "obstacle": None}]
    again = repair(kit)
    assert (again.exit_code, again.output) == (0, "no job is listed as running: nothing to do\n")
    assert repair(kit, ID).exit_code == 3


def test_the_command_does_not_touch_a_job_that_runs(kit, tmp_path):
    store_job(tmp_path, start_time=datetime.fromtimestamp(time.time() + 3600, UTC).isoformat())
    process = flare_process("nvflare.private.fed.app.server.server_train", "-m", kit)
    try:
        refused = repair(kit, "--yes")
    finally:
        process.kill()
        process.communicate()
    assert refused.exit_code == 2
    assert "not touched" in refused.output
    assert begun_jobs(tmp_path / "store")[0].status == "RUNNING"


def test_the_command_ends_with_the_code_of_what_is_missing(tmp_path):
    missing = repair(tmp_path, "--json")
    assert missing.exit_code == 3
    assert json.loads(missing.stdout)["exit"] == 3
