"""What a job left, from downloads made by hand."""

import json

import pytest

from fedretina.errors import AdminError, NotDoneError, StateError
from fedretina.flare.admin_jobs import COMPLETED, Job
from fedretina.flare.admin_results import fetch, outcome, outcome_of, results_file
from fedretina.flare.admin_watch import Sight
from fedretina.flare.named_job import SUBMITTED_AS


def job(status=COMPLETED):
    meta = {"job_id": "j-1", "name": "study", "job_folder_name": SUBMITTED_AS, "status": status, "deploy_map": {}}
    return Job.of(meta)


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
