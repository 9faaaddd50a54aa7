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


LEVEL = {"a": 0.95, "b": 0.9, "c": 0.85, "d": 0.6, "e": 0.55}  # the sites differ by more than the rounds do


def rising(*away, by=0.01):
    """Every site's figure rises by so much a round; who is away in a round measures nothing."""
    return records({}, *({s: LEVEL[s] + by * at for s in LEVEL if s not in gone} for at, gone in enumerate(away)))


def test_steps_that_other_sites_missed_compare_over_the_sites_that_measured_both():
    assert best_step(rising("e", "d", "c"), range(3)) == 2
    assert best_step(rising("c", "d", "e", by=-0.01), range(3)) == 0
    assert best_step(rising("", "", "", "a"), range(4)) == 3  # one site missed one step: nothing is thrown away
    better, worse = ({s: LEVEL[s] + more for s in at} for at, more in (("bcde", 0.02), ("abcde", 0.01)))
    assert best_step(records({}, LEVEL, better, worse), range(3)) == 1
    assert best_step(rising("", *"eeeeee"), range(7)) == 6  # a hospital that is off from then on does not end the run
    assert best_step(rising("", "e", "", "d", "", "c"), range(6), window=2) == 5


def test_a_step_that_few_sites_measured_is_not_taken_for_a_better_one():
    assert best_step(rising("", "abc", by=0.2), range(2)) == 0
    assert best_step(rising("abcd", "", by=-0.1), range(2)) == 1  # more sites measured it, and only one both
    # d came later: it has no part of its own for the first model, whatever the others' figures.
    assert best_step(records({}, dict.fromkeys("abc", 0.9), dict.fromkeys("abcd", 0.5)), range(2)) == 1


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
        done = records({}, *({s: rng.random() for s in "abcde" if rng.random() < 0.6} for _ in range(30)))
        chosen = [best_step(done[:end], range(30), window) for end in range(2, 32)]
        for newest, (before, after) in enumerate(itertools.pairwise(chosen), start=1):
            assert after in (before, newest)


def test_where_every_site_measured_every_step_it_is_the_best_mean_and_no_other():
    rng = np.random.default_rng(7)
    for window in (1, 3):
        done = records({}, *({s: float(rng.integers(5)) / 7 for s in "abc"} for _ in range(40)))
        for end in range(2, 42):
            means = [c.mean for c in candidates(done[:end], range(40))]
            full = range(min(window, len(means)) - 1, len(means))
            figures = {at: sum(means[max(0, at + 1 - window) : at + 1]) for at in full}
            assert best_step(done[:end], range(40), window) == max(figures, key=lambda at: (figures[at], -at))


def test_the_last_round_is_taken_where_a_run_asks_for_it():
    last = ChoiceSettings(model="last")
    done = records({"a": 0.9}, {"a": 0.5}, {})
    assert [chosen_step(done[:end], range(1, 3), last) for end in range(4)] == [None, None, 1, 2]
    assert chosen_step([*done, {"scalars": {}}], range(1, 3), last) == 2  # steps after training do not count
    assert chosen_step(done, range(3), ChoiceSettings()) == best_step(done, range(3))
