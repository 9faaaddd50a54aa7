"""FLARE's recipes: what each environment is given, file by file, and what is refused before anything runs.

That such a job ends with the loop's bits: tests/flare/test_covering_rows.py (SimEnv and PocEnv, by `job.py`) and
tests/provisioned (ProdEnv).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nvflare.apis.job_def import JobMetaKey
from nvflare.recipe import (
    PocEnv,
    ProdEnv,
    SimEnv,
    add_experiment_tracking,
    set_per_site_config,
    set_recipe_meta,
    spec,
)

from fedretina import recipes
from fedretina.errors import DataError, SettingsError
from fedretina.flare.submitted_job import DIGEST, named_copy
from fedretina.job_export import export_job, why_refused
from fedretina.jobs import job_files
from fedretina.recipes import AnalyticRecipe, FedEERecipe, FedUAARecipe, JobRecipe, OCTRecipe, RowRecipe
from fedretina.settings.plan import RUN_KEY

JOBS = Path(__file__).resolve().parents[1] / "jobs"
EXPERIMENT = "app/config/experiment.yaml"


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def exported(recipe, folder, env=None):
    recipe.export(str(folder), env=env)
    return files_of(folder / recipe.name)


def experiment(files):
    return yaml.safe_load(files[EXPERIMENT])


def committed(name):
    return {path: text for path, text in files_of(JOBS / name).items() if path != "job.py"}


@pytest.fixture
def federation(tmp_path):
    kit = tmp_path / "kit"
    kit.mkdir()
    return ProdEnv(str(kit))


@pytest.mark.parametrize(
    ("recipe", "name"),
    [(FedUAARecipe, "feduaa"), (OCTRecipe, "oct_moco_scaffold"), (FedEERecipe, "fedee"), (AnalyticRecipe, "analytic")],
)
def test_a_recipe_is_the_committed_job_of_its_row(recipe, name, tmp_path):
    assert exported(recipe(), tmp_path) == committed(name)


def test_a_learners_recipe_is_the_committed_job(tmp_path):
    assert exported(FedUAARecipe(name="feduaa_learner", learner=True), tmp_path) == committed("feduaa_learner")


def test_changes_are_laid_over_the_rows_own_job_or_over_a_file(tmp_path):
    changes = {"training": {"epochs": 2}, "phases": [{"name": "train", "rounds": 1}]}
    own = experiment(committed("feduaa"))
    found = experiment(exported(FedUAARecipe(changes, run="mine"), tmp_path / "row"))
    assert found == {
        **own,
        "training": {**own["training"], "epochs": 2},
        "phases": changes["phases"],
        "run": "mine",
    }
    file = tmp_path / "small.yaml"
    file.write_text("name: small\nrow: fedbn # as in the paper\n")
    assert exported(RowRecipe(file), tmp_path / "file")[EXPERIMENT] == file.read_text()
    assert experiment(exported(RowRecipe(file, {"seed": 4}), tmp_path / "more")) == {
        "name": "small",
        "row": "fedbn",
        "seed": 4,
    }


@pytest.mark.parametrize("named", [{}, {"login_timeout": 120.0}])
def test_the_poc_server_is_given_a_minute_to_start_or_what_the_user_says(named, tmp_path):
    env = PocEnv(num_clients=2, extra=dict(named))
    exported(FedUAARecipe(), tmp_path / "job", env)
    assert env.get_extra_prop("login_timeout") == named.get("login_timeout", 60.0)


@pytest.mark.parametrize("place", [SimEnv, PocEnv])
def test_one_machine_is_given_its_own_sites(place, tmp_path):
    def given(recipe, folder, env=None):
        files = exported(recipe, tmp_path / folder, env)
        meta = json.loads(files["meta.json"])
        # PocEnv submits before its sites are there, and FLARE would begin without those that come later.
        waits = meta.pop("mandatory_clients")
        assert waits == ((env.clients or ["site-1", "site-2"]) if isinstance(env, PocEnv) else [])
        return {**files, "meta.json": meta}

    def files(*sites):
        written = job_files("feduaa", sites=sites)
        meta = json.loads(written["meta.json"])
        assert meta.pop("mandatory_clients") == []
        return {**written, "meta.json": meta}

    assert given(FedUAARecipe(), "two", place(num_clients=2)) == files("site-1", "site-2")
    two = place(num_clients=2, clients=["north", "west"])
    assert given(FedUAARecipe(), "named", two) == files("north", "west")
    chosen = FedUAARecipe(sites=["north", "west", "south"])
    assert given(chosen, "fewer", two) == files("north", "west", "south")
    with pytest.raises(SettingsError, match=r"has a site site-1, and the job is for north, west, south: .*clients="):
        chosen.export(str(tmp_path / "other"), env=place(num_clients=2))
    assert given(chosen, "none") == files("north", "west", "south")  # nothing of an environment stays


@pytest.mark.filterwarnings("error::nvflare.recipe.PotentialSecretWarning")  # of the digest that goes with the job
def test_a_federation_is_given_what_submit_sends(federation, tmp_path):
    sites = ["north", "west"]
    recipe = FedUAARecipe(sites=sites, run="first", mandatory=["west"])
    found = exported(recipe, tmp_path / "recipe", federation)
    by_hand, scratch = tmp_path / "by-hand", tmp_path / "scratch"
    scratch.mkdir()
    base = tmp_path / "base" / "feduaa"
    for path, text in job_files("feduaa", sites=sites).items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text(text)
    export_job(base, by_hand, sites, mandatory=["west"], run="first")
    sent = named_copy(by_hand, scratch)
    # The recipe writes the run into the job's settings, and the commands into the exported copy: the same settings.
    assert experiment(found) == experiment(files_of(sent.folder))
    ours, theirs = json.loads(found["meta.json"]), json.loads((sent.folder / "meta.json").read_text())
    assert (ours.pop(DIGEST) is not None, theirs.pop(DIGEST)) == (True, sent.digest)
    assert ours == theirs
    assert (ours["name"], ours[RUN_KEY], ours["mandatory_clients"]) == ("first", "first", ["west"])
    assert {key for key in found if key not in (EXPERIMENT, "meta.json")} == {
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
    }
    assert why_refused(tmp_path / "recipe" / "feduaa") is None
    assert experiment(found)["phantom_images"] == 0
    trial = exported(FedUAARecipe(sites=sites, phantoms=True), tmp_path / "trial", federation)
    assert experiment(trial)["phantom_images"] == 160
    assert experiment(trial)["run"].startswith("feduaa-")
    again = JobRecipe(base, run="first", mandatory=["west"])
    assert exported(again, tmp_path / "again", federation) == files_of(sent.folder)  # a folder's, byte by byte
    for reason, wrong in (("sites have names of their own", FedUAARecipe()), ("quorum is 3", FedUAARecipe(
        {"quorum": 3}, sites=sites))):  # fmt: skip
        with pytest.raises(SettingsError, match=reason):
            wrong.export(str(tmp_path / "wrong"), env=federation)


ADDED = {
    "a file": lambda recipe: recipe.add_client_file("code.py"),
    "a file at the server": lambda recipe: recipe.add_server_file("code.py"),
    "a configuration": lambda recipe: recipe.add_client_config({"timeout": 3}),
    "a filter": lambda recipe: recipe.add_client_output_filter(object()),
    "a job's file": lambda recipe: recipe._job.add_file_to_clients("code.py"),
    "parameters": lambda recipe: recipe.run(SimEnv(num_clients=2), server_exec_params={"timeout": 3}),
    "a tracker": lambda recipe: add_experiment_tracking(recipe, "tensorboard"),
    "a stream of logs": lambda recipe: recipe.enable_log_streaming(),
}


@pytest.mark.parametrize("what", ADDED)
def test_what_a_hardened_site_takes_from_no_job_is_refused_at_once(what):
    with pytest.raises(SettingsError, match=r"holds its settings and nothing else.*say what is to change by a setting"):
        ADDED[what](FedUAARecipe())


def test_what_cannot_be_is_told_when_the_recipe_is_made(tmp_path):
    with pytest.raises(SettingsError, match="trainig is no setting: did you mean training"):
        FedUAARecipe({"trainig": {"epochs": 2}})
    with pytest.raises(SettingsError, match="images in one place"):
        RowRecipe("centralised")
    with pytest.raises(SettingsError, match="no row"):
        RowRecipe("no_such_row")
    with pytest.raises(SettingsError, match="named twice"):
        FedUAARecipe(sites=["a", "a"])
    with pytest.raises((SettingsError, DataError), match="cannot be read"):
        RowRecipe(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match="no job of this package"):
        JobRecipe(tmp_path)
    with pytest.raises(SettingsError, match="own site file"):
        set_per_site_config(FedUAARecipe(), {"site-1": {"epochs": 2}})
    FedUAARecipe().export(str(tmp_path))
    with pytest.raises(SettingsError, match="is there already"):
        FedUAARecipe().export(str(tmp_path))


def test_what_flares_scheduler_reads_goes_into_every_form(federation, tmp_path):
    recipe = FedUAARecipe(sites=["north", "west"])
    set_recipe_meta(recipe, JobMetaKey.RESOURCE_SPEC, {"north": {"num_of_gpus": 1}})
    for env in (None, federation):
        found = json.loads(exported(recipe, tmp_path / str(bool(env)), env)["meta.json"])
        assert found["resource_spec"] == {"north": {"num_of_gpus": 1}}


def test_a_folder_is_taken_as_it_lies_there(tmp_path):
    folder = tmp_path / "mine"
    for path, text in {**job_files("fedbn", "mine", ["a", "b", "c"]), "job.py": "", ".hidden": ""}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "app/custom/theirs.py").write_text("# in a trial on one machine a job may bring code\n")
    recipe = JobRecipe(folder)
    assert (recipe.name, recipe.sites) == ("mine", ("a", "b", "c"))
    found = exported(recipe, tmp_path / "out", SimEnv(clients=["a", "b"]))
    assert found == {path: text for path, text in files_of(folder).items() if path not in ("job.py", ".hidden")}
    others = exported(JobRecipe(folder, sites=["x"]), tmp_path / "others")
    assert json.loads(others.pop("meta.json"))["deploy_map"] == {"app": ["server", "x"]}
    assert others.items() <= found.items()


RUN = """
import runpy, sys
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
finally:
    print(sorted({"torch", "monai", "cv2"} & set(sys.modules)))
