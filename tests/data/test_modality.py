"""A site of another modality than the job's is refused, in words that may leave the site."""

import csv

import cv2
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.check.rows import open_source
from fedretina.data.modalities import SignalModality, modality_named, require_modality
from fedretina.data.readers import readers
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError, SettingsError
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import DermoscopySettings, FundusSettings, ImageSettings, OctSettings
from fedretina.settings.scheme import preset, preset_modality
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.settings.site import SiteDataSettings, read_data_settings, read_site_settings, site_modality

FUNDUS, OCT = FundusSettings(image_size=32), OctSettings(image_size=32)


@pytest.fixture
def hospital(tmp_path):
    """Writes a site file over twelve small images."""
    folder = tmp_path / "secret-ward"
    folder.mkdir()
    with open(folder / "manifest.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["file", "label", "patient", "split"])
        for at in range(12):
            pixels = np.random.default_rng(at).integers(0, 200, (40, 40), dtype=np.uint8)
            assert cv2.imwrite(str(folder / f"{at}.png"), pixels)
            writer.writerow([f"{at}.png", at % 3, f"p{at}", ("train", "train", "val", "test")[at % 4]])

    def write(**words):
        path = folder / "site.yaml"
        path.write_text(yaml.safe_dump({"data": {"manifest": "manifest.csv", **words}}))
        return path

    return write


def load(path, images):
    return load_site_data("site-1", read_data_settings(path), images, 1, path.parent / "cache")


def test_every_preset_knows_what_it_grades_and_a_scheme_of_a_sites_own_does_not():
    assert {name: preset_modality(name) for name in SCHEMES} == {
        "icdr5": "fundus", "icdr5_ungradable": "fundus", "normal_3stages": "fundus",
        "oct3": "oct", "oct4": "oct", "octdl7": "oct", "octid": "oct", "duke3": "oct",
        "isic8": "dermoscopy", "heart2": "heart_sound", "activity8": "activity",
    }  # fmt: skip
    assert preset_modality(preset("oct4")) is None
    assert preset_modality(None) is None
    assert preset_modality("no such") is None
    for name, settings in ImageSettings.choices().items():
        found = modality_named(name)
        assert issubclass(found, SignalModality) == (found.phantoms.wave is not None) == settings.signal
        assert (found.phantoms.picture is None) == settings.signal


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ({"scheme": "icdr5"}, OCT),
        ({"scheme": "oct3"}, FUNDUS),
        ({"scheme": {"grades": ["a", "b", "c"]}, "modality": "fundus"}, OCT),
        ({"scheme": {"grades": ["a", "b", "c"]}, "modality": "oct"}, FUNDUS),
        ({"scheme": "icdr5", "modality": "oct"}, FUNDUS),
    ],
)
def test_another_modality_is_refused_in_public_and_names_nothing_of_the_site(hospital, words, asked):
    path = hospital(**words)
    with pytest.raises(SettingsError) as caught:
        load(path, asked)
    assert caught.value.public
    said = str(caught.value)
    assert said.startswith(f"the job takes {asked.words} (images.modality {asked.modality!r})")
    assert "leave the site out of the job, or mend data.modality" in said
    for secret in ("secret-ward", "manifest", "site-1", "csv", "/", "icdr5", "oct3"):
        assert secret not in said
    assert not (path.parent / "cache").exists()


def test_the_same_modality_or_one_that_is_not_told_is_taken_with_the_same_fingerprint(hospital):
    own = {"grades": ["a", "b", "c"]}
    assert load(hospital(scheme="icdr5"), FUNDUS).counts["train"] == 6
    assert load(hospital(scheme="icdr5", modality="oct"), OCT).counts["train"] == 6  # what the site says counts
    told = [load(hospital(scheme=own, **words), OCT).fingerprint for words in ({}, {"modality": "oct"})]
    assert told[0] == told[1]


def test_a_phantom_is_drawn_as_the_job_asks_unless_its_site_says_what_it_takes(tmp_path):
    for images in (FUNDUS, OCT):
        drawn = load_site_data("site-2", SiteDataSettings(phantom_images=20), images, 1, tmp_path)
        assert drawn.synthetic
    with pytest.raises(SettingsError, match=r"takes OCT scans .* has fundus photographs"):
        load_site_data("site-2", SiteDataSettings(phantom_images=20, modality="fundus"), OCT, 1, tmp_path)


def test_nothing_but_a_modality_is_a_modality(hospital):
    path = hospital(scheme="oct3", modality="xray")
    with pytest.raises(DataError, match=r"data\.modality: there is no modality 'xray': use one of fundus, oct"):
        read_data_settings(path)
    require_modality(None, DermoscopySettings())
    with pytest.raises(SettingsError, match="dermoscopy"):
        require_modality("oct", DermoscopySettings())


def test_a_job_that_only_pretrains_is_refused_too(hospital):
    path = hospital(modality="fundus")
    with pytest.raises(SettingsError, match="OCT scans"):
        load_site_data("site-1", read_data_settings(path), OCT, 1, path.parent / "cache", needs_labels=False)


def test_a_kits_settings_the_check_and_a_division_carry_it(hospital, tmp_path):
    path = hospital(scheme={"grades": ["a", "b", "c"]}, modality="oct")
    settings = read_site_settings({"fedretina": {"site_file": str(path)}}, "site-1", tmp_path)
    assert site_modality(settings.data) == "oct"
    assert open_source(path, ImportSettings()).modality == "oct"
    words = ["data", "divide", path, "--clients", "2", "--skew", "even", "--minimum", "1", "--out", tmp_path / "two"]
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    assert read_data_settings(tmp_path / "two" / "client-2" / "site.yaml").modality == "oct"


def test_readers_of_known_layouts_write_it():
    known = {name: entry.modality for name, entry in readers().items()}
    assert {name for name, modality in known.items() if modality == "oct"} == {
        "duke2014", "kermany", "oct_volumes", "octdl", "octid",
    }  # fmt: skip
    assert [name for name, modality in known.items() if modality is None] == ["class_folders", "own_table"]


def test_phantoms_on_disk_say_what_they_are(tmp_path):
    words = ["data", "phantom", "--site", "site-2", "--out", tmp_path / "p", "--modality", "oct", "--images", "24"]
    ran = CliRunner().invoke(main, [str(word) for word in [*words, "--size", "64"]])
    assert ran.exit_code == 0, ran.output
    assert read_data_settings(tmp_path / "p" / "site.yaml").modality == "oct"
    with pytest.raises(SettingsError, match="fundus photographs"):
        load_site_data("x", read_data_settings(tmp_path / "p" / "site.yaml"), Experiment().images, 1, tmp_path / "c")
