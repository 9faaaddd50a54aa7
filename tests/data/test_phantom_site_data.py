from pathlib import Path

import numpy as np
import pytest
import torch

from fedretina.data.phantoms import draw
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError
from fedretina.settings.images import FundusSettings, OctSettings
from fedretina.settings.site import SiteDataSettings

FUNDUS = FundusSettings(image_size=32)


def test_a_phantom_site(tmp_path):
    settings = SiteDataSettings(phantom_images=20)
    data = load_site_data("site-3", settings, FUNDUS, 1, tmp_path / "cache")
    assert data.synthetic
    assert data.scheme.num_classes == 6
    assert data.counts == {"train": 30, "val": 12, "test": 18, "pretrain": 30}
    split = data.split("train")
    assert split.images.shape == (30, 3, 32, 32)
    patients, others = set(split.patients), set(data.split("test").patients)
    assert 15 <= len(patients) < 30
    assert not patients & others
    assert len(set(split.files)) == 30
    assert all(name.startswith("phantom-") for name in (*split.patients, *split.files))
    again = load_site_data("site-3", settings, FUNDUS, 1, tmp_path / "cache")
    assert torch.equal(again.split("train").images, split.images)
    assert again.fingerprint == data.fingerprint
    others = [
        load_site_data("site-3", settings, FUNDUS, 2, tmp_path),
        load_site_data("site-4", settings, FUNDUS, 1, tmp_path),
        load_site_data("site-3", settings, FundusSettings(image_size=48), 1, tmp_path),
        load_site_data("site-3", SiteDataSettings(phantom_images=21), FUNDUS, 1, tmp_path),
    ]
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert not torch.equal(others[0].split("val").images, data.split("val").images)


def test_what_was_drawn_is_kept_in_the_sites_cache(tmp_path):
    def train(images=FUNDUS, cache="cache"):
        settings = SiteDataSettings(phantom_images=8)
        return load_site_data("site-1", settings, images, 1, tmp_path / cache).split("train").images

    drawn = train()
    kept = next((tmp_path / "cache").glob("phantoms/*/train.npy"))
    np.save(kept, 255 - drawn.numpy())
    assert torch.equal(train(), 255 - drawn)  # it was read, not drawn
    assert len(train(FundusSettings(image_size=48))[0, 0]) == 48
    cut, few = (lambda: kept.write_bytes(kept.read_bytes()[:-9])), (lambda: np.save(kept, drawn.numpy()[:3]))
    for spoil in (cut, few, lambda: kept.write_bytes(b"")):
        spoil()
        assert torch.equal(train(), drawn)
        assert np.array_equal(np.load(kept), drawn.numpy())
    (tmp_path / "file").touch()
    assert torch.equal(train(cache="file"), drawn)  # nothing can be kept there


def test_who_changes_the_drawing_sees_it(tmp_path, monkeypatch):
    hospital = phantom_hospital("site-1", 8, None, "fundus")
    before = draw._drawn_by(hospital)
    (tmp_path / "draw.py").write_bytes(Path(draw.__file__).read_bytes() + b"\n")
    monkeypatch.setattr(draw, "__file__", str(tmp_path / "draw.py"))
    assert draw._drawn_by(hospital) != before


def test_a_limited_phantom_and_its_own_scheme(tmp_path):
    settings = SiteDataSettings(phantom_images=40, limit={"train": 9}, scheme="normal_3stages")
    data = load_site_data("site-1", settings, FUNDUS, 1, tmp_path)
    assert data.counts["train"] == len(data.split("train").labels) == 9
    assert data.scheme.num_classes == 4


def test_an_oct_phantom(tmp_path):
    scans, settings = OctSettings(image_size=48), SiteDataSettings(phantom_images=20)
    data = load_site_data("site-2", settings, scans, 1, tmp_path / "cache")
    assert data.scheme.grades == ("normal", "drusen", "dme", "cnv")
    assert load_site_data("site-2", settings, FUNDUS, 1, tmp_path).fingerprint != data.fingerprint
    images = data.split("train").images
    assert images.shape == (data.counts["train"], 3, 48, 48)
    assert torch.equal(images[:, 0], images[:, 2])
    pretrain = data.split("pretrain")
    assert torch.equal(pretrain.images, images)
    assert set(pretrain.labels.tolist()) == {-1}
    with pytest.raises(DataError, match="cannot show 'no_dr'"):
        load_site_data("site-2", SiteDataSettings(scheme="icdr5"), scans, 1, tmp_path)


# Data from before there were OCT scans, labels that cover others, and images without a label.
def test_the_fingerprint_of_fundus_phantoms_has_not_changed(tmp_path):
    data = load_site_data("site-1", SiteDataSettings(phantom_images=20), FUNDUS, 1, tmp_path)
    assert data.fingerprint == "56abea9c8793f05b523800ebdac5ad6447dde38756279e3d8ff6b7c200b1d210"


def test_fewer_to_pre_train_on_than_to_train_on(tmp_path):
    settings = SiteDataSettings(phantom_images=20, limit={"pretrain": 4})
    data = load_site_data("site-3", settings, FUNDUS, 1, tmp_path)
    assert (data.counts["train"], data.counts["pretrain"]) == (30, 4)
    assert torch.equal(data.split("pretrain").images, data.split("train").images[:4])
