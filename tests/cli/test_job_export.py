"""The production form of the committed jobs, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.kit.job_folder import ALLOWED_CLASSES, classes_named
from fedretina.settings.experiment import Experiment

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def export(*words, code=0):
    result = CliRunner().invoke(main, ["job", "export", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def named(job):
    return {
        name
        for end in ("server", "client")
        for name in classes_named(json.loads((job / "app" / "config" / f"config_fed_{end}.json").read_text()))
    }


def test_the_allow_list_is_what_the_jobs_name_and_no_more():
    assert set().union(*(named(job) for job in JOBS.iterdir())) == set(ALLOWED_CLASSES)


@pytest.mark.parametrize("job", sorted(JOBS.iterdir()), ids=lambda job: job.name)
def test_an_exported_job_has_no_code_and_names_its_sites(job, tmp_path):
    export(job, "--sites", "north,south,west", "--out", tmp_path / "out", "--quorum", 2, "--mandatory", "south")
    out = tmp_path / "out"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        "meta.json",
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "app/config/experiment.yaml",
    }
    meta = json.loads((out / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", "north", "south", "west"]}
    assert (meta["min_clients"], meta["mandatory_clients"]) == (2, ["south"])
    for end in ("server", "client"):
        name = f"app/config/config_fed_{end}.json"
        assert json.loads((out / name).read_text()) == json.loads((job / name).read_text())
    before = Experiment.load(job / "app/config/experiment.yaml")
    after = Experiment.load(out / "app/config/experiment.yaml")
    assert after == before.model_copy(update={"quorum": 2, "phantom_images": 0})
    lines = (job / "app/config/experiment.yaml").read_text().splitlines()
    comments = [line[line.index("#") :] for line in lines if "#" in line]
    text = (out / "app/config/experiment.yaml").read_text()
    assert all(comment in text for comment in comments)
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_job_asks_the_named_sites_for_a_card(tmp_path):
    words = (JOBS / "feduaa", "--sites", "north,south,west", "--gpu", "south,west")
    export(*words, "--gpu-memory", 12, "--out", tmp_path / "out")
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    asked = {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 12.0}
    assert meta["resource_spec"] == {"south": asked, "west": asked}
    export(JOBS / "feduaa", "--sites", "north", "--out", tmp_path / "none")
    assert json.loads((tmp_path / "none" / "meta.json").read_text())["resource_spec"] == {}
    assert "--gpu and --gpu-memory, or neither" in export(*words, "--out", tmp_path / "no", code=2)
    assert "must lie between 0 and" in export(*words, "--gpu-memory", 0, "--out", tmp_path / "no", code=2)
    other = (JOBS / "feduaa", "--sites", "north", "--gpu", "east", "--gpu-memory", 1, "--out", tmp_path / "no")
    assert "east is to give a GPU but takes no part" in export(*other, code=2)


def test_the_same_words_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        export(JOBS / "feduaa", "--sites", "north,south", "--out", tmp_path / name, "--run", "spring")
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()} for n in ("a", "b"))
    assert first == second
    assert yaml.safe_load(first["experiment.yaml"])["run"] == "spring"


@pytest.mark.parametrize("name", ["20261122", "2026-11-22", "1e5", "null", "on", "yes", "0x1F", "1_000", "spring"])
def test_a_runs_name_stays_text_whatever_it_looks_like(tmp_path, name):
    export(JOBS / "feduaa", "--sites", "north,south", "--out", tmp_path / "out", "--run", name)
    written = tmp_path / "out/app/config/experiment.yaml"
    assert yaml.safe_load(written.read_text())["run"] == name
    assert Experiment.load(written).run == name


def test_a_rehearsal_keeps_its_phantoms(tmp_path):
    export(JOBS / "feduaa", "--sites", "north", "--out", tmp_path / "out", "--phantoms")
    assert Experiment.load(tmp_path / "out/app/config/experiment.yaml").phantom_images == 160


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sites", "a,a"], "name each site once"),
        (["--sites", ""], "name each site once"),
        (["--sites", "server,a"], "the server's name"),
        (["--sites", "../a"], "not a plain name"),
        (["--sites", "a", "--quorum", "2"], "quorum must lie between 1 and the number of sites, 1"),
        (["--sites", "a", "--mandatory", "b"], "b is mandatory but takes no part"),
        (["--sites", "a", "--run", "a/b"], "not a plain name"),
    ],
)
def test_what_cannot_be_is_refused(options, said, tmp_path):
    assert said in export(JOBS / "feduaa", *options, "--out", tmp_path / "out", code=2)
    assert not list(tmp_path.iterdir())


def test_a_job_that_hardened_sites_would_refuse_is_not_written(tmp_path):
    job = shutil.copytree(JOBS / "feduaa", tmp_path / "job")
    path = job / "app/config/config_fed_client.json"
    path.write_text(path.read_text().replace("fedretina.flare.executor.TrainerExecutor", "theirs.Executor"))
    assert "names theirs.Executor, which hardened sites refuse" in export(
        job, "--sites", "a", "--out", tmp_path / "out", code=2
    )
    shutil.rmtree(job / "app")
    assert "is no job of this package" in export(job, "--sites", "a", "--out", tmp_path / "out", code=2)


def test_an_existing_folder_is_left_alone(tmp_path):
    assert "exists" in export(JOBS / "feduaa", "--sites", "a", "--out", tmp_path, code=2)
