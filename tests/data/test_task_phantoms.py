"""Phantoms of dermoscopy, heart sounds and activity: what they show, by site, their marks, the same bytes again."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedretina.cli.data import phantom
from fedretina.data.decode import is_phantom
from fedretina.data.modalities import modality_named
from fedretina.data.phantoms.draw import cases_of, draw_cases, phantom_samples
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError
from fedretina.settings.images import image_settings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings, read_data_settings

KINDS = ["dermoscopy", "heart_sound", "activity"]


def features(samples):
    """A few numbers a sample: means by place and channel, and how much neighbouring columns differ."""
    pixels = samples.numpy().astype(np.float64)
    rows = np.array_split(np.arange(pixels.shape[2]), min(pixels.shape[2], 8))
    means = [pixels[:, :, part].mean(axis=(2, 3)) for part in rows]
    swings = [np.abs(np.diff(pixels[:, :, part], axis=3)).mean(axis=(2, 3)) for part in rows]
    spread = pixels.std(axis=(2, 3))
    return np.concatenate([*means, *swings, spread], axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_classes_can_be_told_and_sites_look_different(kind):
    settings = image_settings(kind, 32)
    drawn = {}
    for site in ("site-1", "site-2"):
        hospital = phantom_hospital(site, modality=kind)
        labels = np.tile(np.arange(hospital.scheme.num_classes), 80 // hospital.scheme.num_classes)
        samples = phantom_samples(hospital, cases_of(labels), settings, (5, site))
        assert samples.shape == (80, *settings.shape)
        drawn[site] = features(samples)
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        accuracy = model.fit(drawn[site][:40], labels[:40]).score(drawn[site][40:], labels[40:])
        assert accuracy > 1.5 / hospital.scheme.num_classes
    apart = np.abs(drawn["site-1"].mean(0) - drawn["site-2"].mean(0)) / (drawn["site-1"].std(0) + 1e-9)
    assert np.max(apart) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_depends_on_its_case_alone(kind):
    settings = image_settings(kind, 32)
    hospital = phantom_hospital("site-2", 24, modality=kind)
    cases = hospital.cases(0, (1, "a"))
    every = phantom_samples(hospital, cases[:6], settings, (1, "a"))
    assert np.array_equal(phantom_samples(hospital, cases[4:6], settings, (1, "a")), every[4:])
    assert not np.array_equal(phantom_samples(hospital, cases[4:6], settings, (2, "a")), every[4:])


@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_and_any_other_name_is_a_hospital_of_its_own(kind):
    names = [f"site-{number + 1}" for number in range(len(modality_named(kind).phantoms.presets))]
    styles = [phantom_hospital(name, modality=kind).style for name in [*names, "elsewhere"]]
    assert len(set(styles)) == len(styles)
    hospital = phantom_hospital("site-1", modality=kind)
    assert hospital.both_eyes == 0
    cases = hospital.cases(0, (1,))
    assert len({case.patient for case in cases}) == len(cases)
    assert {case.label for case in cases} == set(range(hospital.scheme.num_classes))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_to_disk_is_read_as_synthetic(tmp_path, kind):
    words = ["--site", "site-3", "--modality", kind, "--images", "16", "--size", "32", "--json"]
    done = CliRunner().invoke(phantom, [*words, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    record = json.loads(done.output)
    assert record["synthetic"]
    again = CliRunner().invoke(phantom, [*words, "--out", str(tmp_path / "b")])
    assert again.exit_code == 0
    files = sorted((tmp_path / "a" / "images").iterdir())
    assert files[0].suffix == (".png" if kind == "dermoscopy" else ".wav")
    assert all(is_phantom(file) for file in files)
    assert all(file.read_bytes() == (tmp_path / "b" / "images" / file.name).read_bytes() for file in files)
    assert "SYNTHETIC" in (tmp_path / "a" / "README.txt").read_text()
    settings = image_settings(kind, 32)
    data = load_site_data("site-3", read_data_settings(tmp_path / "a" / "site.yaml"), settings, 1, tmp_path / "cache")
    assert data.synthetic
    drawn = load_site_data("site-3", SiteDataSettings(phantom_images=16), settings, 1, tmp_path / "none")
    assert dict(drawn.counts) == dict(data.counts)
    assert drawn.split("val").files == data.split("val").files
    if kind != "dermoscopy":  # what a phantom site draws in memory is what it would read from its files
        assert np.array_equal(drawn.split("val").images, data.split("val").images)


def test_schemes_that_no_phantom_can_show_are_refused(tmp_path):
    scheme = GradingScheme(grades=("running", "jumping"))
    with pytest.raises(DataError, match="cannot show 'running'"):
        phantom_hospital("site-1", 24, scheme, "activity")
    with pytest.raises(DataError, match="signals and no pictures"):
        next(draw_cases(phantom_hospital("site-1", modality="activity"), cases_of([0]), 32, (1,)))
    done = CliRunner().invoke(
        phantom, ["--site", "a", "--modality", "activity", "--scheme", "heart2", "--out", str(tmp_path / "x")]
    )
    assert done.exit_code == 2
    assert "heart2 grades no windows of an accelerometer" in done.output
