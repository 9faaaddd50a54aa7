"""The four real sites through the simulator, each pointing to its own data; skipped where the images are not."""

import sys
from pathlib import Path

import pytest
from simulation import SMALL, Simulation, fill_cache, results, write_job

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from real_sites import SITES, write_real_sites

pytestmark = [pytest.mark.flare, pytest.mark.real]


def test_four_hospitals_with_their_own_criteria(tmp_path, shared):
    site_file = write_real_sites(shared, tmp_path / "hospitals", {"train": 24, "val": 20, "test": 30})
    words = {
        **SMALL,
        "images": {"image_size": 48},
        "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
        "phases": [{"name": "train", "rounds": 1}],
    }
    for site in SITES:
        fill_cache(tmp_path / "hospitals" / site / "site.yaml", site, words, tmp_path)
    job = write_job(tmp_path / "job", words, list(SITES))
    own = {"FEDRETINA_STATE_ROOT": str(tmp_path), "FEDRETINA_SITE_FILE": str(site_file)}
    simulation = Simulation(job, tmp_path / "sim", len(SITES), FEDRETINA_RUN="r", **own)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    found = results(tmp_path, "r")["sites"]
    assert {site: entry["grades"] for site, entry in found.items()} == {
        "aptos2019": 5,
        "eyepacs": 6,
        "idrid": 5,
        "odir5k": 4,
    }
    assert all(entry["images_train"] == 24 and entry["bad_files"] == 0 for entry in found.values())
    assert all(0 < entry["test_accuracy"] <= 1 for entry in found.values())
    # Nothing of a hospital's files or folders is in what the server stores.
    stored = "".join(path.read_text() for path in (tmp_path / "r" / "server").glob("*.json"))
    assert "hospitals" not in stored
    assert ".jpg" not in stored
    assert str(shared) not in stored
