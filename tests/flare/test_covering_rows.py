"""Rows that cover each value of the axes and each kind of phase once: the real simulator against the plain loop."""

import pytest
import yaml
from simulation import SMALL, Simulation, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare

SHORT = {"training": {"epochs": 1, "batch_size": 8}}
# Each value of the axes and each kind of phase once. Grades of sites 1, 4 and 5 are alike, so their heads can travel.
COVERING = {
    "controls": {
        "row": "scaffold",
        "network": {**SMALL["network"], "calibrator": True},
        "sampling": {"fraction": 0.67},
        "training": {
            **SMALL["training"],
            "optimizer": "adam",
            "learning_rate": 0.001,
            "schedule": "cosine",
            "stretches": [{"train": "head", "epochs": 1}, {"train": "encoder", "epochs": 1}],
        },
    },
    "a_model_a_site": {
        "row": "fedap",
        "correction": {"name": "fedprox"},
        "tune": {"epochs": 1},
        "report": {"draws": 10, "page": True},
    },
    "a_head_that_travels": {
        "row": "moon_projected",
        "quorum": 3,
        "aggregation": {"robust": {"name": "norm_bound", "bound": 0.9}},
        "grades": 5,
        "network": {**SMALL["network"], "head": {"layout": "linear"}},
        "objective": {"name": "evidential"},
        "exchange": {"personal": "nothing", "batchnorm": "local_stats"},
        "evaluation": {"estimator": "evidence", "auc_input": "belief"},
    },
    "a_spring_and_uaw": {
        "row": "feddyn",
        "network": {**SMALL["network"], "encoder": "vit_small"},
        "exchange": {"personal": "head", "batchnorm": "none"},
        "objective": {"name": "tweu"},
        "theta": {"source": "validation"},
        "aggregation": {"rule": "uaw"},
        "choice": {"window": 2},
    },
    "drift_in_two_phases": {
        "row": "feddc",
        "phases": [{"name": "warm", "rounds": 1}, {"name": "train", "rounds": 1}],
        "training": {**SMALL["training"], "momentum": 0.9, "clip_norm": 1.0},
    },
    "alone": {"row": "singleset_eu"},
    "many_answers": {
        "row": "fedee",
        "grades": 5,
        "exchange": {"personal": "exits"},
        "network": {**SMALL["network"], "exits": {"width": 8}, "dropout": {"rate": 0.1}},
        "evaluation": {"passes": 2},
        "training": {**SMALL["training"], "optimizer": "adam", "learning_rate": 0.001, "optimizer_state": "keep"},
    },
    "with_labels_and_without": {
        "row": "oct_moco_scaffold",
        "phases": [
            {"name": "pretrain", "rounds": 2, "contrastive": {"method": "moco_v2", "key_sync": "aggregate"}, **SHORT},
            {"name": "train", "rounds": 1, **SHORT},
        ],
        "images": {"modality": "oct", "image_size": 32},
        "network": {**SMALL["network"], "contrast": {"hidden": 16, "width": 8}},
    },
}
ALLOWED = {"encoder", "norm", "statistic", "control", "projector", "calibration", "head"}
TRAIN_KINDS = {
    "controls": {"control", "encoder", "norm", "statistic"},
    "a_model_a_site": {"encoder"},
    "a_head_that_travels": {"encoder", "norm", "projector", "head"},
    "a_spring_and_uaw": {"encoder"},
    "drift_in_two_phases": {"control", "encoder", "norm", "statistic"},
    "alone": set(),
    "many_answers": {"encoder", "norm", "statistic", "head"},
    "with_labels_and_without": {"control", "encoder", "norm", "statistic", "head"},
}


@pytest.mark.parametrize("name", COVERING)
def test_what_another_row_does_survives_the_wire_to_the_bit(name, tmp_path):
    words, sites = {**SMALL, **COVERING[name]}, ("site-1", "site-4", "site-5")
    expected = run_oracle(tmp_path / "loop", words, sites)
    job = write_job(tmp_path / "job", words, sites)
    # A head leaves only where the site says so itself.
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({"policy": {"kinds": sorted(ALLOWED)}}))
    own = {"FEDRETINA_SITE_FILE": str(tmp_path / "site.yaml"), "FEDRETINA_STATE_ROOT": str(tmp_path)}
    simulation = Simulation(job, tmp_path / "sim", 3, FEDRETINA_RUN="again", **own)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == expected
    lines = Ledger(tmp_path / "again" / "site-1" / "ledger.jsonl").lines()
    kinds = {line["phase"]: set(line["tensors"]) for line in lines}
    assert kinds["train"] == TRAIN_KINDS[name]
    if name == "controls":
        assert kinds["calibrate"] == {"calibration"}
    if name == "with_labels_and_without":
        assert kinds["pretrain"] == {"control", "encoder", "norm", "statistic", "projector"}
        assert set(lines[0]["scalars"]) == {"images", "contrast_loss"}
    if name == "a_model_a_site":
        assert kinds["prepare"] == {"statistic"}
        assert kinds["tune"] == kinds["finalise"] == set()
        for page in ("server", "site-1/final"):
            assert "Research software" in (tmp_path / "again" / page / "report.html").read_text()
