"""Runs and jobs from the admin side, against a server made of a list."""

import json
import shlex
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main, run
from fedretina.errors import AdminError, NotFoundError, RefusedError, SettingsError
from fedretina.flare.admin_jobs import COMPLETED, Job, find_job, submit
from fedretina.flare.admin_runs import plan_restart, resume, submit_restart
from fedretina.flare.admin_session import Federation
from fedretina.flare.submitted_job import DIGEST, SUBMITTED_AS, NamedJob
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import RUN_KEY

JOBS = Path(__file__).resolve().parents[2] / "jobs"

RESULTS = {
    "run": "study",
    "steps": [{"step": "train-0000", "task": "train", "scalars": {"a": {}, "b": {}, "c": {}}}],
    "chosen": "train-0000",
    "sites": {"a": {}, "b": {}, "c": {}},
}


class ListServer:
    """Keeps metas as FLARE does: a clone loses what FLARE does not know, a token gives one job once."""

    def __init__(self):
        self.metas, self.tokens, self.started, self.running = [], {}, 1000.0, set()
        self.sites, self.results, self.steps = (), RESULTS, None

    def add(self, run, status, folder=SUBMITTED_AS, **more):
        job_id = f"{len(self.metas):08d}-0000"
        words = {"job_id": job_id, "name": run, "job_folder_name": folder, "status": status, "deploy_map": {}}
        self.metas.append({**words, **more})
        return job_id

    def jobs(self):
        return list(self.metas)

    def job(self, job_id):
        return next(meta for meta in self.metas if meta["job_id"] == job_id)

    def federation(self):
        return Federation(self.started, self.sites, frozenset(self.running))

    def submit(self, folder, token):
        if token not in self.tokens:
            self.tokens[token] = self.add("study", "SUBMITTED", **{DIGEST: "d1"})
        job_id = self.tokens[token]
        return job_id if any(meta["job_id"] == job_id for meta in self.metas) else None

    def clone(self, job_id):
        old = self.job(job_id)
        return self.add(old["name"], "SUBMITTED", old["job_folder_name"], cloned_from=job_id)

    def download(self, job_id, into):
        folder = into / job_id / "workspace" / "fedretina"
        folder.mkdir(parents=True)
        if self.results is None:
            raise AdminError("you may not download a job.")
        (folder / "results.json").write_text(json.dumps(self.results))
        if self.steps is not None:
            (folder / "steps.json").write_text(json.dumps(self.steps))
        shutil.copytree(JOB, into / job_id / "job" / SUBMITTED_AS)
        return into / job_id


JOB = Path(__file__).resolve().parents[2] / "jobs" / "feduaa"
NAMED = NamedJob(Path("job"), "study", "d1", ())


@pytest.fixture
def server():
    return ListServer()


def test_a_run_is_submitted_once(server):
    first = submit(server, NAMED)
    assert first.new
    for status in ("SUBMITTED", "DISPATCHED", "RUNNING", COMPLETED):
        server.metas[0]["status"] = status
        server.running = {first.job.id}
        again = submit(server, NAMED)
        assert (again.new, again.job.id) == (False, first.job.id)
    assert len(server.metas) == 1


def test_two_admins_at_once_get_one_job(server):
    first = submit(server, NAMED)
    server.jobs = lambda: []  # the second asked before the first had submitted
    assert submit(server, NAMED).job.id == first.job.id
    assert len(server.metas) == 1


def test_the_same_name_with_other_settings_is_refused(server):
    submit(server, NAMED)
    with pytest.raises(AdminError, match="other settings"):
        submit(server, NAMED._replace(digest="d2"))
    server.metas[0]["status"] = "FINISHED:ABORTED"
    resume(server, "study")
    with pytest.raises(AdminError, match="other settings"):  # the clone knows no digest, the first job does
        submit(server, NAMED._replace(digest="d2"))


