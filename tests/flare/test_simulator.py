"""The real simulator against the plain loop, bit for bit."""

import json

import pytest
from simulation import SMALL, Simulation, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2", "site-3")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """Results of the plain loop for the small job, made once."""
    root = tmp_path_factory.mktemp("loop")
    run_oracle(root, SMALL, SITES)
    return root


@pytest.mark.parametrize("threads", [1, 3])
def test_the_simulator_ends_with_the_loops_bits(oracle, tmp_path, threads):
    job = write_job(tmp_path / "job", SMALL, SITES)
    simulation = Simulation(job, tmp_path / "sim", threads, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == results(oracle, "oracle")
    for site in SITES:
        ours, loops = (
            json.loads((root / run / site / "final" / "figures.json").read_text())
            for root, run in ((tmp_path, "again"), (oracle, "oracle"))
        )
        assert ours == loops
        lines = Ledger(tmp_path / "again" / site / "ledger.jsonl").lines()
        assert [line["phase"] for line in lines] == ["train", "train", "validate", "finalise"]
        assert set(lines[0]["tensors"]) == {"encoder"}
        assert lines[0]["bytes"] == results(oracle, "oracle")["steps"][0]["bytes_up"][site]
        assert lines[2]["tensors"] == {}
        assert set(lines[0]["scalars"]) == {"theta", "images"}
    assert "travels" in simulation.text()
    again = Simulation(job, tmp_path / "sim", threads, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert again.wait() == 0  # a run that is complete does nothing and says so
    assert "begun, attempt" not in again.text().split("4 of 4 steps done")[1]


def test_the_model_learner_job_ends_with_the_loops_bits(oracle, tmp_path):
    job = write_job(tmp_path / "job", SMALL, SITES, base="feduaa_learner")
    simulation = Simulation(job, tmp_path / "sim", 3, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == results(oracle, "oracle")


# Each value of the axes and each kind of phase once: controls both ways, stretches, a sample of the sites and a rate
# that falls; then statistics sent once, a model a site, a spring, fine-tuning, and the pages.
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
}


@pytest.mark.parametrize("name", COVERING)
def test_what_another_row_does_survives_the_wire_to_the_bit(name, tmp_path):
    words = {**SMALL, **COVERING[name]}
    expected = run_oracle(tmp_path / "loop", words, SITES)
    job = write_job(tmp_path / "job", words, SITES)
    simulation = Simulation(job, tmp_path / "sim", 3, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == expected
    lines = Ledger(tmp_path / "again" / "site-1" / "ledger.jsonl").lines()
    kinds = {line["phase"]: set(line["tensors"]) for line in lines}
    if name == "controls":
        assert kinds["train"] == {"control", "encoder", "norm", "statistic"}
        assert kinds["calibrate"] == {"calibration"}
    else:
        assert kinds["prepare"] == {"statistic"}
        assert kinds["train"] == {"encoder"}
        assert kinds["tune"] == kinds["finalise"] == set()
        for page in ("server", "site-1/final"):
            assert "Research software" in (tmp_path / "again" / page / "report.html").read_text()
