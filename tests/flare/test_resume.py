"""Server or site killed with SIGKILL in a real simulator run, started again by name: the same bits as undisturbed."""

import time

import pytest
from simulation import SMALL, Simulation, done, make_hostile, results, run_oracle, write_job

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2")
# Bigger than elsewhere, so that a kill lands inside the training of a round.
WORDS = {**SMALL, "phantom_images": 120, "phases": [{"name": "train", "rounds": 2}]}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    root = tmp_path_factory.mktemp("loop")
    return run_oracle(root, WORDS, SITES)


def start(tmp_path, job):
    return Simulation(job, tmp_path / "sim", len(SITES), FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))


@pytest.mark.parametrize("step", [1, 3])
def test_the_whole_run_killed_in_a_step_goes_on_by_name(oracle, tmp_path, step):
    job = write_job(tmp_path / "job", WORDS, SITES)
    simulation = start(tmp_path, job)
    simulation.until(lambda: done(tmp_path, "r") == step)
    time.sleep(0.3)
    simulation.kill()
    assert done(tmp_path, "r") == step
    again = start(tmp_path, job)
    assert again.wait() == 0, again.text()[-3000:]
    assert f"{step} of 4 steps done" in again.text()
    assert results(tmp_path, "r") == oracle


def test_a_sites_process_killed_in_training_goes_on_by_name(oracle, tmp_path):
    job = write_job(tmp_path / "job", WORDS, SITES)
    simulation = start(tmp_path, job)
    simulation.until(lambda: done(tmp_path, "r") == 1)
    simulation.kill_site("site-2")
    time.sleep(5)  # what FLARE makes of it is its own affair: the run's state is what counts
    simulation.kill()
    again = start(tmp_path, job)
    assert again.wait() == 0, again.text()[-3000:]
    assert results(tmp_path, "r") == oracle


def test_a_complete_run_asks_the_site_that_missed_its_end_and_no_other(tmp_path):
    sites = ("absent", "good")
    job = make_hostile(write_job(tmp_path / "job", SMALL, sites))
    environment = {"FEDRETINA_RUN": "r", "FEDRETINA_STATE_ROOT": str(tmp_path)}
    first = Simulation(job, tmp_path / "first", 2, **environment, ABSENT="1")
    assert first.wait() == 0, first.text()[-3000:]
    assert set(results(tmp_path, "r")["sites"]) == {"good"}
    assert "absent trained and has no model yet" in first.text()
    ledger = (tmp_path / "r" / "good" / "ledger.jsonl").read_bytes()
    again = Simulation(job, tmp_path / "again", 2, **environment)
    assert again.wait() == 0, again.text()[-3000:]
    assert "complete but for the results of absent" in again.text()
    assert results(tmp_path, "r") == run_oracle(tmp_path, SMALL, sites)
    assert (tmp_path / "r" / "absent" / "final" / "model.safetensors").exists()
    assert (tmp_path / "r" / "good" / "ledger.jsonl").read_bytes() == ledger
