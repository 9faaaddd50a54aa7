"""A site killed while it pre-trains without labels, then the rest of the run: by name it ends with the same bits."""

import time

import pytest
from simulation import SMALL, Simulation, done, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("site-1", "site-2", "site-3")
# All that label-free training can keep at a site: variates, a key encoder and a queue of its own.
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
        {"name": "train", "rounds": 1, "training": {"epochs": 1, "batch_size": 8}},
    ],
    "images": {"modality": "oct", "image_size": 32},
    "network": {"encoder": "efficientnet_lite0", "contrast": {"hidden": 16, "width": 8}},
    "phantom_images": 24,
}


def test_a_site_killed_in_pretraining_goes_on_by_name(tmp_path):
    expected = run_oracle(tmp_path / "loop", WORDS, SITES)
    job = write_job(tmp_path / "job", WORDS, SITES)

    def start():
        own = {"FEDRETINA_RUN": "r", "FEDRETINA_STATE_ROOT": str(tmp_path)}
        return Simulation(job, tmp_path / "sim", len(SITES), **own)

    simulation = start()
    simulation.until(lambda: done(tmp_path, "r") == 1)  # the second round without labels has begun
    time.sleep(0.3)
    simulation.kill_site("site-2")
    time.sleep(2)  # what FLARE makes of it is its own affair: the run's state is what counts
    simulation.kill()
    assert done(tmp_path, "r") == 1
    again = start()
    assert again.wait() == 0, again.text()[-3000:]
    assert "1 of 5 steps done" in again.text()
    assert results(tmp_path, "r") == expected
    lines = Ledger(tmp_path / "r" / "site-2" / "ledger.jsonl").lines()
    assert {line["phase"] for line in lines} >= {"pretrain", "train"}
    for line in lines:  # key encoder and queue stayed
        assert not any("key" in name or "queue" in name for name in line["tensors"]), line
