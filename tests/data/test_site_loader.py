import warnings

import cv2
import numpy as np
import pytest
import torch

from fedretina.data.manifest import RawRow, write_manifest
from fedretina.data.site_data import load_site_data
from fedretina.errors import DataError
from fedretina.settings.images import FundusSettings, OctSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings

FUNDUS = FundusSettings(image_size=32)


def hospital(folder, rows=None):
    """Twelve images; the label is the image's grey level over 20."""
    folder.mkdir(exist_ok=True)
    if rows is None:
        splits = ["test", "train", "train", "val"] * 3
        rows = [RawRow(f"i{k}.png", str(k % 3), f"p{k}", split) for k, split in enumerate(splits)]
    for row in rows:
        level = 20 * int(row.label or 3) + 60
        cv2.imwrite(str(folder / row.file), np.full((36, 36, 3), level, np.uint8))
    write_manifest(folder / "manifest.csv", rows)
    return rows


def load(folder, tmp_path, fundus=FUNDUS, **settings):
    words = {"manifest": folder / "manifest.csv", "scheme": "icdr5", **settings}
    return load_site_data("site-1", SiteDataSettings(**words), fundus, 1, tmp_path / "cache")


def test_splits_hold_their_images_labels_and_patients(tmp_path):
    rows = hospital(tmp_path / "h")
    data = load(tmp_path / "h", tmp_path)
    assert data.counts == {"train": 6, "val": 3, "test": 3, "pretrain": 6}
    assert data.graded == {"train": 6, "val": 3, "test": 3}
    assert (data.synthetic, data.bad_files, data.scheme.num_classes) == (False, 0, 5)
    for name in ("train", "val", "test"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            split = data.split(name)
        mine = [row for row in rows if row.split == name]
        assert split.patients == tuple(row.patient for row in mine)
        assert split.labels.tolist() == [int(row.label) for row in mine]
        assert split.images.shape == (len(mine), 3, 32, 32)
        assert split.images.dtype == torch.uint8
        assert torch.equal(split.images[:, 0, 5, 5].long(), split.labels * 20 + 60)
    with pytest.raises(DataError, match="no split"):
        data.split("all")


def test_a_write_to_a_split_does_not_reach_the_cache(tmp_path):
    hospital(tmp_path / "h")
    data = load(tmp_path / "h", tmp_path)
    data.split("train").images.zero_()
    assert load(tmp_path / "h", tmp_path).split("train").images.min() > 0


def test_a_rebuild_by_another_run_does_not_hurt(tmp_path):
    rows = hospital(tmp_path / "h")
    data = load(tmp_path / "h", tmp_path)
    hospital(tmp_path / "h", rows[:8])
    load(tmp_path / "h", tmp_path)
    assert len(data.split("test").labels) == 3


def test_fingerprint(tmp_path):
    rows = hospital(tmp_path / "h")
    first = load(tmp_path / "h", tmp_path)
    assert len(first.fingerprint) == 64
    assert load(tmp_path / "h", tmp_path).fingerprint == first.fingerprint
    # Names, order and modification times are not data.
    hospital(tmp_path / "g", [row._replace(file=f"x{row.file}", patient=f"q{row.patient}") for row in rows[::-1]])
    assert load(tmp_path / "g", tmp_path / "other").fingerprint == first.fingerprint
    (tmp_path / "g" / "manifest.csv").write_text(
        (tmp_path / "g" / "manifest.csv").read_text().replace("xi0.png,0", "xi0.png,1")
    )
    assert load(tmp_path / "g", tmp_path / "other").fingerprint != first.fingerprint
    cv2.imwrite(str(tmp_path / "h" / "i0.png"), np.full((36, 36, 3), 61, np.uint8))
    assert load(tmp_path / "h", tmp_path).fingerprint != first.fingerprint


def test_bad_files(tmp_path):
    hospital(tmp_path / "h")
    (tmp_path / "h" / "i1.png").write_bytes(b"x")
    (tmp_path / "h" / "i3.png").unlink()
    data = load(tmp_path / "h", tmp_path)
    assert data.bad_files == 2
    assert data.graded == {"train": 5, "val": 2, "test": 3}
    assert data.split("val").patients == ("p7", "p11")
    with pytest.raises(DataError, match=r"i1\.png"):
        load(tmp_path / "h", tmp_path, bad_files="refuse")


def test_limit_is_stable_and_keeps_the_full_cache(tmp_path):
    hospital(tmp_path / "h")
    full = load(tmp_path / "h", tmp_path)
    short = load(tmp_path / "h", tmp_path, limit={"train": 5, "val": 1})
    assert short.counts == {"train": 5, "val": 1, "test": 3, "pretrain": 5}
    assert short.split("train").patients == load(tmp_path / "h", tmp_path, limit={"train": 5}).split("train").patients
    assert set(short.split("train").patients) < set(full.split("train").patients)
    assert load(tmp_path / "h", tmp_path, limit={"train": 99}).counts == full.counts
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_own_scheme_root_and_cache(tmp_path):
    rows = hospital(tmp_path / "h")
    (tmp_path / "m.csv").write_bytes((tmp_path / "h" / "manifest.csv").read_bytes())
    scheme = GradingScheme(grades=("low", "high"), labels={"0": "low", "1": "low", "2": "high"})
    settings = SiteDataSettings(
        manifest=tmp_path / "m.csv", images=tmp_path / "h", scheme=scheme, cache=tmp_path / "mine"
    )
    data = load_site_data("x", settings, FUNDUS, 1, tmp_path / "cache")
    assert data.split("train").labels.tolist() == [int(row.label == "2") for row in rows if row.split == "train"]
    assert (tmp_path / "mine").is_dir()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": None}, "grading scheme of site-1 is not set"),
        ({"scheme": "icdr9"}, "no grading scheme"),
        ({"images": "/nowhere/at/all"}, "is no folder"),
        ({"manifest": "/nowhere/m.csv"}, "manifest .* is missing"),
    ],
)
def test_settings_that_point_nowhere(tmp_path, settings, words):
    hospital(tmp_path / "h")
    with pytest.raises(DataError, match=words):
        load(tmp_path / "h", tmp_path, **settings)


