"""`fedretina data divide` as its user meets it."""

import csv
import json
import shutil

import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data import clients
from fedretina.data.manifest import read_manifest
from fedretina.data.site_data import load_site_data
from fedretina.errors import StateError
from fedretina.settings.images import OctSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import read_data_settings, site_scheme

GRADES = "NORMAL,DRUSEN,DME,CNV"
SCHEME = GradingScheme(grades=tuple(GRADES.split(",")))


def run(*words):
    return CliRunner().invoke(main, ["data", "divide", *map(str, words)])


@pytest.fixture
def manifest(tmp_path):
    folder = tmp_path / "oct"
    folder.mkdir()
    rows = ["file,label,patient,split"]
    for number in range(240):
        split = ("train", "train", "train", "val", "test")[number // 2 % 5]
        rows.append(f"{number}.png,{SCHEME.grades[number % 7 % 4]},p{number // 2},{split}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / "manifest.csv"


def test_clients_hold_all_rows_once_and_can_be_read(manifest, tmp_path):
    out = tmp_path / "out"
    done = run(manifest, "--grades", GRADES, "--minimum", 10, "--out", out)
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} == {"client-1", "client-2", "client-3", "division.json"}
    record = json.loads((out / "division.json").read_text())
    assert (record["skew"], record["alpha"], record["seed"], record["minimum"]) == ("dirichlet", 0.5, 1, 10)
    rows = []
    for name, client in record["clients"].items():
        settings = read_data_settings(out / name / "site.yaml")
        assert settings.images == manifest.parent.resolve()
        found = read_manifest(settings.manifest, site_scheme(settings))
        for split, images in found.counts().items():
            assert client["images"][split] == dict(zip(SCHEME.grades, images, strict=True))
            assert client["patients"][split] == len({row.patient for row in found.of(split)}) > 0
        assert sum(client["images"]["train"].values()) >= 10
        rows += found.records
        assert f"{name}  train" in done.stdout
    assert sorted(rows) == sorted(read_manifest(manifest, SCHEME).records)
    assert "p0" not in (out / "division.json").read_text()
    again = run(manifest, "--grades", GRADES, "--minimum", 10, "--out", tmp_path / "again", "--json")
    assert json.loads(again.stdout) == record
    for name in record["clients"]:
        for file in ("manifest.csv", "site.yaml"):
            assert (out / name / file).read_bytes() == (tmp_path / "again" / name / file).read_bytes()


def test_a_phantom_site_is_divided_by_its_site_file_and_read(tmp_path):
    words = ["--site", "site-1", "--out", str(tmp_path / "p"), "--modality", "oct", "--images", "40", "--size", "32"]
    assert CliRunner().invoke(main, ["data", "phantom", *words]).exit_code == 0
    head, *rows = (tmp_path / "p" / "manifest.csv").read_text().splitlines()
    (tmp_path / "p" / "manifest.csv").write_text("\n".join([f"{head},eye", *(f"{row},OS" for row in rows)]) + "\n")
    written = (tmp_path / "p" / "site.yaml").read_text()
    (tmp_path / "p" / "site.yaml").write_text(written.replace("data:\n", "data:\n  columns: [eye]\n", 1))
    done = run(tmp_path / "p", "--clients", 2, "--skew", "even", "--minimum", 8, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "out" / "division.json").read_text())["alpha"] is None
    settings = read_data_settings(tmp_path / "out" / "client-2" / "site.yaml")
    data = load_site_data("client-2", settings, OctSettings(image_size=32), 1, tmp_path / "cache")
    assert data.synthetic
    assert set(data.column("eye", data.split("test").files)) == {"left"}
    assert len(data.split("train").labels) == data.counts["train"] >= 8


def full_disk(path, record):
    raise StateError("the disk is full")


def test_what_is_refused_in_a_sentence(manifest, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for words, said in (
        (["--out", out], "the grading scheme is not set"),
        (["--grades", "NORMAL,CNV", "--out", out], "row 3: label 'DRUSEN' is not in the grading scheme"),
        (["--grades", GRADES, "--alpha", 0, "--out", out], "alpha is 0.0: give"),
        (["--grades", GRADES, "--skew", "even", "--alpha", 2, "--out", out], "alpha: name 'even' does not read it"),
        (["--grades", GRADES, "--minimum", 0, "--out", out], "minimum is 0"),
        (["--grades", GRADES, "--clients", 50, "--out", out], "50 clients"),
        (["--grades", GRADES, "--out", manifest.parent], "holds files already"),
    ):
        done = run(manifest, *words)
        assert done.exit_code == 2
        assert said in done.stderr
        assert not out.exists()
    with monkeypatch.context() as failing:
        failing.setattr(clients, "write_json", full_disk)
        assert run(manifest, "--grades", GRADES, "--out", out).exit_code == 2
    assert not out.exists()  # so the same call may be made again
    with_room = run(manifest, "--grades", GRADES, "--out", out)
    assert with_room.exit_code == 0, with_room.output
    assert f"next: export FEDRETINA_SITE_FILE='{out}/{{SITE_NAME}}/site.yaml'" in with_room.output
    assert "add to each: policy: {kinds: [encoder, norm, statistic, counter, head, exit," in with_room.output
    shutil.rmtree(out)
    manifest.with_name("site.yaml").write_text("data: {}\n")
    done = run(manifest.parent, "--out", out)
    assert done.exit_code == 2
    assert "no manifest to divide" in done.stderr


@pytest.mark.real
def test_kermany_in_three_clients(shared, tmp_path):
    with open(shared / "oct" / "labels.csv", encoding="utf-8", newline="") as handle:
        table = [row for row in csv.DictReader(handle) if row["site"] == "kermany"]
    lines = [f"{row['file']},{row['disease']},{row['group']},{row['split']}" for row in table]
    (tmp_path / "m.csv").write_text("\n".join(["file,label,patient,split", *lines]) + "\n", encoding="utf-8")
    done = run(tmp_path / "m.csv", "--grades", GRADES, "--images", shared / "oct", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "out" / "division.json").read_text())
    assert sum(sum(client["images"]["train"].values()) for client in record["clients"].values()) == 813
    assert yaml.safe_load((tmp_path / "out" / "client-3" / "site.yaml").read_text())["data"]["scheme"]["grades"]
