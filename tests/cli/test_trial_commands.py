"""`fedretina loop` and `fedretina simulate`: trials on one machine, over sites with files of their own."""

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.errors import SettingsError, StateError
from fedretina.loop import run_loop
from fedretina.recipes import _FolderJob

SITE_FILE = "data: {manifest: manifest.csv, scheme: icdr5}\n"


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def write_site(folder, images=16):
    assert (
        call("data", "phantom", "--site", folder.name, "--out", folder, "--images", images, "--size", 32).exit_code == 0
    )
    return folder / "site.yaml"


def test_the_loop_runs_over_sites_with_files_of_their_own(tiny, tmp_path, monkeypatch, clean_environment):
    words = tiny(phases=[{"name": "train", "rounds": 1}], phantom_images=0).model_dump_json(exclude={"run"})
    (tmp_path / "e.yaml").write_text(words)
    none = call("loop", tmp_path / "e.yaml", "--run", "a", "--root", tmp_path / "runs")
    assert none.exit_code == 2
    assert "site-1 has no data, and the experiment takes no phantom hospitals (phantom_images: 0): name" in none.output
    north, south = (write_site(tmp_path / name, images=40) for name in ("north", "south"))
    told = ("loop", tmp_path / "e.yaml", "--root", tmp_path / "runs")
    files = ("--site", f"north={north}", "--site", f"south={south}")
    result = call(*told, "--run", "files", *files)
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines()[1:3]] == ["north", "south"]
    assert "photographs" not in result.stderr  # no bar, since nobody watches

    monkeypatch.setenv("FEDRETINA_SITE_FILE", str(tmp_path / "{SITE_NAME}" / "site.yaml"))
    # The same run by other words: a file that says otherwise, what the options change of it, and the run's own name.
    other = {**json.loads(words), "phases": [{"name": "train", "rounds": 3}], "seed": 99, "name": "variable"}
    other["training"]["batch_size"] += 1
    (tmp_path / "e.yaml").write_text(json.dumps(other))
    same = [f"{key}={json.loads(words)[key]}" for key in ("seed", "name")]
    same.append(f"training.batch_size={json.loads(words)['training']['batch_size']}")
    options = [word for change in same for word in ("--set", change)]
    again = call(*told, "--run", "variable", "--rounds", 1, *options, "--sites", "north,south")
    assert again.exit_code == 0, again.output
    renamed = result.output.replace("run files,", "run variable,").replace("/runs/files/", "/runs/variable/")
    assert again.output == renamed
    assert f"results: {tmp_path / 'runs' / 'variable' / 'server' / 'results.json'}" in again.output
    monkeypatch.setenv("FEDRETINA_SITE_FILE", str(north))
    one = call(*told, "--run", "one", "--sites", "north,south")
    assert one.exit_code == 2
    assert "FEDRETINA_SITE_FILE gives several sites one manifest: write {SITE_NAME} into its path" in one.output
    assert not (tmp_path / "runs" / "one").exists()
    for command in ("loop", "simulate"):
        twice = call(
            command, *told[1:], "--run", "one", "--site", f"a={north}", "--site", f"b={north.parent}/../north/site.yaml"
        )
        assert twice.exit_code == 2
        assert "a and b have one manifest, and would be one hospital under two names" in twice.output
    assert not (tmp_path / "runs" / "one").exists()


@pytest.mark.parametrize("command", ["loop", "simulate"])
def test_a_trial_runs_without_keys_and_says_so(command, tmp_path, monkeypatch, clean_environment):
    monkeypatch.chdir(tmp_path)
    Path("keyed.yaml").write_text("he_keys: he-site.keys\n")
    monkeypatch.setattr("fedretina.loop.run_loop", stopped)
    monkeypatch.setattr("fedretina.flare.simulation.Simulation.run", stopped)
    site = ("--site", "site-1=keyed.yaml", "--set", "images.image_size=32", "--set", "phantom_images=16")
    head, sums = "exchange={personal: nothing, encrypt: head}", "phases=[{name: sums, sums: {encrypt: always}}]"
    for words, name, plain in (
        (("fedavg", "--set", "grades=5", "--set", head), "exchange.encrypt", "nothing"),
        (("analytic", "--set", sums), "phases[].sums.encrypt", "with_keys"),
    ):
        result = call(command, *words, *site)
        assert result.exit_code == 2
        assert f"the run encrypts ({name}), and a trial runs without keys: set it to {plain} for" in result.output
    said = "a trial runs without keys: he_keys of site-1 is not read, and sums are not encrypted."
    result = call(command, "analytic", *site, "--sites", "site-2")
    assert said in result.output
    assert "stopped here" in result.output
    assert said not in call(command, "feduaa", *site).output  # a run that reads no keys


