"""Charts of answers: the sentence that stands for each, and figures that no site has."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from fedretina.report.charts import forest, reliability, uncertainty


def test_a_figure_that_no_site_has_is_not_drawn():
    assert forest("a", "AUC", [("s", {})], None) is None


def test_a_site_without_an_interval_keeps_its_point():
    known = {"value": 0.7, "low": None, "high": None}
    long = "".join(chr(97 + at % 26) for at in range(60))
    chart = forest("a", "AUC", [(long, known), ("t", {"value": None})], 0.7)
    assert chart.alt == f"AUC per site: {long} 0.70; mean 0.70."
    words = "".join(ET.fromstring(chart.svg).itertext())
    assert long[:24] in words  # the picture has room for two lines, and clinics of one hospital differ at the end
    assert f"…{long[-23:]}" in words
    assert "s" * 18 not in words


def test_bins_without_an_answer_have_no_point():
    bins = {"images": [0, 4, 6], "right": [0, 1, 6], "confidence": [0.0, 2.0, 5.4]}
    assert reliability("a", bins).alt == (
        "Reliability diagram of 10 answers: claimed 50\N{NO-BREAK SPACE}%, right 25\N{NO-BREAK SPACE}%; "
        "claimed 90\N{NO-BREAK SPACE}%, right 100\N{NO-BREAK SPACE}%."
    )


def test_the_median_bin_is_that_of_the_middle_answer():
    bins = {"edges": [0.0, 0.25, 0.5, 1.0], "images": [3, 1, 4], "wrong": [0, 1, 3]}
    alt = uncertainty("a", bins, 0.5).alt
    assert alt.startswith("4 right and 4 wrong answers")
    assert alt.endswith("right ones ends at 0.25, of the wrong ones at 1.00.")
