"""Quartiles of a step's time by a made clock, so that no test waits or depends on the machine."""

from __future__ import annotations

import pytest

from fedretina.errors import SettingsError
from fedretina_papers.costs.timing import step_seconds


class Clock:
    def __init__(self):
        self.now, self.calls, self.waits = 0.0, 0, 0

    def step(self):
        self.calls += 1
        self.now += 100.0 if self.calls <= 2 else float(self.calls - 2)

    def wait(self):
        self.waits += 1
        self.now += 1000.0 if self.waits % 2 else 0.25

    def __call__(self):
        return self.now


def test_median_and_quartiles_without_the_warm_up():
    clock = Clock()
    found = step_seconds(clock.step, repeats=5, warm_up=2, clock=clock)
    assert found == (3.0, 2.0, 4.0, 5)
    assert clock.calls == 7


def test_a_device_is_waited_for_inside_the_time_and_before_it():
    clock = Clock()
    found = step_seconds(clock.step, repeats=5, warm_up=2, synchronise=clock.wait, clock=clock)
    assert found.median == 3.25


def test_no_repeats():
    for words in ({"repeats": 0}, {"warm_up": -1}):
        with pytest.raises(SettingsError):
            step_seconds(lambda: None, **words)
