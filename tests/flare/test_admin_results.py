"""What a job left, from downloads made by hand."""

import json

import pytest

from fedretina.errors import AdminError, NotDoneError, StateError
from fedretina.flare.admin_jobs import COMPLETED, Job
from fedretina.flare.admin_runs import Sight, fetch, outcome, outcome_of, results_file
from fedretina.flare.submitted_job import SUBMITTED_AS
from printed import shown


def job(status=COMPLETED, **more):
    meta = {"job_id": "j-1", "name": "study", "job_folder_name": SUBMITTED_AS, "status": status, "deploy_map": {}}
    return Job.of({**meta, **more})


class Downloads:
    """Hands out what is in `files`, as FLARE does: a folder called by the job."""

    def __init__(self, **files):
        self.files = files

    def download(self, job_id, into):
        folder = into / job_id / "workspace" / "fedretina"
        folder.mkdir(parents=True)
        for name, words in self.files.items():
            (folder / f"{name}.json").write_text(json.dumps(words))
        return into / job_id


def test_a_download_replaces_an_earlier_one(tmp_path):
    first = fetch(Downloads(results={}, report={}), job(), tmp_path / "out")
    assert first == tmp_path / "out" / "j-1"
    second = fetch(Downloads(results={"run": "study"}), job(), tmp_path / "out")
    assert second == first
    assert {path.name for path in second.rglob("*.json")} == {"results.json"}
    assert json.loads(results_file(second).read_text()) == {"run": "study"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["j-1"]


def test_a_job_that_runs_has_no_results_yet(tmp_path):
    with pytest.raises(NotDoneError, match="is RUNNING"):
        fetch(Downloads(), job("RUNNING"), tmp_path)


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StateError, match="not saved"):
        fetch(Downloads(), job(), tmp_path / "out")


def test_the_run_decides_not_flares_word(tmp_path):
    done = Downloads(results={}).download("j-1", tmp_path / "a")
    assert outcome_of(done, job()) == (True, None, ())
    abnormal = outcome_of(done, job("FINISHED:ABNORMAL"))
    assert abnormal.complete
    assert "though FLARE calls its job FINISHED:ABNORMAL" in abnormal.why
    stopped = Downloads(stopped={"why": "below the quorum."}).download("j-1", tmp_path / "b")
    assert outcome_of(stopped, job("FINISHED:EXECUTION_EXCEPTION")).why.startswith(
        "below the quorum. `fedretina resume"
    )
    silent = Downloads().download("j-1", tmp_path / "c")
    became = outcome_of(silent, job("FINISHED:ABORTED"))
    assert not became.complete
    assert "FLARE calls it FINISHED:ABORTED" in became.why


def test_a_complete_run_says_which_sites_lack_a_result():
    steps = [{"step": "train-0000", "task": "train", "scalars": {"a": {}, "b": {}}}]
    words = {"run": "study", "steps": steps, "chosen": "train-0000", "sites": {"a": {}}}
    sight = Sight(job(), None, False)
    became = outcome(Downloads(results=words), sight)
    assert (became.complete, became.owed) == (True, ("b",))
    assert became.why.startswith("b trained and has no model yet: `fedretina resume study`")
    assert outcome(Downloads(results={**words, "sites": {"a": {}, "b": {}}}), sight) == (True, None, ())
    assert outcome(Downloads(), sight) == (True, None, ())  # FLARE says so, and nothing was published
    abnormal = outcome(Downloads(results=words), Sight(job("FINISHED:ABNORMAL"), None, False))
    assert len(abnormal.why.splitlines()) == 2


def test_who_may_watch_but_not_fetch_is_told_that_much():
    class Refused:
        def download(self, job_id, into):
            raise AdminError("member may not download a job.")

    failed = Sight(job("FINISHED:ABORTED"), None, False)
    assert outcome(Refused(), failed) == (
        False,
        "FLARE calls it FINISHED:ABORTED; why is not known here, since member may not download a job.",
        (),
    )
    assert outcome(Refused(), Sight(job(), None, False)) == (True, None, ())
    assert "resume study" in outcome(Refused(), Sight(job("RUNNING"), None, True)).why


