"""How numbers are written."""

from __future__ import annotations

import pytest

from fedretina.report.card_words import promise_words, threshold_words
from fedretina.report.text import between, count, number, percent, points, rounded, size, with_interval


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.5, "50 %"),
        (0.0949, "9 %"),
        (0.0163, "1.6 %"),
        (0.984, "98.4 %"),
        (0.0001, "below 0.1 %"),
        (0.9999, "above 99.9 %"),
    ],
)
def test_percent(share, text):
    assert percent(share) == text.replace(" %", "\u00a0%")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.005, "0.01"), (-0.001, "0.00"), (-0.25, "\u22120.25"), (1, "1.00")]
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (399e6, "399 MB"),
        (13.3e6, "13.3 MB"),
        (2e9, "2.0 GB"),
    ],
)
def test_size(value, text):
    assert size(value) == text


def test_count_points_and_stored_figures():
    assert count(None) == "–"
    assert count(1234567) == "1\u202f234\u202f567"
    assert points(0.062) == "6 percentage points"
    assert rounded(None) is None
    assert rounded(1 / 3) == 0.333333


def test_intervals():
    figure = {"value": 0.5, "low": 0.25, "high": 0.75}
    assert between(figure, "percent") == "25 to 75\u00a0%"
    assert between({"value": 0.5}, "percent") is None
    assert with_interval(figure, "number") == "0.50 (95\u00a0% interval 0.25 to 0.75)"
    assert with_interval({"value": 0.5, "low": None, "high": None}, "number") == "0.50"


def test_a_small_threshold_does_not_read_as_0_on_the_card():
    seen = {"images": 40, "errors": 10, "caught": 8, "alarms": 5}
    assert "u is 0.00012 or more" in threshold_words({"referral": {"threshold": 0.00012, "validation": seen}})
    asked = {"missed": 0.05, "sure": 0.9, "patients": 90, "needed": 45, "passed": 1, "allowed": 2, "share": 0.7}
    for reason in ("kept", "drawn"):
        said = promise_words({"promise": {**asked, "reason": reason, "threshold": 1.2e-5}})
        assert "disease is 0.0012 % or more" in " ".join(said)
