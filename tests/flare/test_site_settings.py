"""Hospitals point to their images and policies in their own kits (privacy.json); the job names no path.

Through the real simulator, which knows no scopes at its sites: the job's own filter applies a site's policy. That a
scope's filter applies it too, and whatever the job brings, is seen in tests/provisioned.
"""

import json

import cv2
import numpy as np
import pytest
import yaml
from simulation import SMALL, Simulation, fill_cache, results, write_job

from fedretina.data.phantoms.draw import cases_of, phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.exchange.ledger import Ledger
from fedretina.settings.scalars import COUNTS

pytestmark = pytest.mark.flare
POLICIES = {
    "careful": {"hold_back": ["images", "images_train", "val_auc"], "scalar_digits": 2, "mantissa_bits": 4},
    "noisy": {"noise": {"kind": "gaussian", "clip": 0.1, "multiplier": 2.0, "max_epsilon": 7}},
    "sparse": {"noise": {"kind": "svt", "epsilon": 1.0, "epsilon_release": 2.0, "clip": 0.01}},
    "open": {},
}
GRADES = {"careful": 5, "noisy": 4, "sparse": 5, "open": 4, "lost": 5, "odd": 4}
"""Grades of the hospitals with images; the manifest of one is lost, and another's has a label that its scheme lacks."""
SITES = (*GRADES, "empty", "unknown")  # one whose file names no images, and one without a file