@pytest.mark.parametrize(
    ("status", "began", "words"),
    [("FINISHED:EXECUTION_EXCEPTION", 2000.0, "ended as"), ("RUNNING", 900.0, "lost by the server")],
)
def test_a_run_that_ended_badly_is_not_submitted_but_resumed(server, status, began, words):
    job_id = submit(server, NAMED).job.id
    server.metas[0] |= {"status": status, "last_schedule_time": began}
    with pytest.raises(AdminError, match=f"{words}.*fedretina resume study"):
        submit(server, NAMED)
    gone_on = resume(server, "study")
    assert gone_on.new
    assert (gone_on.job.run, gone_on.job.resumes, gone_on.job.status) == ("study", job_id, "SUBMITTED")
    assert submit(server, NAMED).job.id == gone_on.job.id


def test_a_run_that_still_runs_or_has_completed_is_not_resumed(server):
    job_id = submit(server, NAMED).job.id
    server.metas[0] |= {"status": "RUNNING", "last_schedule_time": 2000.0}
    with pytest.raises(AdminError, match="before you resume"):
        resume(server, "study")
    server.metas[0]["status"] = COMPLETED
    done = resume(server, "study")
    assert (done.new, done.job.id) == (False, job_id)
    with pytest.raises(NotFoundError, match="never"):
        resume(server, "never")


def test_a_run_that_lacks_a_result_is_resumed_when_its_site_is_there(server):
    first = submit(server, NAMED).job.id
    server.metas[0]["status"] = COMPLETED
    server.results = {**RESULTS, "sites": {"a": {}}}
    server.sites = ("a",)
    away = resume(server, "study")
    assert (away.new, away.job.id, away.owed) == (False, first, ("b", "c"))
    server.sites = ("a", "c")
    asked = resume(server, "study")
    assert (asked.new, asked.job.resumes, asked.owed) == (True, first, ("b", "c"))
    server.metas[1]["status"] = COMPLETED
    server.results = RESULTS
    done = resume(server, "study")
    assert (done.new, done.job.id, done.owed) == (False, asked.job.id, ())
    server.results = None  # who may not fetch is told no more than before
    assert not resume(server, "study").new


def test_a_deleted_job_may_be_submitted_again(server):
    first = submit(server, NAMED)
    server.metas.clear()
    server.metas.append({"job_id": "other", "name": "other", "status": COMPLETED, "deploy_map": {}})
    second = submit(server, NAMED)
    assert second.new
    assert second.job.id != first.job.id


def test_a_job_is_found_by_id_by_its_beginning_and_by_run(server):
    for status in ("FINISHED:ABORTED", "RUNNING"):
        server.add("study", status)
    plain = server.add("study", COMPLETED, folder="feduaa")
    assert find_job(server, plain, None).id == plain
    assert find_job(server, "00000001", None).status == "RUNNING"
    assert find_job(server, None, "study").id == "00000001-0000"  # not the plain job of that name
    assert find_job(server, plain, None).run is None
    with pytest.raises(SettingsError, match="3 jobs begin"):
        find_job(server, "0000", None)
    for words, error in (("00", NotFoundError), ("ffffffff", NotFoundError), (None, SettingsError)):
        with pytest.raises(error):
            find_job(server, words, None)
    with pytest.raises(SettingsError):
        find_job(server, plain, "study")


@pytest.mark.parametrize(
    ("status", "begun", "running", "lost"),
    [
        ("RUNNING", 900.0, False, True),
        ("DISPATCHED", 900.0, False, True),
        ("RUNNING", 900.0, True, False),  # it says itself that it runs it
        ("RUNNING", 1100.0, False, False),  # its process is about to end
        ("RUNNING", None, False, False),
        ("SUBMITTED", 900.0, False, False),
        ("FINISHED:ABORTED", 900.0, False, False),
    ],
)
def test_a_job_is_lost_when_the_server_is_younger_and_does_not_run_it(server, status, begun, running, lost):
    job_id = server.add("study", status, **({} if begun is None else {"last_schedule_time": begun}))
    server.running = {job_id} if running else set()
    assert Job.of(server.job(job_id)).lost(server.federation()) is lost


