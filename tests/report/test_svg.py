"""Charts: the same bytes every time, text as escaped text, and ids that do not meet on a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

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
