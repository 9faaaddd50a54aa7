"""The printed figures: complete, and as wrong as they are known to be."""

from __future__ import annotations

from statistics import fmean

import pytest

from fedretina.rows import ROWS
from fedretina_papers.published import AVERAGE, published

NOT_YET = {"mdt", "singleset_eu", "singleset_tweu"}


def test_every_row_has_every_site():
    paper = published()
    assert [len(table.rows) for table in paper.tables.values()] == [10, 7, 9]
    for table in paper.tables.values():
        assert list(table.rows.values()) == list(table.printed)
        for figures in table.printed.values():
            assert set(figures) == {*paper.sites, AVERAGE}
            assert all(0 <= figure <= 1 for figure in figures.values())


def test_the_averages_are_right_but_for_the_one_that_is_known():
    wrong = {
        name
        for which in ("table1", "table2")
        for name, figures in published().tables[which].printed.items()
        if figures[AVERAGE] != pytest.approx(fmean(figures[site] for site in published().sites), abs=6e-5)
    }
    assert wrong == {"FedDC"}
    assert any("FedDC" in sentence for sentence in published().tables["table1"].errors)


def test_the_counts_of_small_p_are_those_that_the_note_tells():
    figures = published().tables["table4"].printed
    assert sum(one[AVERAGE] < 0.05 for one in figures.values()) == 8
    assert sum(one[site] < 0.05 for one in figures.values() for site in published().sites) == 18
    assert not any(figures["FedBN"][site] < 0.05 for site in published().sites)


def test_the_tables_agree_where_they_share_a_row():
    first, second = published().tables["table1"], published().tables["table2"]
    for row in set(first.rows) & set(second.rows):
        assert first.printed[first.rows[row]] == second.printed[second.rows[row]]


def test_rows_and_steps_are_rows_of_ours():
    rows = {row for table in published().tables.values() for row in table.rows}
    assert rows - NOT_YET <= set(ROWS)
    assert {row for step in published().tables["table2"].steps.values() for row in step} <= rows


def test_sites_match_by_public_set_alone():
    paper = published()
    assert [paper.site(name) for name in ("aptos2019", "IDRiD", "eyepacs", "hospital")] == [
        "APTOS",
        "IDRiD",
        None,
        None,
    ]
    assert paper.tables["table1"].figure("fedbn", "IDRiD") == 0.8193
    assert paper.tables["table1"].figure("feduaa_tuned", "IDRiD") is None