"""


def test_the_script_beside_a_job_exports_it_and_waits_for_nothing_heavy(tmp_path):
    script = JOBS / "feduaa" / "job.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(script), "--export", "--export-dir", str(tmp_path / "out")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert files_of(tmp_path / "out" / "feduaa") == committed("feduaa")


@pytest.mark.filterwarnings("error")
def test_the_page_does_what_it_says(tmp_path, monkeypatch, capsys):
    page = (JOBS.parent / "docs" / "recipes.md").read_text()
    one_machine, federation = (part.split("```")[0] for part in page.split("```python\n")[1:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kits/lead@consortium.example").mkdir(parents=True)
    for at, code in enumerate((one_machine, federation)):
        # What FLARE keeps of `--export --export-dir`, where a script is called with them.
        monkeypatch.setattr(spec, "_RECIPE_EXPORT", True)
        monkeypatch.setattr(spec, "_RECIPE_EXPORT_DIR", str(tmp_path / str(at)))
        with pytest.raises(SystemExit, match="0"):
            exec(compile(code, "recipes.md", "exec"), {})
    assert experiment(files_of(tmp_path / "0/feduaa"))["training"]["epochs"] == 2
    assert json.loads((tmp_path / "0/feduaa/meta.json").read_text())["deploy_map"]["app"][1:] == [
        f"site-{number}" for number in (1, 2, 3)
    ]
    assert experiment(files_of(tmp_path / "1/feduaa"))["run"] == "first"
    assert why_refused(tmp_path / "1/feduaa") is None
    assert set(re.findall(r"\w+Recipe\b", page)) == set(recipes.__all__)
