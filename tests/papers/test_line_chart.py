"""Lines of means over seeds: what is drawn, and the sentence that stands for it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from fedretina_papers.line_chart import Series, line_chart


def test_without_lines_there_is_no_picture():
    assert line_chart("a", [], "round", "AUC") is None


def test_the_sentence_names_the_ends_of_the_means_the_highest_line_first():
    low = Series("low", [1, 2], [[0.1, 0.2], [0.3, 0.4]], bold=True)
    high = Series("high", [1, 2], [[0.5, 0.9]], bold=False)
    chart = line_chart("a", [low, high], "round", "AUC")
    assert chart.alt == "AUC by round, from first to last: high 0.500 to 0.900; low 0.200 to 0.300."
    assert {"high", "low", "round", "AUC"} <= {words.strip() for words in ET.fromstring(chart.svg).itertext()}


def test_ticks_of_a_logarithmic_axis_have_their_own_words():
    series = [Series("one", [0.01, 1.0], [[0.5, 0.9]], bold=False)]
    chart = line_chart("a", series, "share", "AUC", {0.01: "1 %", 1.0: "all"})
    assert {"1 %", "all"} <= {words.strip() for words in ET.fromstring(chart.svg).itertext()}