def test_data_that_cannot_be_trained_on(tmp_path):
    rows = hospital(tmp_path / "h")
    write_manifest(tmp_path / "h" / "manifest.csv", [row for row in rows if row.split != "val"])
    with pytest.raises(DataError, match="no labelled image in val"):
        load(tmp_path / "h", tmp_path)
    write_manifest(tmp_path / "h" / "manifest.csv", [row._replace(label="2") for row in rows])
    with pytest.raises(DataError, match="one grade"):
        load(tmp_path / "h", tmp_path)
    write_manifest(tmp_path / "h" / "manifest.csv", rows)
    for row in rows:
        (tmp_path / "h" / row.file).write_bytes(b"x")
    with pytest.raises(DataError, match="none of the 12 images"):
        load(tmp_path / "h", tmp_path)


def test_images_without_a_label_count_for_pre_training_alone(tmp_path):
    rows = hospital(tmp_path / "h")
    plain = load(tmp_path / "h", tmp_path)
    rows[0:0] = [RawRow(f"u{k}.png", "", f"u{k}", "train") for k in range(4)]
    hospital(tmp_path / "h", rows)
    data = load(tmp_path / "h", tmp_path)
    assert data.counts == {**plain.counts, "pretrain": 10}
    assert data.fingerprint != plain.fingerprint
    for name in ("train", "val", "test"):
        before, now = plain.split(name), data.split(name)
        assert now.patients == before.patients
        assert torch.equal(now.images, before.images)
        assert torch.equal(now.labels, before.labels)
    found = data.split("pretrain")
    assert found.patients == (*plain.split("train").patients, "u0", "u1", "u2", "u3")
    assert found.labels.tolist() == [-1] * 10
    assert found.images[6:].float().mean() == 120

    few = load(tmp_path / "h", tmp_path, limit={"train": 3, "pretrain": 5})
    assert (few.counts["train"], few.counts["pretrain"]) == (3, 5)
    chosen = few.split("pretrain")
    assert set(chosen.patients) <= {*few.split("train").patients, "u0", "u1", "u2", "u3"}
    labels = dict(zip(few.split("train").patients, few.split("train").labels.tolist(), strict=True))
    levels = [60 + 20 * labels.get(who, 3) for who in chosen.patients]
    assert chosen.images[:, 0, 0, 0].tolist() == levels
    assert load(tmp_path / "h", tmp_path, limit={"train": 3}).counts["pretrain"] == 7


def test_a_site_that_only_pre_trains(tmp_path):
    hospital(tmp_path / "h", [RawRow(f"u{k}.png", "", f"u{k}", "train") for k in range(4)])
    settings = SiteDataSettings(manifest=tmp_path / "h" / "manifest.csv")

    def pretrain(found):
        return load_site_data("site-1", found, FUNDUS, 1, tmp_path / "cache", needs_labels=False)

    for scheme in (None, "icdr5"):
        data = pretrain(settings.model_copy(update={"scheme": scheme}))
        assert data.counts == {"train": 0, "val": 0, "test": 0, "pretrain": 4}
        assert data.split("train").images.shape == (0, 3, 32, 32)
        assert data.split("pretrain").files == ("u0.png", "u1.png", "u2.png", "u3.png")
    assert data.scheme.num_classes == 5
    with pytest.raises(DataError, match="grading scheme of site-1 is not set: name one of icdr5"):
        _ = pretrain(settings).scheme
    with pytest.raises(DataError, match="no labelled image in train"):
        load(tmp_path / "h", tmp_path)

    rows = hospital(tmp_path / "g")  # labels that nobody reads
    assert pretrain(SiteDataSettings(manifest=tmp_path / "g" / "manifest.csv")).counts["pretrain"] == 6
    write_manifest(tmp_path / "g" / "manifest.csv", [row._replace(split="test") for row in rows])
    with pytest.raises(DataError, match="no image in train"):
        pretrain(SiteDataSettings(manifest=tmp_path / "g" / "manifest.csv", scheme="icdr5"))


def test_oct_scans_from_files(tmp_path):
    rows = hospital(tmp_path / "h")
    data = load(tmp_path / "h", tmp_path, OctSettings(image_size=32), scheme="oct4")
    assert data.split("val").images.shape == (3, 3, 32, 32)
    assert data.split("val").labels.tolist() == [int(row.label) for row in rows if row.split == "val"]
