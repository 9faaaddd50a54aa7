"""The copy of a job that is submitted under a run's name."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from fedretina.errors import RefusedError, SettingsError
from fedretina.flare.submitted_job import DIGEST, SUBMITTED_AS, named_copy
from fedretina.settings.experiment import Experiment

JOB = Path(__file__).resolve().parents[2] / "jobs" / "feduaa"


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy(tmp_path, place, job=JOB, **words):
    (tmp_path / place).mkdir()
    return named_copy(job, tmp_path / place, **words)


def changed(tmp_path, **experiment):
    job = tmp_path / "changed"
    shutil.copytree(JOB, job)
    path = job / "app/config/experiment.yaml"
    for name, value in experiment.items():
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{name}:")]
        path.write_text("\n".join([*lines, f"{name}: {value}", ""]))
    return job


def test_a_copy_carries_the_runs_name_and_leaves_the_job_as_it_was(tmp_path):
    before = files(JOB)
    named = copy(tmp_path, "a", run="study-7")
    assert files(JOB) == before
    assert named.folder.name == SUBMITTED_AS
    assert named.sites == tuple(f"site-{number}" for number in range(1, 6))
    meta = json.loads((named.folder / "meta.json").read_text())
    assert (meta["name"], meta[DIGEST]) == ("study-7", named.digest)
    assert Experiment.load(named.folder / "app/config/experiment.yaml").run == "study-7"
    words = (named.folder / "app/config/experiment.yaml").read_text()
    assert words.startswith((JOB / "app/config/experiment.yaml").read_text().rstrip())  # comments stay
    assert set(files(named.folder)) == set(before) - {Path("job.py")}  # which runs the folder from where it is kept


def test_the_digest_tells_jobs_and_runs_apart(tmp_path):
    once, again = copy(tmp_path, "a", run="x"), copy(tmp_path, "b", run="x")
    assert once.digest == again.digest
    assert files(once.folder) == files(again.folder)
    assert copy(tmp_path, "c", run="y").digest != once.digest
    assert copy(tmp_path, "d", job=changed(tmp_path, quorum=2), run="x").digest != once.digest


@pytest.mark.parametrize("run", ["2024", "1e5", "true", "null", "study.1_b"])
def test_a_name_that_looks_like_something_else_stays_a_name(tmp_path, run):
    named = copy(tmp_path, "a", run=run)
    assert Experiment.load(named.folder / "app/config/experiment.yaml").run == run


def test_the_name_in_the_experiment_file_holds_unless_another_is_given(tmp_path):
    job = changed(tmp_path, run="written")
    assert copy(tmp_path, "a", job=job).run == "written"
    other = copy(tmp_path, "b", job=job, run="given")
    words = yaml.safe_load((other.folder / "app/config/experiment.yaml").read_text())
    assert words["run"] == "given"


def test_without_a_name_each_copy_is_a_new_run(tmp_path):
    names = {copy(tmp_path, place).run for place in "ab"}
    assert len(names) == 2
    assert all(name.startswith("feduaa-") for name in names)


def test_signatures_and_bytecode_are_not_copied(tmp_path):
    job = changed(tmp_path)
    (job / "app/.__nvfl_sig.json").write_text("{}")
    (job / "app/custom/__pycache__").mkdir()
    (job / "app/custom/__pycache__/a.pyc").write_bytes(b"0")
    assert copy(tmp_path, "a", job=job, run="x").digest == copy(tmp_path, "b", run="x").digest


def test_other_sites(tmp_path):
    named = copy(tmp_path, "a", run="x", sites=["north", "south"])
    assert named.sites == ("north", "south")
    meta = json.loads((named.folder / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "north", "south"]}


def test_what_is_no_job_gets_a_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingsError, match="it has no meta"):
        copy(tmp_path, "a", job=tmp_path / "empty")
    (tmp_path / "empty/meta.json").write_text("[]")
    with pytest.raises(SettingsError, match="deploy_map"):
        copy(tmp_path, "b", job=tmp_path / "empty")
    (tmp_path / "empty/meta.json").write_text('{"deploy_map": {"app": ["@ALL"]}}')
    with pytest.raises(SettingsError, match="is missing"):
        copy(tmp_path, "c", job=tmp_path / "empty")
    for number, meta in enumerate(('{"deploy_map": {}}', '{"deploy_map": {"app": 5}}', "[" * 100_000)):
        (tmp_path / "empty/meta.json").write_text(meta)
        with pytest.raises(SettingsError, match=r"meta\.json"):
            copy(tmp_path, f"c{number}", job=tmp_path / "empty")
    with pytest.raises(RefusedError, match="name"):
        copy(tmp_path, "d", run="../x")
    with pytest.raises(SettingsError, match="quorum"):
        copy(tmp_path, "e", job=changed(tmp_path, quorum=0))


@pytest.mark.parametrize(
    "words", ["row: feduaa\nrun : old\n", "{row: feduaa, seed: 3}\n", "row: feduaa\n...\n", "  seed: 2\n"]
)
def test_settings_that_take_no_line_are_refused_here_and_not_at_every_site(tmp_path, words):
    job = changed(tmp_path)
    (job / "app/config/experiment.yaml").write_text(words)
    assert Experiment.load(job / "app/config/experiment.yaml").row == "feduaa"
    with pytest.raises(SettingsError, match="`run: NAME` in one line of its own"):
        copy(tmp_path, "a", job=job, run="new")


def test_a_file_that_cannot_be_copied_is_a_sentence(tmp_path):
    job = changed(tmp_path)
    (job / "notes.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="each of its files must be there and readable"):
        copy(tmp_path, "a", job=job)