@pytest.mark.parametrize("name", ["my runs", "O'Brien", 'a "b"', "c#1", "d\\e"])
def test_a_trial_in_a_folder_whose_path_flare_takes_apart_is_refused_and_the_loop_runs(
    name, tiny, tmp_path, monkeypatch, clean_environment
):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for words in (("simulate", "feduaa"), ("demo", "--quick")):
        result = call(*words)
        assert result.exit_code == 2
        assert "FLARE's simulator cannot start a site where a path has a space, a quote, a backslash" in result.output
        assert "name another folder (--root). `fedretina loop` runs there all the same." in result.output
    with pytest.raises(SettingsError, match=re.escape("name another folder (workspace_root of SimEnv)")):
        _FolderJob("small").simulator_run(str(tmp_path / name), n_clients=1)
    assert not list(Path.cwd().iterdir())
    if name == "my runs":
        Path("e.yaml").write_text(tiny(phases=[{"name": "train", "rounds": 1}]).model_dump_json(exclude={"run"}))
        done = call("loop", "e.yaml", "--run", "a", "--sites", "site-1,site-2")
        assert done.exit_code == 0, done.output
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / name / "python"))
    assert "install fedretina into an environment elsewhere" in call("simulate", "feduaa").output


def stopped(*_, **__):
    raise StateError("stopped here")


def test_the_loop_starts_from_the_weights_that_a_site_names(tmp_path, monkeypatch, clean_environment):
    monkeypatch.chdir(tmp_path)
    Path("w.safetensors").write_bytes(b"weights")
    Path("site.yaml").write_text("weights_file: w.safetensors\n")
    words = ["--set", f"network.weights={{source: file, sha256: {64 * 'a'}}}", "--set", "images.image_size=32"]
    result = call("loop", "feduaa", "--site", "site-1=site.yaml", "--set", "phantom_images=16", *words)
    assert result.exit_code == 2
    assert "The file of pre-trained weights has sha256 9a129038d9" in result.output
    without = call("loop", "feduaa", "--sites", "site-1", "--set", "phantom_images=16", *words)
    assert "this end was not told where its copy is; set weights_file" in without.output


def test_the_loop_names_a_site_that_its_settings_do_not_fit_and_goes_on(tiny, tmp_path, clean_environment):
    experiment = tiny(row="fedavg", grades=5, exchange={"personal": "nothing"}, phases=[{"name": "train", "rounds": 1}])
    (tmp_path / "e.yaml").write_text(experiment.model_dump_json(exclude={"run"}))
    result = call("loop", tmp_path / "e.yaml", "--run", "a", "--root", tmp_path, "--sites", "site-1,site-2")
    assert result.exit_code == 2, result.output
    assert "no result from site-2: the job's head has 5 grades and this site's scheme 4: let the" in result.output
    assert result.output.endswith("fedretina: no model for site-2: what stands below the table says why.\n")
    found = json.loads((tmp_path / "a" / "server" / "results.json").read_text())
    assert list(found["sites"]) == ["site-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "nosuch"),
        (("nosuch.yaml",), "the experiment file nosuch.yaml cannot be read"),
        (("feduaa", "--set", "training.epochs"), "'training.epochs' is no KEY=VALUE: write it as training.epochs=2."),
        (("feduaa", "--set", "seed.x=1", "--set", "seed=2"), "seed"),
        (("feduaa", "--set", "name.x=1"), "--set name.x: name holds no settings by name"),
        (("feduaa", "--set", "training.batchsize=8"), "batchsize"),
        (("feduaa", "--set", "training=[1"), "the value of --set training"),
    ],
)
def test_what_the_loop_cannot_run_is_a_sentence(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = call("loop", *words)
    assert result.exit_code == 2
    assert result.output.startswith("fedretina: ")
    assert said in result.output
    assert not list(tmp_path.iterdir())


def test_what_a_trial_cannot_run_is_told_before_flare_starts(tmp_path, monkeypatch, clean_environment):
    monkeypatch.chdir(tmp_path)
    Path("gone.yaml").write_text(SITE_FILE)
    Path("scans.yaml").write_text(SITE_FILE.replace("icdr5", "oct3"))
    for words, said in (
        (
            ("feduaa", "--site", "north=scans.yaml"),
            "north: the job takes fundus photographs (images.modality 'fundus'), and this site has OCT",
        ),
        (
            ("feduaa", "--site", "north=gone.yaml"),
            f"the manifest {tmp_path / 'manifest.csv'} is missing",
        ),
        (("centralised",), "needs all images in one place, which no federation has"),
        (("feduaa", "--set", "trainig.epochs=2"), "trainig is no setting: did you mean training?"),
        (("feduaa", "--set", "phantom_images=0"), "site-1 has no data, and the experiment takes no phantom hospitals"),
    ):
        result = call("simulate", *words)
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone.yaml", "scans.yaml"]


def test_a_trial_without_a_model_for_one_of_its_sites_does_not_end_well(tiny, phantoms, tmp_path, monkeypatch):
    experiment = tiny()
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r")
    monkeypatch.setattr("fedretina.flare.simulation.Simulation.run", lambda *_: None)  # the run above stands for it
    words = ["simulate", "feduaa", "--sites", "site-1,site-2", "--run", "r", "--root", str(tmp_path)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, result.output
    assert "no model for site-2: " in result.output
    assert result.output.endswith(" says why. Another --run begins anew.\n")  # the run is complete, and owes it nothing
