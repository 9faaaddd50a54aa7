"""The words of the report and those of its guide are the same."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from fedretina.report import text
from fedretina.uncertainty.theta import Reason

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "reading_the_report.md"


def plain(text: str) -> str:
    return " ".join(text.replace("*", "").replace("\u00a0", " ").split())


def test_the_guide_quotes_every_chart_and_figure():
    guide = plain(GUIDE.read_text(encoding="utf-8"))
    for title, how in text.CHARTS.values():
        assert title in guide
        assert plain(how) in guide, title
    for figure in text.FIGURES.values():
        assert figure.title in guide
        assert plain(figure.says) in guide, figure.title
    for sentence in (text.NOTICE, text.SYNTHETIC, text.STAYS):
        assert plain(sentence) in guide


def test_every_reason_of_theta_has_its_words():
    assert set(text.THETA_REASONS) == set(get_args(Reason))