def test_the_commands_say_which_sites_lack_a_result(server, monkeypatch):
    submit(server, NAMED)
    server.metas[0]["status"] = COMPLETED
    server.results = {**RESULTS, "sites": {"a": {}, "b": {}}}
    monkeypatch.setattr(run, "connected", lambda *_: nullcontext(server))

    def said(*words):
        result = CliRunner().invoke(main, [*words, "--kit", "kit"])
        assert result.exit_code == 0, result.output
        return result.output

    assert "c trained and has no model yet: `fedretina resume study`" in said("status", "--run", "study")
    assert json.loads(said("status", "--run", "study", "--json"))["owed"] == ["c"]
    assert "no result from c: not connected, so nobody was asked" in said("resume", "study")
    server.sites = ("a", "b", "c")
    again = said("resume", "study")
    assert "submitted, with the settings of 00000000-0000" in again
    assert "but for the results of c: only these are asked" in again
    server.metas[1]["status"], server.results = COMPLETED, RESULTS
    assert said("resume", "study") == "run study has completed: job 00000001-0000\n"
    assert json.loads(said("resume", "study", "--json"))["owed"] == []


def test_a_run_is_known_by_its_jobs_mark_and_so_are_its_clones(server):
    """As `fedretina job export --run` writes it, whatever submitted the job; FLARE's clone drops the mark."""
    marked = server.add("feduaa", "FINISHED:ABORTED", folder="storm-job", **{RUN_KEY: "storm"})
    assert find_job(server, None, "storm").id == marked
    gone_on = resume(server, "storm")
    assert RUN_KEY not in server.job(gone_on.job.id)
    assert gone_on.job.resumes == marked
    newest = find_job(server, None, "storm")
    assert (newest.id, newest.run) == (gone_on.job.id, "storm")
    server.job(newest.id)["status"] = "FINISHED:ABORTED"
    assert resume(server, "storm").job.resumes == newest.id
    with pytest.raises(NotFoundError, match=r"`fedretina submit JOB_FOLDER --run other`.*goes on with such a run"):
        resume(server, "other")
    server.add("odd", COMPLETED, folder="odd", **{RUN_KEY: ["no", "name"]})
    assert find_job(server, "00000003", None).run is None


@pytest.mark.parametrize("status", ["FINISHED:FAILED_TO_RUN", "FINISHED:CAN_NOT_SCHEDULE"])
def test_a_run_that_never_began_is_submitted_again_when_it_is_mended(server, status):
    first = submit(server, NAMED)
    server.metas[0]["status"] = status
    second = submit(server, NAMED._replace(digest="d2"))
    assert second.new
    assert second.job.id != first.job.id
    server.metas[1]["status"] = COMPLETED
    assert submit(server, NAMED).job.id == second.job.id


def test_nothing_is_refused_where_nothing_is_sent(server):
    def refuse():
        raise SettingsError("not sent")

    with pytest.raises(SettingsError, match="not sent"):
        submit(server, NAMED, refuse)
    assert server.metas == []
    first = submit(server, NAMED)
    assert submit(server, NAMED, refuse).job.id == first.job.id


@pytest.fixture
def told_submit(server, monkeypatch):
    """Runs `fedretina submit` against the list and returns what it said."""
    monkeypatch.setattr(run, "connected", lambda *_: nullcontext(server))

    def call(*words, code=0):
        result = CliRunner().invoke(main, ["submit", *map(str, words), "--kit", "kit"])
        assert result.exit_code == code, result.output
        return result.output

    return call


