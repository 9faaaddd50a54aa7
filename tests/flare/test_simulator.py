"""The real simulator against the plain loop, bit for bit."""

import json

import pytest
from simulation import SMALL, Simulation, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2", "site-3")


def test_the_simulator_ends_with_the_loops_bits(tmp_path):
    """All sites at once, in a process each."""
    threads, words = len(SITES), {**SMALL, "verdict": "own"}
    job = write_job(tmp_path / "job", words, SITES)
    simulation = Simulation(job, tmp_path / "sim", threads, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    oracle = run_oracle(tmp_path, words, SITES)
    assert results(tmp_path, "again") == oracle
    for site in SITES:
        ours, loops = (
            json.loads((tmp_path / run / site / "final" / "figures.json").read_text()) for run in ("again", "oracle")
        )
        assert ours == loops
        lines = Ledger(tmp_path / "again" / site / "ledger.jsonl").lines()
        assert [line["phase"] for line in lines] == ["train", "train", "validate", "finalise"]
        assert set(lines[0]["tensors"]) == {"encoder"}
        assert lines[0]["bytes"] == oracle["steps"][0]["bytes_up"][site]
        assert lines[2]["tensors"] == {}
        assert set(lines[0]["scalars"]) == {"theta", "images", "patients"}
    assert "travels" in simulation.text()


def test_the_model_learner_job_ends_with_the_loops_bits(tmp_path):
    """The sites one after another in one process: each is built anew for each of its steps."""
    # A server and sites that remember more than what travels: FedAdam, and a model of each site's own (Ditto).
    memories = {"aggregation": {"optimiser": "fedadam"}, "tune": {"epochs": 1, "when": "rounds"}}
    sites, words = SITES[:2], {**SMALL, **memories}
    job = write_job(tmp_path / "job", words, sites, base="feduaa_learner")
    simulation = Simulation(job, tmp_path / "sim", 1, FEDRETINA_RUN="again", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == run_oracle(tmp_path, words, sites)
