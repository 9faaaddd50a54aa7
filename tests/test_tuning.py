"""Fine-tuning after the federated rounds (+FT)."""

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.local.site import Site
from fedretina.local.site_state import Snapshot
from fedretina.local.supervised import RoundOptimiser
from fedretina.local.trainer import LocalTrainer
from fedretina.loop import run_loop
from fedretina.settings.plan import Step
from fedretina.storage import read_json, read_tensors

pytestmark = pytest.mark.slow


def final(root, run, site):
    return read_tensors(root / run / site / "final" / "model.safetensors")[0]


def test_tuning_changes_every_part_of_the_final_model_and_nothing_of_the_federated_rounds(
    tiny, phantoms, undisturbed, tmp_path
):
    plain, tuned = tiny(row="fedavg"), tiny(row="fedavg", tune={"epochs": 2})
    data = phantoms(plain, "site-1", "site-2")
    (before, root), after = undisturbed(plain, data), run_loop(tuned, data, tmp_path, "tuned")
    assert before["model_digest"] == after["model_digest"]
    assert [step["task"] for step in after["steps"]] == ["train", "train", "validate", "tune"]
    assert after["steps"][3]["bytes_up"] == {"site-1": 0, "site-2": 0}
    first, second = final(root, "whole", "site-1"), final(tmp_path, "tuned", "site-1")
    assert set(first) == set(second)
    moved = [key for key in first if not torch.equal(first[key], second[key])]
    assert any(key.startswith("encoder.") for key in moved)
    assert any(key.startswith("head.") for key in moved)


def test_a_learning_rate_of_nearly_nothing_leaves_the_weights(tiny, phantoms, undisturbed, tmp_path):
    plain, tuned = tiny(row="fedavg"), tiny(row="fedavg", tune={"epochs": 1, "learning_rate": 1e-30})
    data = phantoms(plain, "site-1", "site-2")
    _, root = undisturbed(plain, data)
    run_loop(tuned, data, tmp_path, "tuned")
    first, second = final(root, "whole", "site-2"), final(tmp_path, "tuned", "site-2")
    assert torch.equal(first["head.3.weight"], second["head.3.weight"])


@pytest.fixture
def rates(monkeypatch):
    """The head's rate at each optimiser step, in order."""
    seen, plain = [], RoundOptimiser.at

    def noted(self, clock):
        found = plain(self, clock)
        seen.append(next(rate for key, rate in found.items() if key.startswith("head.")))
        return found

    monkeypatch.setattr(RoundOptimiser, "at", noted)
    return seen


@pytest.mark.parametrize("schedule", ["constant", "cosine", "exponential"])
@pytest.mark.parametrize(("asked", "expected"), [({}, 0.05), ({"learning_rate": 0.003}, 0.003)])
def test_tuning_keeps_its_rate_whatever_the_rounds_schedule_fell_to(
    schedule, asked, expected, rates, tiny, phantoms, tmp_path
):
    phases = [{"name": "train", "rounds": 10}]
    experiment = tiny(row="fedavg", phases=phases, training={"schedule": schedule}, tune={"epochs": 2, **asked})
    trainer = LocalTrainer(experiment, phantoms(experiment, "site-1")["site-1"])
    shared = trainer.model.full_state()
    trainer.tune(shared, Snapshot(trainer.model.start, {}), Step(11, "tune", "tune", 0, 1))
    assert rates
    assert set(rates) == {expected}


def test_a_model_of_the_sites_own_beside_the_one_that_travels_keeps_the_rounds_schedule(
    rates, tiny, phantoms, tmp_path
):
    experiment = tiny(
        row="ditto",
        phases=[{"name": "train", "rounds": 2}],
        training={"schedule": "exponential", "decay": 0.5},
        tune={"epochs": 1, "when": "rounds", "learning_rate": 0.01},
    )
    run_loop(experiment, phantoms(experiment, "site-1"), tmp_path, "r")
    assert set(rates) == {0.05, 0.025, 0.01, 0.005}  # of the model that travels, and of the site's own


def test_a_run_killed_around_its_tuning_ends_with_the_same_models(tiny, phantoms, tmp_path):
    experiment = tiny(row="feduaa", tune={"epochs": 1})
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path, "whole")
    steps = len(expected["steps"]) + 1  # and the one that writes them down
    for _ in range(steps):
        coordinator = Coordinator(experiment, "whole", tmp_path / "parts" / "server")
        coordinator.begin(data)
        for site in coordinator.asked:
            for _ in range(2):  # the order is sent again to a site that had answered and was restarted
                host = Site(experiment, data[site], tmp_path / "parts" / site)
                answer = host.handle(coordinator.order(site), coordinator.down())
            coordinator.accept(site, answer)
        coordinator.close()
    got = read_json(tmp_path / "parts" / "server" / "results.json")
    assert got["sites"] == expected["sites"]
    for site in data:
        whole, parts = final(tmp_path, "whole", site), final(tmp_path, "parts", site)
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_a_site_whose_tuning_failed_ends_with_the_chosen_model(tiny, phantoms, undisturbed, tmp_path):
    plain, tuned = tiny(row="fedavg"), tiny(row="fedavg", tune={"epochs": 1})
    data = phantoms(plain, "site-1", "site-2")
    _, root = undisturbed(plain, data)
    coordinator = Coordinator(tuned, "r", tmp_path / "r" / "server")
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(data)
        for site in coordinator.asked:
            host = Site(tuned, data[site], tmp_path / "r" / site)
            if coordinator.step.task == "tune" and site == "site-2":
                coordinator.refuse(site, "out of memory")
            else:
                coordinator.accept(site, host.handle(coordinator.order(site), coordinator.down()))
        coordinator.close()
    first, second = final(root, "whole", "site-2"), final(tmp_path, "r", "site-2")
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_phase_may_not_be_called_tune(tiny):
    with pytest.raises(Exception, match="'tune'"):
        tiny(phases=[{"name": "tune", "rounds": 1}])
