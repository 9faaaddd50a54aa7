"""The four real sites through the simulator, each pointing to its own data; skipped where the images are not."""

import sys
from pathlib import Path

import pytest
from simulation import SMALL, Simulation, results, write_job

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from real_sites import SITES, write_real_sites

pytestmark = [pytest.mark.flare, pytest.mark.real]


def simulate(job, tmp_path, site_file):
    """Run the job over the four sites, each with its own site file, to a good end."""
    simulation = Simulation(
        job,
        tmp_path / "sim",
        4,
        FEDRETINA_RUN="r",
        FEDRETINA_STATE_ROOT=str(tmp_path),
        FEDRETINA_SITE_FILE=str(site_file),
    )
    assert simulation.wait() == 0, simulation.text()[-3000:]
    return simulation


def test_four_hospitals_with_their_own_criteria(tmp_path, shared):
    site_file = write_real_sites(shared, tmp_path / "hospitals", {"train": 48, "val": 40, "test": 60})
    words = {
        **SMALL,
        "images": {"image_size": 48},
        "network": {"encoder": "efficientnet_lite0", "weights": {"source": "package"}},
        "phases": [{"name": "train", "rounds": 1}],
    }
    job = write_job(tmp_path / "job", words, list(SITES))
    simulate(job, tmp_path, site_file)
    found = results(tmp_path, "r")["sites"]
    assert {site: entry["grades"] for site, entry in found.items()} == {
        "aptos2019": 5,
        "eyepacs": 6,
        "idrid": 5,
        "odir5k": 4,
    }
    assert all(entry["images_train"] == 48 and entry["bad_files"] == 0 for entry in found.values())
    assert all(0 < entry["test_accuracy"] <= 1 for entry in found.values())
    # Nothing of a hospital's files or folders is in what the server stores.
    stored = "".join(path.read_text() for path in (tmp_path / "r" / "server").glob("*.json"))
    assert "hospitals" not in stored
    assert ".jpg" not in stored
    assert str(shared) not in stored


def test_a_site_that_points_to_nothing_says_so_and_the_others_go_on(tmp_path, shared):
    site_file = write_real_sites(shared, tmp_path / "hospitals", {"train": 24, "val": 20, "test": 20})
    (tmp_path / "hospitals" / "idrid" / "manifest.csv").unlink()
    broken = tmp_path / "hospitals" / "odir5k" / "manifest.csv"
    broken.write_text(broken.read_text() + "odir5k/none.jpg,7,p,train\n")
    job = write_job(tmp_path / "job", {**SMALL, "phases": [{"name": "train", "rounds": 1}]}, list(SITES))
    simulation = simulate(job, tmp_path, site_file)
    found = results(tmp_path, "r")
    assert set(found["sites"]) == {"aptos2019", "eyepacs"}
    refused = found["steps"][0]["refused"]
    assert set(refused) == {"idrid", "odir5k"}
    assert all("DataError: the site's own log says what and where." in sentence for sentence in refused.values())
    assert "is missing" in simulation.text()
    assert "'7'" in simulation.text()
