"""A simulator run killed with SIGKILL in its steps, or a site of it: started by name it ends with the same bits."""

import time

import pytest
from simulation import SMALL, Simulation, done, make_hostile, results, run_oracle, write_job

pytestmark = pytest.mark.flare
SITES = ("absent", "good")
# Bigger than elsewhere, so that a kill lands inside the training of a round.
WORDS = {**SMALL, "phantom_images": 120, "phases": [{"name": "train", "rounds": 3}]}
STEPS = 5  # three rounds, validate, finalise


def test_killed_in_its_steps_and_without_the_site_that_missed_its_end_a_run_ends_with_the_same_bits(tmp_path):
    job = make_hostile(write_job(tmp_path / "job", WORDS, SITES))

    def start(**more):
        own = {"FEDRETINA_RUN": "r", "FEDRETINA_STATE_ROOT": str(tmp_path), **more}
        return Simulation(job, tmp_path / "sim", len(SITES), **own)

    def killed_in(simulation, step, after_s):
        simulation.until(lambda: done(tmp_path, "r") >= step)
        time.sleep(after_s)
        simulation.kill()
        assert step <= done(tmp_path, "r") < STEPS
        return f"{done(tmp_path, 'r')} of {STEPS} steps done"

    said = killed_in(start(), 1, 0.3)
    second = start()
    second.until(lambda: done(tmp_path, "r") >= 2)
    assert said in second.text()
    second.kill_site("absent")
    time.sleep(5)  # what FLARE makes of it is its own affair: the run's state is what counts
    second.kill()
    said = killed_in(start(ABSENT="1"), STEPS - 1, 0.0)

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
