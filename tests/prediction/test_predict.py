"""`fedretina predict` as its user calls it."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fedretina.cli import main
from fedretina.errors import StateError
from fedretina.prediction import photographs
from fedretina.prediction.predictor import Predictor


def call(*words):
    return CliRunner().invoke(main, ["predict", *(str(word) for word in words)])


@pytest.fixture
def folder(hospital, tmp_path):
    """Two patients with two eyes, one with one, one damaged file, and something that is no photograph."""
    root = tmp_path / "photographs"
    root.mkdir()
    names = ["10_left.png", "10_right.png", "11_OD.png", "11_OS.png", "12_left.png"]
    for name, file in zip(names, hospital.files, strict=False):
        shutil.copy(hospital.images / file, root / name)
    (root / "13_left.png").write_bytes(b"")
    (root / "report.pdf").write_bytes(b"x")
    return root


def lines(path):
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_it_writes_three_files_and_says_what_it_did(hospital, folder, tmp_path):
    result = call(folder, "--model", hospital.final, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "6 photographs of 4 patients." in result.output
    assert "such as 10_left.png and 10_right.png" in result.output
    assert "Not looked at, since their names do not end like a photograph's: 1 .pdf." in result.output
    assert "not a medical device" in result.output
    written = {"images.csv", "patients.csv", "worklist.html", "list.json", "worklist_pictures"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == written
    images = {line["file"]: line for line in lines(tmp_path / "out" / "images.csv")}
    patients = {line["patient"]: line for line in lines(tmp_path / "out" / "patients.csv")}
    assert len(images) == 6
    assert patients["10"]["eyes"] == "both eyes"
    assert patients["12"]["eyes"] == "left eye only"
    assert patients["13"]["refer"] == "yes"
    assert patients["13"]["reasons"] == "unreadable image"
    for said in Predictor.load(hospital.final, "cpu").predict(folder, sorted(images)):
        assert images[said.file]["u"] == ("" if said.uncertainty is None else repr(said.uncertainty))
    page = (tmp_path / "out" / "worklist.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 5
    assert str(tmp_path) not in page
    full = dict(re.findall(r'data-file="([^"]*)"[^>]*data-full="([^"]*)"', page))
    assert full.pop("13_left.png") == ""
    assert len(full) == 5
    for file, copy in full.items():  # every pixel, byte by byte
        assert (tmp_path / "out" / copy).read_bytes() == (folder / file).read_bytes()


def test_a_disk_that_is_full_before_the_pictures_leaves_the_tables(hospital, folder, tmp_path, monkeypatch):
    def full(*_):
        raise StateError("the disk is full.")

    monkeypatch.setattr(photographs, "full_copy", full)
    result = call(folder, "--model", hospital.final, "--out", tmp_path / "out", "--device", "cpu")
    assert result.exit_code == 2
    assert "the disk is full" in result.output
    assert len(lines(tmp_path / "out" / "images.csv")) == 6
    assert len(lines(tmp_path / "out" / "patients.csv")) == 4


def test_what_the_gate_stops_stands_in_tables_page_and_summary(gated, hospital, tmp_path):
    root = tmp_path / "photographs"
    root.mkdir()
    shutil.copy(hospital.images / hospital.files[0], root / "1_left.png")
    pixels = np.asarray(Image.open(root / "1_left.png").convert("RGB"))
    Image.fromarray((pixels * 0.1).astype(np.uint8)).save(root / "2_left.png")
    result = call(root, "--model", gated, "--out", tmp_path / "out", "--device", "cpu", "--json")
    assert json.loads(result.stdout)["stopped"] == {"ungradable": 1}
    dark = next(line for line in lines(tmp_path / "out" / "images.csv") if line["file"] == "2_left.png")
    assert (dark["refer"], dark["reasons"], dark["grade"], dark["u"]) == ("yes", "ungradable", "", "")
    assert dark["fault"]
    assert all(dark[name] == "" for name in dark if name.startswith("p_"))
    assert dark["fault"] in (tmp_path / "out" / "worklist.html").read_text(encoding="utf-8")


def test_what_browsers_do_not_show_is_copied_as_png_and_older_copies_go(hospital, tmp_path):
    root, out = tmp_path / "photographs", tmp_path / "out"
    root.mkdir()
    words = (root, "--model", hospital.final, "--out", out, "--device", "cpu", "--replace")
    pixels = np.asarray(Image.open(hospital.images / hospital.files[0]).convert("RGB"))
    for name in ("1.tif", "2.tif"):
        Image.fromarray(pixels).save(root / name)
    assert call(*words).exit_code == 0
    assert sorted(path.name for path in (out / "worklist_pictures").iterdir()) == ["0001.png", "0002.png"]
    assert np.array_equal(np.asarray(Image.open(out / "worklist_pictures" / "0001.png")), pixels)
    (root / "2.tif").unlink()
    (out / "worklist_pictures" / "mine.txt").write_text("x")
    assert call(*words).exit_code == 0
    assert sorted(path.name for path in (out / "worklist_pictures").iterdir()) == ["0001.png", "mine.txt"]
    assert call(*words, "--no-originals").exit_code == 0
    assert [path.name for path in (out / "worklist_pictures").iterdir()] == ["mine.txt"]
    assert 'data-full=""' in (out / "worklist.html").read_text(encoding="utf-8")


def test_json_for_scripts(hospital, folder, tmp_path):
    result = call(folder, "--model", hospital.final.parent, "--out", tmp_path / "out", "--device", "cpu", "--json")
    record = json.loads(result.stdout)
    assert (record["photographs"], record["patients"], record["without_answer"]) == (6, 4, 1)
    assert record["left_out"] == {".pdf": 1}
    assert record["written"]["worklist.html"] == str(tmp_path / "out" / "worklist.html")
    referred = [line for line in lines(tmp_path / "out" / "patients.csv") if line["refer"] == "yes"]
    assert record["referred"] == len(referred) >= 1


def test_twice_the_same_bytes(hospital, folder, tmp_path):
    for name in ("one", "two"):
        call(folder, "--model", hospital.final, "--out", tmp_path / name, "--device", "cpu")
    written = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(written) == 9
    for path in written:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_the_results_are_for_their_owner_alone(hospital, folder, tmp_path):
    call(folder, "--model", hospital.final, "--out", tmp_path / "out", "--device", "cpu")
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("most", "shown"), [(0, 0), (3, 2)])  # of the first three one cannot be read
def test_pictures_are_limited(hospital, folder, tmp_path, most, shown):
    result = call(
        folder, "--model", hospital.final, "--out", tmp_path / "out", "--device", "cpu", "--thumbnails", str(most)
    )
    assert result.exit_code == 0
    assert (tmp_path / "out" / "worklist.html").read_text().count("data:image/jpeg;base64,") == shown
    assert f"Only the first {most} of 6 photographs are shown" in result.output


def test_patients_by_pattern_and_by_list(hospital, folder, tmp_path):
    words = (folder, "--model", hospital.final, "--out", tmp_path / "out", "--device", "cpu")
    result = call(*words, "--patient-pattern", r"^(?P<patient>1)\d_(?P<eye>left|right)")
    assert result.exit_code == 0, result.output
    found = {line["patient"]: line for line in lines(tmp_path / "out" / "patients.csv")}
    assert found["1"]["photographs"] == "4"
    (tmp_path / "p.csv").write_text("file,patient,eye\n10_left.png,Ann,L\n11_OD.png,Ann,R\n")
    before = (tmp_path / "out" / "patients.csv").read_bytes()
    kept = call(*words, "--patients", tmp_path / "p.csv")
    assert (kept.exit_code, (tmp_path / "out" / "patients.csv").read_bytes()) == (2, before)
    assert "holds an older list already (images.csv, patients.csv, worklist.html, list.json)" in kept.stderr
    result = call(*words, "--patients", tmp_path / "p.csv", "--replace")
    assert result.exit_code == 0, result.output
    found = {line["patient"]: line for line in lines(tmp_path / "out" / "patients.csv")}
    assert found["Ann"]["eyes"] == "both eyes"
    assert len(found) == 5
    both = call(*words, "--patients", tmp_path / "p.csv", "--patient-pattern", "(?P<patient>.)")
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


def test_bad_input_ends_with_a_sentence_and_code_2(hospital, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.pdf").write_bytes(b"")
    nothing = call(tmp_path / "empty", "--model", hospital.final, "--out", tmp_path / "out")
    assert nothing.exit_code == 2
    assert "holds no photograph" in nothing.stderr
    assert "1 .pdf" in nothing.stderr
    no_model = call(folder, "--model", tmp_path / "empty", "--out", tmp_path / "out")
    assert no_model.exit_code == 2
    assert "holds no site's model: name RUN/SITE/final of a finished run" in no_model.stderr
    assert "log says why" not in no_model.stderr
    (tmp_path / "empty" / "state.json").write_text("{}")  # a site of a run that ended without a model of it
    for part in (tmp_path / "empty", tmp_path / "empty" / "final"):
        without = call(folder, "--model", part, "--out", tmp_path / "out")
        assert without.exit_code == 2
        assert f"{part} holds no site's model" in without.stderr
        assert "the site's log says why" in without.stderr
        assert "`fedretina head take` makes it one" in without.stderr
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    (tmp_path / "runs" / "spring" / "site-3").symlink_to(hospital.final.parent)
    for above in (tmp_path / "runs", tmp_path / "runs" / "spring"):
        runs = call(folder, "--model", above, "--out", tmp_path / "out")
        assert runs.exit_code == 2
        final = tmp_path / "runs" / "spring" / "site-3" / "final"
        assert f"{above} holds no site's model itself: name one below it, {final}." in runs.stderr
    (tmp_path / "file").write_text("x")
    blocked = call(folder, "--model", hospital.final, "--out", tmp_path / "file" / "out", "--device", "cpu")
    assert blocked.exit_code == 2
    assert "choose a folder" in blocked.stderr
    assert not (tmp_path / "out").exists()
    assert call(folder, "--model", hospital.final).exit_code == 2  # --out is missing


def test_help_tells_it_all():
    text = call("--help").output
    for word in (
        "worklist.html",
        "--language",
        "--no-originals",
        "list.json",
        "images.csv",
        "--patients",
        "--patient-pattern",
        "--thumbnails",
        "not a medical device",
    ):
        assert word in text