def write_hospital(folder, name, grades, seed):
    """Forty phantom photographs as files, one of them cut off, with manifest and site file."""
    (folder / "images").mkdir(parents=True)
    labels = np.arange(40) % grades
    images = phantom_images(phantom_hospital({4: "site-2", 5: "site-1"}[grades]), cases_of(labels), 64, (seed,))
    lines = ["file,label,patient,split"]
    for number, (image, label) in enumerate(zip(images.numpy(), labels.tolist(), strict=True)):
        file = f"eye-{name}-{number:02d}.jpg"
        cv2.imwrite(str(folder / "images" / file), np.ascontiguousarray(image.transpose(1, 2, 0)[..., ::-1]))
        split = "train" if number < 24 else "val" if number < 32 else "test"
        lines.append(f"{file},{label},patient-{name}-{number},{split}")
    cut = folder / "images" / f"eye-{name}-03.jpg"
    cut.write_bytes(cut.read_bytes()[:-200])
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    data = {"manifest": "manifest.csv", "images": "images", "scheme": {4: "normal_3stages", 5: "icdr5"}[grades]}
    words = {"data": data, "policy": POLICIES.get(name, {}), "state_root": "runs"}
    (folder / "site.yaml").write_text(yaml.safe_dump(words))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of the run of all these sites, and what was printed."""
    folder = tmp_path_factory.mktemp("hospitals")
    kits = folder / "kits"
    for seed, (site, grades) in enumerate(GRADES.items(), 1):
        write_hospital(kits / site, site, grades, seed)
    (kits / "lost" / "manifest.csv").unlink()
    broken = kits / "odd" / "manifest.csv"
    broken.write_text(broken.read_text() + "none.jpg,7,p,train\n")
    (kits / "empty").mkdir()
    (kits / "empty" / "site.yaml").write_text(yaml.safe_dump({"state_root": "runs"}))
    # A privacy.json for every site, that points each to a site file of its own.
    local = folder / "sim" / "workspace" / "local"
    local.mkdir(parents=True)
    scope = {"name": "eyes", "properties": {"fedretina": {"site_file": str(kits / "{SITE_NAME}" / "site.yaml")}}}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "eyes"}))
    # The noise of "sparse" is thousands of times the model, which by default is refused as out of all proportion.
    words = {**SMALL, "phantom_images": 0, "quorum": 3, "aggregation": {"proportion": None}}
    for site in ("noisy", "sparse", "open"):  # "careful" reads its images in its own process
        fill_cache(kits / site / "site.yaml", site, words, kits / site / "runs")
    job = write_job(folder / "job", words, SITES)
    root = str(folder / "server")
    simulation = Simulation(job, folder / "sim", len(SITES), FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=root)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    return folder, simulation.text()


def test_each_site_trains_on_its_own_images_and_one_that_cannot_is_refused(ran):
    folder, text = ran
    found = results(folder / "server", "r")
    whole = {site: entry for site, entry in found["sites"].items() if site != "careful"}
    assert {site: (entry["grades"], entry["images_train"], entry["bad_files"]) for site, entry in whole.items()} == {
        "noisy": (4, 23, 1),
        "open": (4, 23, 1),
        "sparse": (5, 23, 1),
    }
    assert set(found["sites"]) == set(POLICIES)
    assert not any(entry["synthetic"] for entry in found["sites"].values())
    refused = found["steps"][0]["refused"]
    assert set(refused) == {"empty", "lost", "odd", "unknown"}
    for site in ("lost", "odd"):
        assert "DataError: the site's own log says what and where." in refused[site]
    assert "is missing" in text
    assert "'7'" in text
    assert "empty points to no data, and this job takes no phantom hospitals" in text
    # It does not know where its ledger lies, so no word leaves it.
    assert refused["unknown"] == "the site answered EXECUTION_EXCEPTION."
    assert "in use by another process" not in text  # failed attempts let go of the run's folder


def test_nothing_of_a_hospitals_files_folders_or_patients_is_stored_or_logged_as_an_error(ran):
    folder, text = ran
    stored = "".join(path.read_text() for path in (folder / "server" / "r" / "server").glob("*.json"))
    for secret in ("kits", "eye-", "patient-", "manifest"):
        assert secret not in stored
    # But for the two that say in their own logs what is wrong with their manifests.
    errors = "".join(line for line in text.splitlines() if "ERROR" in line)
    for site in (*POLICIES, "empty", "unknown"):
        for secret in (f"kits/{site}", f"eye-{site}", f"patient-{site}"):
            assert secret not in errors


def test_each_site_sends_what_its_own_policy_lets_go(ran):
    folder, text = ran
    ledgers = {site: Ledger(folder / "kits" / site / "runs" / "r" / site / "ledger.jsonl").lines() for site in POLICIES}
    found = results(folder / "server", "r")
    first, second = found["steps"][:2]
    assert set(first["weights"]) == set(POLICIES)
    assert [line["phase"] for line in ledgers["open"]] == ["train", "train", "validate", "finalise"]
    assert "privacy" not in ledgers["open"][0]
    # Held back and rounded: in the ledger, at the server, in the results.
    careful = ledgers["careful"]
    assert set(first["scalars"]["careful"]) == {"theta"}
    assert set(second["scalars"]["careful"]) == {"theta", "val_accuracy"}
    assert careful[1]["held_back"] == ["images", "patients", "val_auc"]  # with n its patients
    assert careful[0]["mantissa_bits"] == 4
    assert "images_train" not in found["sites"]["careful"]
    rounded = [line["scalars"][name] for line in careful for name in line["scalars"] if name not in COUNTS]
    assert all(float(f"{value:.1e}") == value for value in rounded)
    assert "theta" in careful[0]["scalars"]
    assert "-/" in text
    # The budget holds one round of noise; then the filter refuses, and the run goes on.
    assert [line["phase"] for line in ledgers["noisy"]] == ["train", "train", "validate", "finalise"]
    assert "privacy budget is spent" in ledgers["noisy"][1]["words"]  # the sentence left, so it stands there
    assert ledgers["noisy"][0]["privacy"]["rho"] == 0.5
    assert 5 < ledgers["noisy"][0]["privacy"]["epsilon_so_far"] < 7
    assert "privacy budget is spent" in second["refused"]["noisy"]  # the site's own sentence, not FLARE's code
    assert "privacy budget is spent" in text
    assert (folder / "kits" / "noisy" / "runs" / "noise.key").stat().st_mode & 0o077 == 0
    spent = [line["privacy"]["epsilon_so_far"] for line in ledgers["sparse"] if "privacy" in line]
    assert spent == [3.0, 6.0]
