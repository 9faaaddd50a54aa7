import json

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.decode import is_phantom
from fedretina.data.manifest import read_manifest
from fedretina.data.phantoms.canvas import write_png
from fedretina.data.phantoms.draw import write_hospital
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError
from fedretina.settings.images import FundusSettings, OctSettings
from fedretina.settings.site import SiteDataSettings, read_data_settings


def run(*words):
    return CliRunner().invoke(main, ["data", "phantom", *map(str, words)])


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "h"
    write_hospital("site-3", phantom_hospital("site-3", 16), folder, 48, 5)
    return folder


def test_files_are_the_pictures_of_the_site_in_memory(written, tmp_path):
    settings = SiteDataSettings(phantom_images=16)
    memory = load_site_data("site-3", settings, FundusSettings(image_size=48), 5, tmp_path)
    manifest = read_manifest(written / "manifest.csv", memory.scheme)
    for split in ("train", "val", "test"):
        drawn, rows = memory.split(split), manifest.of(split)
        assert [row.label for row in rows] == drawn.labels.tolist()
        assert tuple(row.patient for row in rows) == drawn.patients
        assert tuple(row.file for row in rows) == drawn.files
        for row, image in zip(rows, drawn.images, strict=True):
            stored = cv2.imread(str(written / "images" / row.file), cv2.IMREAD_COLOR_RGB)
            assert np.array_equal(stored.transpose(2, 0, 1), image.numpy())


def test_a_hospital_read_back_is_still_synthetic(written, tmp_path):
    settings = read_data_settings(written / "site.yaml")
    data = load_site_data("north", settings, FundusSettings(image_size=32), 1, tmp_path / "cache")
    assert data.synthetic
    assert data.scheme.ungradable == "ungradable"
    # One phantom left among other pictures is enough; without any the site is an ordinary one.
    files = sorted((written / "images").iterdir())
    for path in files[1:]:
        cv2.imwrite(str(path), cv2.imread(str(path)))
    assert load_site_data("north", settings, FundusSettings(image_size=32), 1, tmp_path / "cache").synthetic
    cv2.imwrite(str(files[0]), cv2.imread(str(files[0])))
    assert not load_site_data("north", settings, FundusSettings(image_size=32), 1, tmp_path / "cache").synthetic


def test_a_renamed_phantom_is_found_and_others_are_not(written, tmp_path):
    path = next((written / "images").iterdir())
    assert path.name.startswith("phantom-")
    assert b"tEXtSynthetic\x00" in path.read_bytes()
    renamed = path.rename(tmp_path / "patient.png")
    assert is_phantom(renamed)
    plain = tmp_path / "plain.png"
    cv2.imwrite(str(plain), cv2.imread(str(renamed)))
    (tmp_path / "empty.png").write_bytes(b"")
    for other in (plain, tmp_path / "empty.png", tmp_path / "none.png", tmp_path):
        assert not is_phantom(other)


def test_the_chunk_leaves_the_pixels_alone(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (33, 33, 3), dtype=np.uint8)
    write_png(tmp_path / "a.png", pixels)
    with Image.open(tmp_path / "a.png") as opened:
        assert opened.text == {"Synthetic": "fedretina phantom, not a patient"}
        assert np.array_equal(np.asarray(opened), pixels)
    with pytest.raises(DataError, match="not written"):
        write_png(tmp_path / "none" / "a.png", pixels)


def test_the_same_options_give_the_same_files(tmp_path):
    words = ("--site", "clinic", "--images", 16, "--size", 32, "--modality", "oct")
    for name in ("a", "b"):
        assert run(*words, "--out", tmp_path / name).exit_code == 0
    assert run(*words, "--out", tmp_path / "c", "--seed", 2).exit_code == 0
    files = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in "abc"
    ]
    assert files[0] == files[1] != files[2]


def test_the_command_prints_counts_and_says_synthetic(tmp_path):
    out = tmp_path / "h"
    result = run("--site", "site-3", "--out", out, "--images", 16, "--size", 32)
    assert result.exit_code == 0
    assert "SYNTHETIC" in result.output
    assert "ungradable" in result.output
    table = {line.split()[0]: line.split()[1:] for line in result.output.splitlines()[1:9]}
    hospital = phantom_hospital("site-3", 16)
    assert table["images"] == [str(size) for size in hospital.sizes]
    images = list((out / "images").iterdir())
    assert len(images) == sum(hospital.sizes)
    assert "SYNTHETIC" in (out / "README.txt").read_text()
    assert "drawn by a program" in (out / "README.txt").read_text()
    assert read_data_settings(out / "site.yaml").scheme == "icdr5_ungradable"


def test_the_record_for_scripts(tmp_path):
    result = run("--site", "x", "--out", tmp_path / "h", "--images", 16, "--size", 32, "--modality", "oct", "--json")
    record = json.loads(result.output)
    assert record["synthetic"] is True
    assert record["grades"] == ["normal", "drusen", "dme", "cnv"]
    settings = read_data_settings(tmp_path / "h" / "site.yaml")
    data = load_site_data("x", settings, OctSettings(image_size=32), 1, tmp_path / "cache")
    assert data.synthetic
    assert data.graded == {split: sum(counts.values()) for split, counts in record["images"].items()}
    assert len(set(data.split("train").patients)) == record["patients"]["train"] < data.counts["train"]


def test_a_hospital_that_was_stopped_half_way_may_be_drawn_again(tmp_path):
    out, told = tmp_path / "my hospital", []

    def stop(done, of):
        told.append((done, of))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_hospital("x", phantom_hospital("x", 16), out, 32, 1, stop)
    assert told == [(1, told[0][1]), (2, told[0][1]), (3, told[0][1])]
    assert not out.exists()
    result = run("--site", "x", "--out", out, "--images", 16, "--size", 32)
    assert result.exit_code == 0, result.output
    assert f"next: fedretina data check '{out / 'site.yaml'}'" in result.output
    assert len(list((out / "images").iterdir())) == told[0][1]


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "notes.txt").write_text("mine")
    result = run("--site", "x", "--out", tmp_path / "h")
    assert result.exit_code == 2
    assert "holds files already" in result.output
    assert sorted(path.name for path in (tmp_path / "h").iterdir()) == ["notes.txt"]
    (tmp_path / "file").write_text("")
    assert run("--site", "x", "--out", tmp_path / "file").exit_code == 2


def test_bad_options(tmp_path):
    for words in (("--size", 16), ("--images", 3), ("--modality", "mri"), ("--scheme", "icdr5", "--modality", "oct")):
        assert run("--site", "x", "--out", tmp_path / "h", *words).exit_code == 2
    assert not (tmp_path / "h").exists()
    result = run("--site", "x", "--out", tmp_path / "h", "--scheme", "normal_3stages", "--size", 32, "--images", 16)
    assert result.exit_code == 0
    assert read_data_settings(tmp_path / "h" / "site.yaml").scheme == "normal_3stages"
    assert torch.is_tensor(
        load_site_data(
            "x", read_data_settings(tmp_path / "h" / "site.yaml"), FundusSettings(image_size=32), 1, tmp_path / "c"
        )
        .split("val")
        .images
    )
