from collections import Counter

import pytest

from fedretina.aggregation.coordinator import Coordinator, sampled
from fedretina.errors import RefusedError
from fedretina.evaluation.model_selection import chosen_step
from fedretina.loop import run_loop
from fedretina.settings.aggregation import ChoiceSettings, SamplingSettings
from fedretina.settings.experiment import Experiment

SITES = [f"site-{number}" for number in range(1, 11)]


def test_all_are_asked_by_default_in_the_order_of_their_names():
    assert sampled(list(reversed(SITES)), SamplingSettings(), 1, (1,)) == sorted(SITES)


@pytest.mark.parametrize(("fraction", "quorum", "count"), [(0.3, 1, 3), (0.01, 1, 1), (0.2, 5, 5), (1.0, 99, 10)])
def test_the_share_is_rounded_and_never_below_the_quorum(fraction, quorum, count):
    assert len(sampled(SITES, SamplingSettings(fraction=fraction), quorum, (1, "train", 0))) == count


def test_draws_are_even_differ_by_round_and_repeat():
    draws = [sampled(SITES, SamplingSettings(fraction=0.3), 1, (1, "train", n)) for n in range(1000)]
    assert draws[7] == sampled(SITES[::-1], SamplingSettings(fraction=0.3), 1, (1, "train", 7))
    counts = Counter(site for draw in draws for site in draw)
    assert len(counts) == 10
    assert all(240 < count < 360 for count in counts.values())  # 300 expected, sigma 14.5


@pytest.mark.slow
def test_a_run_with_sampling_asks_that_share_and_ends_with_its_last_model(tiny, phantoms, tmp_path):
    experiment = tiny(row="scaffold", sampling={"fraction": 0.67}, phases=[{"name": "train", "rounds": 4}])
    data = phantoms(experiment)
    results = run_loop(experiment, data, tmp_path, "r")
    train = [step for step in results["steps"] if step["task"] == "train"]
    assert all(len(step["asked"]) == len(step["weights"]) == 2 for step in train)
    assert all(step["enrolled"] == sorted(data) for step in train)
    assert len({tuple(step["asked"]) for step in train}) > 1
    assert results["chosen"] == "train-0003"
    assert run_loop(experiment, data, tmp_path, "again")["model_digest"] == results["model_digest"]


def test_it_ends_with_the_last_model_whoever_measured_it():
    experiment = Experiment.resolve({"row": "fedavg", "sampling": {"fraction": 0.8}})
    records = [{"scalars": figures} for figures in ({}, {"a": {"val_auc": 0.9}}, {"b": {"val_auc": 0.5}})]
    assert chosen_step(records, range(2), experiment.ends_with) == 1
    assert Experiment.resolve({"row": "fedavg"}).ends_with == ChoiceSettings()


def test_a_site_that_was_not_asked_is_refused(tiny, phantoms, tmp_path):
    experiment = tiny(sampling={"fraction": 0.3})
    coordinator = Coordinator(experiment, "r", tmp_path)
    coordinator.begin(["site-1", "site-2", "site-3"])
    other = next(site for site in ("site-1", "site-2", "site-3") if site not in coordinator.asked)
    with pytest.raises(RefusedError, match="not asked"):
        coordinator.accept(other, None)
