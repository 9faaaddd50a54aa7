"""A run killed with SIGKILL in both its phases, or a site of it: started by name it ends with the same bits."""

import time

import pytest
from simulation import SMALL, Simulation, done, make_hostile, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("absent", "good")
# All that training, with labels and without, can keep at a site: variates, a key encoder and a queue of its own. Longer
# than elsewhere, so that a kill lands inside the training of a round.
WORDS = {
    **SMALL,
    "row": "oct_moco_scaffold",
    "phases": [
        {
            "name": "pretrain",
            "rounds": 2,
            "contrastive": {"method": "moco_v2", "key_sync": "ema", "queue_start": "keep", "queue": 16},
            "training": {"epochs": 3, "batch_size": 8},
        },
        {"name": "train", "rounds": 2, "training": {"epochs": 3, "batch_size": 8}},
    ],
    "exchange": {"codec": {"name": "int4", "smallest": 64}},  # what it loses is kept at both ends
    "images": {"modality": "oct", "image_size": 32},
    "network": {"encoder": "few_blocks", "contrast": {"hidden": 16, "width": 8}},
    "phantom_images": 32,
}
STEPS = 6  # two rounds of either phase, validate, finalise


def test_killed_in_its_steps_and_without_the_site_that_missed_its_end_a_run_ends_with_the_same_bits(tmp_path):
    job = make_hostile(write_job(tmp_path / "job", WORDS, SITES))

    def start(**more):
        own = {"FEDRETINA_RUN": "r", "FEDRETINA_STATE_ROOT": str(tmp_path), **more}
        return Simulation(job, tmp_path / "sim", len(SITES), **own)

    def in_step(step, name):
        simulation = start(HOLDS=name)  # else it may be over before a busy machine lets the test act
        simulation.until(lambda: done(tmp_path, "r") >= step)
        return simulation

    def killed(simulation):
        simulation.kill()
        return f"{done(tmp_path, 'r')} of {STEPS} steps done"

    first = in_step(1, "pretrain-1")  # the second round without labels
    time.sleep(0.3)
    first.kill_site("absent")
    first.until(lambda: "received dead job report for client absent" in first.text())  # FLARE alone waits for it
    said = killed(first)
    second = in_step(3, "train-1")  # the second round with labels
    assert said in second.text()
    time.sleep(0.3)
    for site in SITES:
        second.kill_site(site)
    assert second.wait() == 2  # FLARE alone ends with 0
    assert "no site's process was left before the run was complete" in second.text()
    said = f"{done(tmp_path, 'r')} of {STEPS} steps done"

    # Kills in the steps at the end: tests/test_two_phases.py.
    without = start(ABSENT="1")
    assert without.wait() == 0, without.text()[-3000:]
    assert said in without.text()
    assert set(results(tmp_path, "r")["sites"]) == {"good"}
    assert "absent trained and has no model yet" in without.text()
    ledger = (tmp_path / "r" / "good" / "ledger.jsonl").read_bytes()

    # A complete run asks the site that missed its end, and no other.
    again = start()
    assert again.wait() == 0, again.text()[-3000:]
    assert "complete but for the results of absent" in again.text()
    assert results(tmp_path, "r") == run_oracle(tmp_path, WORDS, SITES)
    assert (tmp_path / "r" / "absent" / "final" / "model.safetensors").exists()
    assert (tmp_path / "r" / "good" / "ledger.jsonl").read_bytes() == ledger
    for site in SITES:  # key encoder and queue stayed
        lines = Ledger(tmp_path / "r" / site / "ledger.jsonl").lines()
        assert {line["phase"] for line in lines} >= {"pretrain", "train"}
        assert not any("key" in name or "queue" in name for line in lines for name in line["tensors"]), lines