def test_what_hardened_sites_refuse_is_not_sent_and_the_command_that_mends_it_does(
    server, told_submit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    server.sites = ("site-1", "site-2", "site-3")
    said = told_submit(JOBS / "feduaa", "--run", "study", code=2)
    assert server.metas == []
    assert "A hardened federation would refuse it: app: BYOC not permitted" in said
    assert "Not connected: site-4, site-5 (connected: site-1, site-2, site-3)." in said
    mend, again = (shlex.split(line) for line in said.splitlines() if line.startswith("  fedretina "))
    assert CliRunner().invoke(main, mend[1:]).exit_code == 0
    assert "run study: job 00000000-0000 submitted" in told_submit(*again[2:])


def test_a_rehearsal_takes_code_and_who_says_so_goes_without_a_site(server, told_submit):
    server.sites = ("site-1",)
    assert "Not connected: site-2" in told_submit(JOBS / "feduaa", "--run", "study", "--poc", code=2)
    assert "hardened" not in told_submit(JOBS / "feduaa", "--run", "study", "--poc", code=2)
    assert "submitted" in told_submit(JOBS / "feduaa", "--run", "study", "--poc", "--missing-ok")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda app: (app / "custom").mkdir(), "a `custom` folder, even if there is nothing in it"),
        (lambda app: (app / "config" / "notes.txt").write_text("x"), "this one has config/notes.txt"),
        (
            lambda app: (app / "config" / "config_fed_client.json").rename(app / "config" / "config_fed_client.conf"),
            "config/config_fed_client.conf",
        ),
        (
            lambda app: (app / "config" / "config_fed_client.json").write_text('{"components": [{"path": "a.B"}]}'),
            "the job names a.B",
        ),
    ],
)
def test_each_thing_that_hardened_sites_refuse_is_told(server, told_submit, tmp_path, change, why):
    server.sites = ("a", "b")
    job = tmp_path / "job"
    words = ["job", "export", str(JOBS / "fedavg"), "--sites", "a,b", "--out", str(job)]
    assert CliRunner().invoke(main, words).exit_code == 0
    change(job / "app")
    assert why in told_submit(job, code=2)
    assert server.metas == []


def done(*names):
    return {"done": [{"step": name, "accepted": ["a", "b"]} for name in names], "returns": ["train-0000", "train-0001"]}


def test_a_run_goes_back_by_a_job_of_its_own(server, tmp_path):
    server.add("study", "FINISHED:ABORTED", **{DIGEST: "d1"})
    server.steps = done("train-0000", "train-0001")
    restart = plan_restart(server, "study", "train-0001", tmp_path)
    assert (restart.dropped, restart.sites, restart.results) == (("train-0001",), ("a", "b"), False)
    found = Experiment.load(restart.named.folder / "app/config/experiment.yaml")
    assert (found.run, found.restart.step, found.restart.mark) == ("study", "train-0001", restart.mark)
    assert found.settings_digest() == Experiment.load(JOB / "app/config/experiment.yaml").settings_digest()
    assert len(server.metas) == 1  # nothing is submitted before it is asked
    job = submit_restart(server, restart)
    assert submit_restart(server, restart).id == job.id
    assert len(server.metas) == 2


@pytest.mark.parametrize(
    ("status", "steps", "step", "said"),
    [
        ("RUNNING", None, "train-0001", "abort it"),
        (
            "FINISHED:ABORTED",
            done("train-0000"),
            "train-0002",
            "has not come to train-0002: its next step is train-0001",
        ),
        ("FINISHED:ABORTED", done("train-0000"), "train-7", "is no step of this run"),
        (
            "FINISHED:ABORTED",
            {**done("train-0000", "train-0001"), "returns": ["train-0001"]},
            "train-0000",
            "the models that train-0000 would begin with are not kept any more: run study can go back to train-0001",
        ),
    ],
)
def test_where_a_run_cannot_go_back_to_is_said_before_anything_is_lost(server, tmp_path, status, steps, step, said):
    server.add("study", status)
    server.steps = steps
    with pytest.raises((AdminError, RefusedError), match=said):
        plan_restart(server, "study", step, tmp_path)
    assert len(server.metas) == 1


def test_a_job_that_left_no_word_can_go_back_unseen(server, tmp_path):
    server.add("study", "FINISHED:ABORTED")
    assert plan_restart(server, "study", "train-0001", tmp_path).dropped is None