LONG = "\x1b[2J" + "x" * 5000


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        (["server: BYOC not permitted"], "the server did not take the job: the job brings code"),
        (
            ["server: OK", "a: NVFLARE_ERROR: BYOC not permitted", "b: NVFLARE_ERROR: BYOC not permitted"],
            "a, b did not take the job: the job brings code",
        ),
        (["a: no reply (deployment timeout)", "num_ok_sites 1 < required_min_sites 2"], "1 sites took the job"),
        (["a: app app does not pass signature verification"], "the job's files were changed after it was signed"),
        (["failed to deploy to required client a"], "The job is not begun without a (`mandatory_clients`)"),
        (["invalid_clients: a,b"], "Not connected any more: a,b."),
        (["a: a word that nobody knows"], 'a did not take the job: "a word that nobody knows".'),
        (["a:"], "a did not take the job: it does not say why."),
        (None, "FLARE calls it FINISHED:FAILED_TO_RUN and does not say why"),
        ([7, {"a": "b"}], "does not say why"),
    ],
)
def test_a_job_that_was_refused_says_by_whom_and_why(detail, told):
    refused = job("FINISHED:FAILED_TO_RUN", job_deploy_detail=detail)
    became = outcome(None, Sight(refused, None, False))  # it left nothing that would have to be fetched
    assert not became.complete
    assert told in became.why
    assert became.why.endswith("Nothing has run: mend that and submit the job again, under the same name if you like.")


def test_the_admins_page_shows_how_a_job_with_code_ends():
    refused = job("FINISHED:FAILED_TO_RUN", job_deploy_detail=["server: BYOC not permitted"], duration="N/A")
    sight = Sight(refused, None, False)
    first, moment, why = shown("docs/admin.md", "fedretina watch --run code").splitlines()
    assert first.endswith(", run code")
    assert moment.endswith(f"  {sight.words()}")
    assert why == outcome(None, sight).why


def test_words_of_others_are_short_and_printable():
    refused = job("FINISHED:FAILED_TO_RUN", job_deploy_detail=[f"{LONG}: {LONG}"])
    why = outcome(None, Sight(refused, None, False)).why
    assert why.isprintable()
    assert len(why) < 700


def test_a_job_that_flare_gave_up_to_begin_says_what_it_waited_for():
    tries = [f"2026-11-22 10:00:0{n}: connected sites (1) < min_sites (3)" for n in range(9)]
    meta = {"schedule_history": [*tries, "2026-11-22 11:00:00: exceeded max schedule count 10"]}
    why = outcome(None, Sight(job("FINISHED:CAN_NOT_SCHEDULE", **meta), None, False)).why
    assert "FLARE tried 9 times to begin the job and gave up: 1 of its sites were connected, and it needs 3." in why
    meta = {"schedule_history": ["2026-11-22 10:00:00: missing required site north"], "cloned_from": "j-0"}
    why = outcome(None, Sight(job("FINISHED:CAN_NOT_SCHEDULE", **meta), None, False)).why
    assert "it is not begun without north, which was not connected" in why
    assert "`fedretina resume study` tries again" in why


def test_a_class_that_was_not_built_is_named(tmp_path):
    downloaded = Downloads().download("j-1", tmp_path)
    config = downloaded / "job" / "folder" / "app" / "config"
    config.mkdir(parents=True)
    (config / "config_fed_client.json").write_text('{"components": [{"path": "somebody.Else"}]}')
    why = outcome_of(downloaded, job("FINISHED:ABNORMAL")).why
    assert "the job names somebody.Else" in why
    assert "most likely" in why
    assert "resume" not in why  # it would submit the same job
    log = "ComponentNotAuthorized: Component 'other.Class' at config path 'components.#3' is not in allow_list"
    (downloaded / "workspace" / "error_log.txt").write_text(log)
    assert "the server's allow-list does not hold other.Class" in outcome_of(downloaded, job("FINISHED:ABNORMAL")).why
    (config.parent / "custom").mkdir()
    (downloaded / "workspace" / "error_log.txt").unlink()
    assert "left no word" in outcome_of(downloaded, job("FINISHED:ABNORMAL")).why


def test_a_complete_run_names_the_site_that_did_not_take_its_job():
    refused = job(job_deploy_detail=["server: OK", "a: OK", "b: NVFLARE_ERROR: not authorized"])
    became = outcome(Downloads(results={"run": "study", "steps": [], "sites": {}}), Sight(refused, None, False))
    assert became.complete
    assert "b did not take the job: whoever submitted the job may not do so there" in became.why
