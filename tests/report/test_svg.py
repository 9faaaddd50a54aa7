"""Charts: the same bytes every time, text as escaped text, and ids that do not meet on a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from fedretina.report import charts
from fedretina.report.svg import draw


def test_a_chart_is_the_same_every_time_and_carries_no_date():
    one, other = (draw("a", "alt", lambda axes: axes.plot([1, 2], [3, 4])) for _ in range(2))
    assert one == other
    assert not re.search(r"\d{4}-\d\d-\d\d|<metadata|<style|font-family", one.svg)


def test_text_is_text_and_escaped():
    chart = draw("a", 'x < "y"', lambda axes: axes.set_xlabel("<b>$n_1$ & co</b>"))
    root = ET.fromstring(chart.svg)
    assert root.get("aria-label") == 'x < "y"'
    assert "<b>$n_1$ & co</b>" in "".join(root.itertext())


def test_ids_of_two_charts_stay_apart():
    ids = [re.findall(r'\bid="([^"]+)"', draw(name, "", lambda axes: axes.plot([1, 2])).svg) for name in ("a", "b")]
    assert ids[0]
    assert all(f"#{name}" in draw("a", "", lambda axes: axes.plot([1, 2])).svg for name in ids[0])
    assert not set(ids[0]) & set(ids[1])


def test_rounds_without_a_value_have_no_chart():
    assert charts.rounds("a", ["x"], [charts.Line("l", [None], "#000000")], "theta") is None
    assert charts.forest("a", "AUC", [("s", {})], None) is None


@pytest.mark.parametrize("steps", [1, 2, 60])
def test_few_and_many_rounds_are_drawn(steps):
    values = [None if at == 1 else at / steps for at in range(steps)]
    names = [f"train-{at:04}" for at in range(steps)]
    line = charts.Line("theta", values, "#000000", dash="5 2", hollow=(0,))
    chart = charts.rounds("a", names, [line], "theta", names[-1])
    ET.fromstring(chart.svg)
    assert f"over {steps} rounds" in chart.alt


def test_above_eight_lines_the_sites_are_grey():
    few = charts.site_lines({f"s{at}": [0.5] for at in range(7)}, [0.5])
    assert len({line.colour for line in few}) == 8
    many = charts.site_lines({f"s{at}": [0.5] for at in range(9)}, [0.5])
    assert len({line.colour for line in many}) == 2
    assert [line.bold for line in many] == [False] * 9 + [True]
    assert [line.name for line in charts.legend(many)] == ["each site", "mean"]
    assert charts.legend(few) == few
