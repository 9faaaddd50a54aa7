"""A hospital points to its images in its own kit (privacy.json); the job names no path. Through the real simulator."""

import json

import cv2
import numpy as np
import pytest
import yaml
from simulation import SMALL, Simulation, results, write_job

from fedretina.data.phantoms.draw import cases_of, phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital

pytestmark = pytest.mark.flare


def write_hospital(folder, grades, seed):
    """Forty phantom photographs as files, one of them cut off, with manifest and site file."""
    (folder / "images").mkdir(parents=True)
    labels = np.arange(40) % grades
    images = phantom_images(phantom_hospital({4: "site-2", 5: "site-1"}[grades]), cases_of(labels), 64, (seed,))
    lines = ["file,label,patient,split"]
    for number, (image, label) in enumerate(zip(images.numpy(), labels.tolist(), strict=True)):
        name = f"eye-{number:02d}.jpg"
        cv2.imwrite(str(folder / "images" / name), np.ascontiguousarray(image.transpose(1, 2, 0)[..., ::-1]))
        split = "train" if number < 24 else "val" if number < 32 else "test"
        lines.append(f"{name},{label},patient-{number},{split}")
    cut = folder / "images" / "eye-03.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    words = {
        "data": {"manifest": "manifest.csv", "images": "images", "scheme": {4: "normal_3stages", 5: "icdr5"}[grades]}
    }
    (folder / "site.yaml").write_text(yaml.safe_dump(words))


def test_two_hospitals_and_one_that_has_no_data(tmp_path):
    write_hospital(tmp_path / "kits" / "north", 5, 1)
    write_hospital(tmp_path / "kits" / "south", 4, 2)
    local = tmp_path / "sim" / "workspace" / "local"
    local.mkdir(parents=True)
    properties = {"fedretina": {"site_file": str(tmp_path / "kits" / "{SITE_NAME}" / "site.yaml")}}
    scope = {"name": "eyes", "properties": properties}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "eyes"}))
    words = {**SMALL, "phantom_images": 0, "quorum": 2, "phases": [{"name": "train", "rounds": 1}]}
    job = write_job(tmp_path / "job", words, ("north", "south", "west"))
    simulation = Simulation(job, tmp_path / "sim", 3, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path / "state"))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    found = results(tmp_path / "state", "r")
    assert {
        site: (entry["grades"], entry["images_train"], entry["bad_files"]) for site, entry in found["sites"].items()
    } == {
        "north": (5, 23, 1),
        "south": (4, 23, 1),
    }
    assert not any(entry["synthetic"] for entry in found["sites"].values())
    # It does not know where its ledger lies, so no word leaves it.
    assert found["steps"][0]["refused"]["west"] == "the site answered EXECUTION_EXCEPTION."
    # Nothing of a hospital's files, folders or patients is in what the server stores or logs as an error.
    stored = "".join(path.read_text() for path in (tmp_path / "state" / "r" / "server").glob("*.json"))
    errors = "".join(line for line in simulation.text().splitlines() if "ERROR" in line)
    for secret in ("kits", "eye-", "patient-", "manifest"):
        assert secret not in stored
        assert secret not in errors


def test_a_job_for_real_hospitals_takes_no_phantoms(tmp_path):
    words = {**SMALL, "phantom_images": 0, "phases": [{"name": "train", "rounds": 1}]}
    job = write_job(tmp_path / "job", words, ("north",))
    simulation = Simulation(job, tmp_path / "sim", 1, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 2
    assert "north points to no data, and this job takes no phantom hospitals" in simulation.text()
    assert "in use by another process" not in simulation.text()  # the failed attempts let go of the run's folder
