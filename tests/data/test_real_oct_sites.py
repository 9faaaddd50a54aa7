"""The real OCT scans, as sites with label spaces of their own."""

from pathlib import Path

import pytest
import torch

from fedretina.data.site_data import load_site_data
from fedretina.settings.images import OctSettings
from fedretina.settings.site import read_data_settings
from real_sites import write_real_oct_sites

LIMIT = {"train": 12, "val": 4, "test": 4, "pretrain": 20}
CLASSES = ("normal", "drusen", "cnv", "dme", "erm", "rvo", "vid", "rao")


def load(path, site, tmp_path, **words):
    settings = read_data_settings(Path(str(path).replace("{SITE_NAME}", site)), site)
    return load_site_data(site, settings, OctSettings(image_size=48), 1, tmp_path / "cache", **words)


@pytest.mark.real
def test_sites_that_share_classes(shared, tmp_path):
    path = write_real_oct_sites(shared, tmp_path / "sites", LIMIT)
    sites = {name: load(path, name, tmp_path) for name in ("kermany", "octdl")}
    assert [data.graded for data in sites.values()] == [{"train": 12, "val": 4, "test": 4}] * 2
    covered = {name: data.scheme.cover(CLASSES) for name, data in sites.items()}
    assert covered == {
        "kermany": ((0,), (1,), (3,), (2,)),
        "octdl": ((0,), (1, 2), (3,), (4,), (5,), (6,), (7,)),
    }
    images = sites["kermany"].split("train").images
    assert torch.equal(images[:, 0], images[:, 1])


@pytest.mark.real
def test_a_common_label_space_leaves_other_diseases_without_a_label(shared, tmp_path):
    path = write_real_oct_sites(shared, tmp_path / "sites", LIMIT, {"octdl": "oct3"})
    data = load(path, "octdl", tmp_path)
    assert data.counts == {"train": 12, "val": 4, "test": 4, "pretrain": 20}
    assert data.scheme.cover(("normal", "amd", "dme")) == ((0,), (1,), (2,))
    assert load(path, "octdl", tmp_path, needs_labels=False).fingerprint == data.fingerprint
