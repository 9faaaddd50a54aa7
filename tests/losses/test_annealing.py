"""The schedule of lambda: its ends, its steps and the clocks that it refuses."""

from __future__ import annotations

import itertools

import pytest

from fedretina.errors import SettingsError
from fedretina.losses.evidential import SCHEDULES, kl_weight
from fedretina.losses.objective import Clock


def at(round_: int, rounds: int) -> Clock:
    return Clock(round_, rounds, 0, 1, 0, 1)


def test_linear_rounds_goes_from_exactly_zero_to_exactly_one():
    weights = [kl_weight(at(t, 100), "linear_rounds") for t in range(100)]
    assert weights[0] == 0.0
    assert weights[-1] == 1.0
    assert weights[50] == pytest.approx(50 / 99)


def test_official_is_t_over_101_and_never_reaches_either_end():
    weights = [kl_weight(at(t, 100), "official") for t in range(100)]
    assert weights == pytest.approx([t / 101 for t in range(1, 101)])
    assert weights[0] == pytest.approx(0.0099, abs=1e-4)
    assert weights[-1] == pytest.approx(0.9901, abs=1e-4)


def test_linear_rounds_and_official_stand_still_within_a_round():
    clocks = [Clock(1, 3, epoch, 2, step, 4) for epoch in range(2) for step in range(4)]
    assert {kl_weight(clock, "linear_rounds") for clock in clocks} == {0.5}
    assert {kl_weight(clock, "official") for clock in clocks} == {0.5}


def test_linear_steps_is_an_even_stair_over_every_step_of_the_phase():
    clocks = [Clock(r, 3, e, 2, s, 4) for r, e, s in itertools.product(range(3), range(2), range(4))]
    weights = [kl_weight(clock, "linear_steps") for clock in clocks]
    assert weights == pytest.approx([n / 23 for n in range(24)])
    assert (weights[0], weights[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(("schedule", "weight"), [("linear_rounds", 1.0), ("linear_steps", 1.0), ("official", 0.5)])
def test_a_single_round(schedule, weight):
    assert kl_weight(at(0, 1), schedule) == weight


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("clock", [at(5, 5), at(-1, 5), at(0, 0)])
def test_a_round_outside_its_total_is_refused(schedule, clock):
    with pytest.raises(SettingsError, match="total number of rounds, not the number left"):
        kl_weight(clock, schedule)


@pytest.mark.parametrize("clock", [Clock(0, 1, 2, 2, 0, 1), Clock(0, 1, 0, 2, 9, 9)])
def test_only_linear_steps_reads_epoch_and_step(clock):
    with pytest.raises(SettingsError, match="count from 0"):
        kl_weight(clock, "linear_steps")
    assert kl_weight(clock, "linear_rounds") == 1.0


@pytest.mark.parametrize("rounds", [1, 10, 100, 300])
def test_the_papers_pace_does_not_depend_on_the_length_of_a_run(rounds):
    weights = [kl_weight(at(t, rounds), "paper_pace") for t in range(rounds)]
    assert weights == [kl_weight(at(t, 100), "linear_rounds") if t < 100 else 1.0 for t in range(rounds)]
