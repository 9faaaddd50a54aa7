"""Steps in turn, by a clock that the steps themselves push on."""

from __future__ import annotations

import pytest

from fedretina.errors import SettingsError
from fedretina_papers.costs.side_by_side import side_by_side


def test_times_and_ratios_in_turn():
    now, order = [0.0], []

    def step(name, seconds):
        def run():
            order.append(name)
            now[0] += seconds

        return run

    found = side_by_side(
        {"a": step("a", 2.0), "b": step("b", 3.0), "c": step("c", 4.0)}, "a", 3, 1, clock=lambda: now[0]
    )
    assert {name: one.seconds.median for name, one in found.items()} == {"a": 2, "b": 3, "c": 4}
    assert {name: one.ratio.median for name, one in found.items()} == {"a": 1, "b": 1.5, "c": 2}
    assert {tuple(sorted(order[at : at + 3])) for at in (0, 3, 6, 9)} == {("a", "b", "c")}
    assert len({order[at] for at in (3, 6, 9)}) == 3  # each turn begins with another


def test_a_load_that_all_meet_leaves_the_ratio_alone():
    now, calls = [0.0], [0]

    def step(seconds):
        def run():
            now[0] += seconds * (1 + calls[0] // 2)  # each turn of two is slower than the last
            calls[0] += 1

        return run

    found = side_by_side({"a": step(1.0), "b": step(2.0)}, "a", 5, 0, clock=lambda: now[0])
    assert found["b"].ratio == (2, 2, 2)
    assert found["b"].seconds.median == 6


def test_a_device_is_waited_for_inside_the_time_and_before_it():
    now, waits = [0.0], [0]

    def step():
        now[0] += 3.0

    def wait():
        now[0] += 0.25 if waits[0] % 2 else 1000.0
        waits[0] += 1

    found = side_by_side({"a": step}, "a", 5, 2, wait, clock=lambda: now[0])
    assert found["a"].seconds == (3.25, 3.25, 3.25)


def test_what_cannot_be_measured():
    for words in ({"repeats": 0}, {"warm_up": -1}, {"base": "z"}):
        with pytest.raises(SettingsError, match="beside"):
            side_by_side({"a": lambda: None}, **{"base": "a", **words})
