"""Pre-training in several processes, which no fixture of a test reaches: with the whole encoder, for a file."""

import pytest

from fedretina_papers.first_phase import run_first_phase
from fedretina_papers.first_phase_plan import FirstPhasePlan
from fedretina_papers.plan import preset
from fedretina_papers.pretraining import given_encoders


@pytest.mark.slow
def test_several_pre_train_at_a_time_to_the_bits_of_one_at_a_time(tmp_path):
    moco, longer, alone = (
        {"title": "MoCo", "who": "sites", "name": "moco", "enough": 1},
        {"title": "MoCo", "who": "sites", "name": "longer", "enough": 2, "after": "moco"},
        {"title": "MoCo", "who": "alone", "name": "alone", "enough": 1},
    )
    training = {"epochs": 1, "batch_size": 8, "learning_rate": 0.01, "threads": 1}
    settings = {
        "sites": dict.fromkeys(("site-1", "site-2")),
        "rounds": 3,
        "minutes": 100,
        "phantom_images": 16,
        "encoders": [moco, longer, alone],
        "pretrain": {
            "images": {"modality": "oct", "image_size": 32},
            "network": {"frozen": 3, "weights": {"source": "none"}},
            "phases": [{"name": "pretrain", "contrastive": {"momentum": 0.99, "splits": 2}, "training": training}],
        },
    }
    plan, told = FirstPhasePlan.read({**preset("p1-oct"), **settings}), []
    run_first_phase(plan, tmp_path / "one", 1, lambda one: None)
    run_first_phase(plan, tmp_path / "two", 2, lambda one: told.append(one.words))
    assert sorted(told) == ["alone: round 1 of 1", "longer: round 2 of 2", "moco: round 1 of 1"]
    assert told.index("moco: round 1 of 1") < told.index("longer: round 2 of 2")
    one, two = (given_encoders(tmp_path / name) for name in ("one", "two"))
    assert {name: _sha(found) for name, found in one.items()} == {name: _sha(found) for name, found in two.items()}
    assert sorted(one) == ["alone", "longer", "moco"]


def _sha(encoder):
    return {site: one["sha256"] for site, one in encoder["files"].items()}
