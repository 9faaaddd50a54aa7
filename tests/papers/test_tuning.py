"""Grids that go on where their best value stands at an end, numbers that are tuned one after the other."""

import pytest
from pydantic import ValidationError

from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.tuning import Search, Tuned, tuned_words

MU = Tuned(setting="correction.mu", values=(0.01, 0.1, 1.0), factor=10, grows=0)
RATE = Tuned(setting="training.learning_rate", values=(0.01, 0.1, 1.0), factor=10, grows=2)


def searched(worth, *numbers):
    search = Search(numbers)
    while asked := search.asks:
        search.learn([worth(one) for one in asked])
    return search


def rate_of(change):
    return change["training"]["learning_rate"]


@pytest.mark.parametrize(
    ("best", "tried", "chosen", "edge"),
    [
        (0.1, ["0.01", "0.1", "1"], 0.1, False),
        (0.001, ["0.0001", "0.001", "0.01", "0.1", "1"], 0.001, False),
        (1e9, ["0.01", "0.1", "1", "10", "100"], 100, True),  # it grew as far as it may
    ],
)
def test_a_grid_grows_beyond_the_end_at_which_its_best_value_stands(best, tried, chosen, edge):
    (found,) = searched(lambda one: -abs(rate_of(one) - best), RATE).tried
    assert (list(found["tried"]), found["chosen"], found["edge"]) == (tried, pytest.approx(chosen), edge)
    assert ("(the end of what was tried)" in tuned_words(found)) == edge


def test_a_grid_does_not_grow_beyond_what_a_setting_takes():
    (found,) = searched(rate_of, RATE.model_copy(update={"most": 10.0})).tried
    assert list(found["tried"]) == ["0.01", "0.1", "1", "10"]
    assert found["edge"]


def test_the_second_number_is_tuned_at_the_first_ones_best():
    mu = Tuned(setting="correction.mu", values=(0.01, 0.1, 1.0), factor=10)
    asked = []

    def worth(one):
        asked.append(one)
        return -abs(rate_of(one) - 0.1) - abs(one.get("correction", {}).get("mu", 0.1) - 0.1)

    found = searched(worth, RATE, mu)
    assert found.change == {"training": {"learning_rate": 0.1}, "correction": {"mu": 0.1}}
    assert {rate_of(one) for one in asked if "correction" in one} == {0.1}


def test_where_no_value_can_be_used_nothing_is_chosen_and_the_next_number_is_tuned():
    search = searched(lambda one: None if "correction" not in one else 0.5, RATE, MU)
    assert search.change == {"correction": {"mu": 0.01}}
    first, second = search.tried
    assert (first["chosen"], first["edge"], list(first["tried"])) == (None, False, ["0.01", "0.1", "1"])
    assert second["chosen"] == 0.01
    assert "the row's own, since none could be used" in tuned_words(first)


@pytest.mark.parametrize("values", [(0.0, 0.1, 1.0), (-1.0, 0.1, 1.0), (0.1, 0.1, 1.0), (1.0, 0.1, 0.01)])
def test_values_ascend_and_are_above_0_so_that_a_grid_can_grow(values):
    with pytest.raises(ValidationError, match="above 0"):
        Tuned(setting="correction.mu", values=values)


def test_what_could_not_be_measured_is_worth_least_and_of_equals_the_first_is_taken():
    assert RATE.best({0.01: 0.5, 0.1: 0.7, 1.0: 0.7}) == 0.1
    assert RATE.best({0.01: None, 0.1: 0.4, 1.0: None}) == 0.1
    assert "0.01: –" in tuned_words({"setting": "a", "tried": {"0.01": None, "0.1": 0.4}, "chosen": 0.1, "edge": True})


@pytest.mark.parametrize(
    "name", ["feduaa", "oct", "fedee", "fedee-oct", "fedee-heart", "fedee-dermoscopy", "fedee-activity"]
)
def test_every_row_that_trains_tunes_its_rate_and_its_strength(name):
    plan = BenchmarkPlan.read(preset(name))
    for choice in plan.rows:
        experiment = plan.experiment_of(choice, 1, {})
        studied = choice.name.startswith("fedee_b")  # the rate is what these rows show
        once = experiment.network.weights.source == "none" and "network" in choice.settings  # costs alone
        if experiment.sums is not None or studied or once:
            continue
        numbers = [one.setting.split(".")[-1] for one in plan.grid_of(choice)]
        strength = {"mu", "alpha"} & set(type(experiment.correction).model_fields)
        assert numbers == ["learning_rate", *strength], choice.name
        assert all(one.grows for one in plan.grid_of(choice))
