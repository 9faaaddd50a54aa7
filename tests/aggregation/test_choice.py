import itertools

import numpy as np

from fedretina.evaluation.model_selection import best_step, candidates, chosen_step
from fedretina.settings.aggregation import ChoiceSettings


def records(*aucs):
    """One record per step; the figures of a record belong to the model of the step before it."""
    return [{"scalars": {site: {"val_auc": auc} for site, auc in step.items()}} for step in aucs]


def test_the_best_mean_wins_and_the_earliest_of_equals():
    done = records({}, {"a": 0.6, "b": 0.8}, {"a": 0.9, "b": 0.5}, {"a": 0.7, "b": 0.7}, {"a": 0.1, "b": 0.1})
    assert [round(c.mean, 6) for c in candidates(done, range(4))] == [0.7, 0.7, 0.7, 0.1]
    assert best_step(done, range(4)) == 0


def test_figures_received_in_a_step_belong_to_the_one_before():
    done = records({}, {"a": 0.5}, {"a": 0.9}, {"a": 0.6})
    assert best_step(done, range(3)) == 1


def test_means_over_fewer_sites_do_not_compete():
    done = records({}, {"a": 0.99}, {"a": 0.6, "b": 0.6})
    assert best_step(done, range(2)) == 1


def test_nothing_measured_is_no_choice():
    assert best_step([], range(3)) is None
    assert best_step(records({}), range(3)) is None
    assert best_step([{"scalars": {"a": {}}}, {"scalars": {"a": {"theta": 0.5}}}], range(3)) is None


def test_steps_after_training_are_no_candidates():
    done = records({}, {"a": 0.5}, {"a": 0.6}, {"a": 0.99})
    assert [c.step for c in candidates(done, range(2))] == [0, 1]


def test_a_window_smooths_and_rounds_without_a_full_one_do_not_stand():
    done = records({}, *({"a": auc} for auc in (0.9, 0.1, 0.6, 0.7, 0.4)))
    assert best_step(done, range(5)) == 0
    assert best_step(done, range(5), window=2) == 3
    assert best_step(done, range(5), window=3) == 4  # (.6 + .7 + .4) / 3 beats .533 and .467
    assert best_step(done, range(5), window=99) == 4


def test_the_choice_never_goes_back_to_a_round_whose_parts_were_dropped():
    rng = np.random.default_rng(5)
    for window in (1, 2, 4):
        done = records({}, *({name: rng.random() for name in "ab"[: rng.integers(1, 3)]} for _ in range(30)))
        chosen = [best_step(done[:end], range(30), window) for end in range(2, 32)]
        for newest, (before, after) in enumerate(itertools.pairwise(chosen), start=1):
            assert after in (before, newest)


def test_the_last_round_is_taken_where_a_run_asks_for_it():
    last = ChoiceSettings(model="last")
    done = records({"a": 0.9}, {"a": 0.5}, {})
    assert [chosen_step(done[:end], range(1, 3), last) for end in range(4)] == [None, None, 1, 2]
    assert chosen_step([*done, {"scalars": {}}], range(1, 3), last) == 2  # steps after training do not count
    assert chosen_step(done, range(3), ChoiceSettings()) == best_step(done, range(3))
