"""Rows that bring each kind of tensor and each kind of step over the wire once: the real simulator against the loop.

A head that travels comes by FLARE's recipe and SimEnv, sums by a recipe and PocEnv, the other by `nvflare simulator`.
One model per site, with the steps `prepare` and `tune`: tests/poc/test_rehearsal.py. Ciphertexts: tests/provisioned.
What never reaches the wire (losses, optimisers, uncertainty, the encoder's architecture) is held by tests/test_loop.py.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from poc.processes import end_all
from poc.project import ADMIN, write_project
from simulation import SMALL, Simulation, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger
from fedretina.storage import read_json
from ports import free_port

pytestmark = pytest.mark.flare

SAME_PICK = Path(__file__).parent / "same_pick"

SHORT = {"training": {"epochs": 1, "batch_size": 8}}
# Grades of sites 1, 4 and 5 are alike, so their heads can travel.
COVERING = {
    # Control variates, a contrastive projector, key networks and calibration; two phases; a share of the sites a round,
    # so that encoded models go to some and whole ones to others; the row's twin at each site, of which nothing travels.
    "with_labels_and_without": {
        "row": "oct_moco_scaffold",
        "phases": [
            {"name": "pretrain", "rounds": 2, "contrastive": {"method": "moco_v2", "key_sync": "aggregate"}, **SHORT},
            {"name": "train", "rounds": 1, **SHORT},
        ],
        "images": {"modality": "oct", "image_size": 32},
        "network": {"encoder": "few_blocks", "contrast": {"hidden": 16, "width": 8}, "calibrator": True},
        "sampling": {"fraction": 0.67},
        "exchange": {"codec": {"name": "int8", "smallest": 64}},
        "verdict": "twin",
        "referral_curve": True,
    },
    # The whole network, exits, projection and head too, bounded by the server; BatchNorm's weights without statistics;
    # a part of the encoder that neither trains nor travels.
    "a_head_that_travels": {
        "row": "moon_projected",
        "quorum": 3,
        "aggregation": {"robust": {"name": "norm_bound", "bound": 0.9}},
        "grades": 5,
        "network": {"encoder": "few_blocks", "head": {"layout": "linear"}, "exits": {"width": 8}, "frozen": 2},
        "augment": {"rotate_degrees": 0},
        "exchange": {"personal": "nothing", "batchnorm": "local_stats"},
    },
    # An encoder that the sites pre-train but for a stage; then nothing but sums, once, and their total with it.
    "heads_from_sums": {
        "row": "analytic",
        "phases": [
            {
                "name": "pretrain",
                "rounds": 1,
                "contrastive": {"method": "moco_v2", "splits": 2},
                "training": {"epochs": 1},
            },
            {"name": "sums", "sums": {"features": 64}},
        ],
        "network": {"encoder": "few_blocks", "frozen": 1, "contrast": {"hidden": 16, "width": 8}},
        "exchange": {"personal": "head", "batchnorm": "shared_all"},
        "training": {"threads": 1, "batch_size": 8},
        "phantom_images": 60,
        "referral_curve": True,
    },
}
PROMISE = {"missed": 0.2, "sure": 0.8, "drawn": True}
ALLOWED = {"encoder", "norm", "statistic", "control", "projector", "calibration", "head", "exit", "sums"}
TRAIN_KINDS = {
    "with_labels_and_without": {"control", "encoder", "norm", "statistic", "head"},
    "a_head_that_travels": {"encoder", "norm", "projector", "head", "exit"},
}


def in_poc(script, folder, sites):
    """Change `job.py` as it says itself; gives the environment in which PocEnv has a folder and a port of its own."""
    text, said = script.read_text().replace("import SimEnv", "import PocEnv"), "num_clients=len(sites), clients=sites"
    assert f"put PocEnv({said})" in text
    more = f"project_conf_path={str(folder / 'project.yml')!r}, username={ADMIN!r}"
    text, changed = re.subn(r"= SimEnv\(.*\)", f"= PocEnv({said}, {more})", text)
    assert changed == 1
    script.write_text(text)
    write_project(folder / "project.yml", sites, free_port())
    return {"NVFLARE_POC_WORKSPACE": str(folder / "flare")}


@pytest.fixture
def poc(tmp_path):
    """A folder of a POC federation; what FLARE left running of it ends with the test."""
    folder = tmp_path / "poc"
    folder.mkdir()
    yield folder
    end_all(folder)


@pytest.mark.parametrize("name", COVERING)
def test_what_another_row_does_survives_the_wire_to_the_bit(name, tmp_path, poc):
    words, sites = {**SMALL, **COVERING[name]}, ("site-1", "site-4", "site-5")
    expected = run_oracle(tmp_path / "loop", words, sites, PROMISE)
    job = write_job(tmp_path / "job", words, sites)
    # A head leaves only where the site says so itself.
    own_words = {"policy": {"kinds": sorted(ALLOWED), "referral_curve": True}, "data": {"promise": PROMISE}}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(own_words))
    own = {"FEDRETINA_SITE_FILE": str(tmp_path / "site.yaml"), "FEDRETINA_STATE_ROOT": str(tmp_path)}
    started = job
    if name == "a_head_that_travels":
        # Through FLARE's recipes, with fewer threads than sites, which pick the same site as if by chance.
        started = [sys.executable, str(job / "job.py")]
        own["PYTHONPATH"] = os.pathsep.join([str(SAME_PICK), os.environ["PYTHONPATH"]])
    if name == "heads_from_sums":
        started = [sys.executable, str(job / "job.py")]
        own |= in_poc(job / "job.py", poc, sites)
    simulation = Simulation(started, tmp_path / "sim", 3, FEDRETINA_RUN="again", **own)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == expected
    ledgers = {site: Ledger(tmp_path / "again" / site / "ledger.jsonl").lines() for site in sites}
    kinds = {}
    for line in (line for lines in ledgers.values() for line in lines):
        kinds.setdefault(line["phase"], set()).update(line["tensors"])
    assert kinds.get("train") == TRAIN_KINDS.get(name)
    if name == "heads_from_sums":
        shared = {"encoder", "norm", "statistic", "projector"}
        assert kinds == {"pretrain": shared, "sums": {"sums"}, "validate": set(), "curve": set(), "finalise": set()}
        # Upper triangle, first moments and counts of 32 features and the constant, five classes, float64.
        summed = [line for lines in ledgers.values() for line in lines if line["phase"] == "sums"]
        assert {line["bytes"] for line in summed} == {8 * (33 * 34 // 2 + 5 * 33 + 5)}
        assert all(line["scalars"] == {} for line in summed)
        # Two sites let go of how many ill patients they have, the third has too few to tell and gets the others' sum.
        told = {s: line["scalars"] for s, lines in ledgers.items() for line in lines if line["phase"] == "curve"}
        assert told == {"site-1": {"curve_15": 5}, "site-4": {"curve_15": 5}, "site-5": {}}
        asked = [read_json(root / "site-5/final/card.json") for root in (tmp_path / "again", tmp_path / "loop/oracle")]
        assert asked[0]["promise"] == asked[1]["promise"]
        assert (asked[0]["promise"]["reason"], asked[0]["promise"]["others"]) == ("drawn", 10)
    if name == "with_labels_and_without":
        assert kinds["calibrate"] == {"calibration"}
        assert expected["sites"].keys() < set(sites)  # one was drawn too late; others missed a round, their twins none
        for site in expected["sites"]:
            ours, loops = (root / site for root in (tmp_path / "again", tmp_path / "loop" / "oracle"))
            for file in ("final/figures.json", "twin/twin.json", "twin/final/figures.json"):
                assert (ours / file).read_text() == (loops / file).read_text()
            assert "twin" in read_json(ours / "final" / "figures.json")["verdict"]["test"]["models"]
        assert kinds["pretrain"] == {"control", "encoder", "norm", "statistic", "projector"}
        assert all(set(lines[0]["scalars"]) == {"images", "patients", "contrast_loss"} for lines in ledgers.values())
    if name == "a_head_that_travels":
        assert list(tmp_path.rglob("features/*/rows-*"))  # what the frozen stages gave was kept
