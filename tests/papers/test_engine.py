"""The engine of the studies' tables: records to frames, columns to cells, templates to pages."""

from math import e, log

import pytest

from fedretina_papers.engine import page as pages
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, apart, by_site, listing, mean_sd, render, seeds
from fedretina_papers.statistics.paired_seeds import seeds_needed, smallest_seen


def site(auc, images=10):
    return {"images": {"test": images}, "test": {"auc": auc}, "grades": "icdr5"}


RECORDS = Records(
    {
        "alone": {
            1: {"moved": [5, 7], "sites": {"north": site(0.5), "south": site(0.7, 30)}},
            2: {"moved": [5, 9], "sites": {"north": site(0.6), "south": site(None, 30)}},
        },
        "shared": {
            1: {"moved": [1, None], "sites": {"north": site(0.7), "south": site(0.8, 30)}},
            2: {"moved": [1, 1], "sites": {"north": site(0.7), "south": site(0.9, 30)}},
            3: {"moved": [1, 1], "sites": {"north": site(0.1), "south": site(None, 30)}},
        },
    },
    ("south", "north"),
)


def test_sites_come_together_as_asked_and_a_missing_figure_is_in_no_mean():
    assert RECORDS.values("alone", "test.auc") == pytest.approx([0.6, 0.6])
    assert RECORDS.values("alone", "test.auc", "lowest") == [0.5, 0.6]
    assert RECORDS.values("shared", "test.auc", "south") == [0.8, 0.9]
    assert RECORDS.values("alone", "images.test", "sum") == [40, 40]
    assert RECORDS.values("alone", "moved.1") == [7, 9]
    assert RECORDS.values("shared", "moved.1") == [1, 1]
    for eta in (1, 1.5, e):
        weights = {"north": eta ** log(10), "south": eta ** log(30)}
        by_hand = (0.5 * weights["north"] + 0.7 * weights["south"]) / sum(weights.values())
        assert RECORDS.values("alone", "test.auc", eta) == pytest.approx([by_hand, 0.6])
    assert RECORDS.values("nobody", "test.auc") == RECORDS.values("alone", "test.nothing") == []


def test_a_difference_is_paired_by_seed_and_by_site():
    # South has no figure in the second seed of the one, so that north alone counts there.
    assert RECORDS.gaps("shared", "alone", "test.auc") == pytest.approx([0.15, 0.1])
    assert RECORDS.gaps("alone", "shared", "test.auc", "south") == pytest.approx([-0.1])
    assert RECORDS.gaps("alone", "nobody", "test.auc") == []


def test_a_table_says_what_was_not_run_and_marks_the_best():
    lines = [Line(("alone",), "alone"), Line(("shared †",), "shared", "alone"), Line(("MOON",), "moon", "alone")]
    columns = [*by_site(RECORDS, Column("", "test.auc", show=mean_sd, places=2, better="highest"))]
    columns += [Column("apart", "test.auc", difference=True, show=apart), Column("seeds", "moved.1", show=seeds)]
    assert render(RECORDS, ["row"], [*lines], [*columns, Column("paper", told=lambda line: line.row)]) == [
        "| row | south | north | mean of the sites | apart | seeds | paper |",
        "|---|---:|---:|---:|---:|---:|---:|",
        "| alone | 0.70 | **0.55 ± 0.05** | **0.60 ± 0.00** | – | 2 | alone |",
        "| shared † | **0.85 ± 0.05** | 0.50 ± 0.28 | 0.55 ± 0.32 | +0.125 (-0.193 to +0.443) | 2 | shared |",
        "| MOON | not run | not run | not run | – | not run | moon |",
        "",
    ]


def test_lines_may_be_of_figures_and_columns_of_rows():
    lines = [Line(("ranking",), "", "", "test.auc"), Line(("bytes",), "", "", "moved.0")]
    columns = [Column(row, "{}", row=row, show=mean_sd, places=1, unrun="-") for row in ("alone", "shared", "moon")]
    assert render(RECORDS, ["figure"], lines, columns, right=(1,)) == [
        "| figure | alone | shared | moon |",
        "|---|---:|---|---|",
        "| ranking | 0.6 ± 0.0 | 0.6 ± 0.3 | - |",
        "| bytes | 5.0 ± 0.0 | 1.0 ± 0.0 | - |",
        "",
    ]
    gap = Column("test.auc", "{}", row="sh{}", difference=True, show=apart)
    assert gap.cell(RECORDS, Line((), "ared", "ared", "test.auc")) == "+0.000"


def test_what_was_counted_is_listed_a_line_a_thing():
    assert listing([3, 4], {"found": str, "twice": lambda one: f"{2 * one} | "}, right=()) == [
        "| found | twice |",
        "|---|---|",
        "| 3 | 6 \\|  |",
        "| 4 | 8 \\|  |",
        "",
    ]


def test_the_smallest_difference_that_can_be_seen_is_the_one_that_needs_so_many_seeds():
    for n, sd, variance in ((3, 0.036, 0.0), (5, 0.01, 1e-4), (27, 0.036, 0.0)):
        found = smallest_seen(n, sd, variance)
        assert seeds_needed(sd, found, variance) == n
    assert smallest_seen(1, None) is None
    assert smallest_seen(3, 0.0) == 0


def test_a_page_joins_lines_and_leaves_no_two_blank_lines(monkeypatch):
    from jinja2 import DictLoader

    monkeypatch.setattr(
        pages, "PackageLoader", lambda *_: DictLoader({"a.md.j2": "# {{ of }}\n\n\n{{ table }}\n\nend"})
    )
    assert pages.page("a.md.j2", of=["a & b"], table=["| x |", ""]) == "# a & b\n\n| x |\n\nend\n"
