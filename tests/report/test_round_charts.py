"""Lines over rounds: few and many, values that are missing, and sites that nobody could tell apart by colour."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from fedretina.report.charts import Line, legend, rounds, site_lines


def test_rounds_without_a_value_have_no_chart():
    assert rounds("a", ["x"], [Line("l", [None], "#000000")], "theta") is None


@pytest.mark.parametrize("steps", [1, 2, 60])
def test_few_and_many_rounds_are_drawn(steps):
    values = [None if at == 1 else at / steps for at in range(steps)]
    names = [f"train-{at:04}" for at in range(steps)]
    line = Line("theta", values, "#000000", dash="5 2", hollow=(0,))
    chart = rounds("a", names, [line], "theta", names[-1])
    ET.fromstring(chart.svg)
    assert f"over {steps} rounds" in chart.alt


def test_above_eight_lines_the_sites_are_grey():
    few = site_lines({f"s{at}": [0.5] for at in range(7)}, [0.5])
    assert len({line.colour for line in few}) == 8
    many = site_lines({f"s{at}": [0.5] for at in range(9)}, [0.5])
    assert len({line.colour for line in many}) == 2
    assert [line.bold for line in many] == [False] * 9 + [True]
    assert [line.name for line in legend(many)] == ["each site", "mean"]
    assert legend(few) == few
