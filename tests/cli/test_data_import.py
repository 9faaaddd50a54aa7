"""`fedretina data import` as its user runs it, and its page in the documentation."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.readers import readers
from public_sets import class_folders, eyepacs, odir, picture, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data_import.md"


def call(*words):
    return CliRunner().invoke(main, ["data", "import", *(str(word) for word in words)])


@pytest.fixture
def eyes(tmp_path):
    eyepacs(tmp_path / "set", [(k % 5, (k + 1) % 5) for k in range(20)], draw=picture)
    return tmp_path / "set"


def test_an_import_prints_counts_and_what_to_do_next(eyes, tmp_path):
    result = call("eyepacs", eyes, "--out", tmp_path / "out", "--fractions", "0.6,0.2,0.2", "--seed", 3)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert lines[0] == ["train", "val", "test", "all"]
    assert lines[6:8] == [["images", "24", "8", "8", "40"], ["patients", "12", "4", "4", "20"]]
    counts = json.loads((tmp_path / "out" / "import.json").read_text())["images"]
    for cells in lines[1:6]:
        assert [int(cell) for cell in cells[1:4]] == [counts[split][cells[0]] for split in ("train", "val", "test")]
    assert f"next: fedretina data check {tmp_path / 'out' / 'site.yaml'}" in result.output
    assert "left out" not in result.output


def test_what_was_left_out_and_warnings_are_said(tmp_path):
    odir(tmp_path / "set", dict.fromkeys(range(12), ("normal fundus", "glaucoma")))
    result = call("odir5k", tmp_path / "set", "--out", tmp_path / "out", "--scheme", "normal_3stages")
    assert result.exit_code == 0, result.output
    assert f"left out 12, each named in {tmp_path / 'out' / 'left_out.csv'}:" in result.output
    assert "12  other findings, and retinopathy is not mentioned" in result.output
    assert "warning: grades are read from the doctor's keywords" in result.output
    assert result.output.splitlines()[1].startswith("normal ")


def test_the_record_as_json(eyes, tmp_path):
    result = call("eyepacs", eyes, "--out", tmp_path / "out", "--json", "--hash-patients")
    assert json.loads(result.output) == json.loads((tmp_path / "out" / "import.json").read_text())
    assert json.loads(result.output)["patients_hashed"] is True


def test_options_reach_the_reader(tmp_path):
    class_folders(tmp_path / "set", {"ill": 8, "well": 8, "bad": 8}, draw=picture)
    words = ["--grades", "well, ill,bad", "--ungradable", "bad", "--patient-pattern", r"(?P<patient>p\w+)_", "--json"]
    result = call("class_folders", tmp_path / "set", "--out", tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    record = json.loads(result.output)
    assert record["grades"] == ["well", "ill", "bad"]
    assert sum(record["patients"].values()) == 12


def test_the_list_names_every_set():
    result = call("--list")
    assert result.exit_code == 0
    for name, entry in readers().items():
        assert f"{name}: {entry.title}\n" in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eyepacs", "--fractions", "0.7,0.3"], "has 2 shares"),
        (["eyepacs", "--fractions", "a,b,c"], "is no list of numbers"),
        (["eyepacs", "--fractions", "0.7,0.2,0.2"], "fedretina: fractions are [0.7, 0.2, 0.2]: give three shares"),
        (["eyepacs", "--labels", "x.csv"], "labels means nothing to the reader eyepacs"),
        (["eyepax"], "there is no reader 'eyepax'"),
        (["idrid"], "unpack the set again"),
        (["dicom"], "(--labels)"),
    ],
)
def test_a_mistake_ends_with_a_sentence(eyes, tmp_path, words, sentence):
    result = call(words[0], eyes, "--out", tmp_path / "out", *words[1:])
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out" / "manifest.csv").exists()


def test_a_full_disk_ends_with_a_sentence_whichever_file_it_stops(eyes, tmp_path, monkeypatch):
    real = os.replace
    for name in ("manifest.csv", "left_out.csv", "site.yaml", "import.json"):

        def full(source, target, name=name):
            if Path(target).name == name:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", full)
        result = call("eyepacs", eyes, "--out", tmp_path / "out")
        assert result.exit_code == 2, name
        assert isinstance(result.exception, SystemExit)
        assert f"{name} was not" in result.output
        assert not list((tmp_path / "out").iterdir())


def test_an_import_is_written_over_when_asked(eyes, tmp_path):
    assert call("eyepacs", eyes, "--out", tmp_path / "out").exit_code == 0
    refused = call("eyepacs", eyes, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "--replace" in refused.output
    site_file = tmp_path / "out" / "site.yaml"
    site_file.write_text(site_file.read_text() + "policy: {kinds: [encoder]}\n")
    replaced = call("eyepacs", eyes, "--out", tmp_path / "out", "--replace")
    assert replaced.exit_code == 0, replaced.output
    assert "patients who keep their split: 20; dealt out: 0\n" in replaced.output
    assert "kept in the site file, without comments: policy\n" in replaced.output


def test_the_page_describes_each_reader_as_it_is():
    page = PAGE.read_text(encoding="utf-8")
    for name, entry in readers().items():
        row = (f"`{name}`: {entry.title}", entry.layout, entry.grades, entry.patients, entry.splits, entry.rules)
        assert f"| {' | '.join(row)} |" in page


def shown(folder):
    """The tree whose import the page shows: 40 patients, EyeQ's grades of most images, and a file under two names."""
    grades = [(k * k % 5, (k * k + k // 8) % 5) for k in range(40)]
    eyepacs(folder / "eyepacs", grades, draw=picture)
    names = [f"{number}_{side}.jpeg" for number in range(1, 39) for side in ("left", "right")]
    rows = [(at, name, 2 if at % 9 == 4 else at % 2, 0) for at, name in enumerate(names)]
    table(folder / "eyepacs" / "Label_EyeQ_train.csv", ("", "image", "quality", "DR_grade"), *rows)
    images = folder / "eyepacs" / "train"
    shutil.copy(images / "1_left.jpeg", images / "6_left.jpeg")


def test_the_page_shows_what_an_import_prints(tmp_path, monkeypatch):
    shown(tmp_path)
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    command, printed = re.search(r"```\n\$ fedretina data import (eyepacs [^\n]*)\n(.*?)```", page, re.DOTALL).groups()
    result = call(*command.split())
    assert result.output == printed
    assert (tmp_path / "hospital" / "site.yaml").is_file()
