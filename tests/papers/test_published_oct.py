"""The OCT paper's printed figures: complete, and as wrong as the notes say."""

from __future__ import annotations

from statistics import fmean

import pytest

from fedretina_papers.published import published_oct, recomputed

TABLES = published_oct().tables


def test_every_row_has_every_column():
    assert [len(TABLES[f"table{n}"].rows) for n in range(3, 10)] == [5, 4, 6, 5, 4, 4, 6]
    for table in TABLES.values():
        assert list(table.rows.values()) == list(table.printed)
        assert len({frozenset(figures) for figures in table.printed.values()}) == 1
        assert table.errors


def test_the_same_row_is_the_same_name_in_every_table():
    same = {"table3": "MoCo v3 + SCAFFOLD (Ours)", "table7": "4"}
    for which, said in same.items():
        assert TABLES[which].rows["oct_moco_scaffold"] == said
        assert TABLES[which].printed[said]["accuracy"] == 96.8


def test_table_6_by_its_own_terms():
    own = {said: recomputed(figures) for said, figures in TABLES["table6"].printed.items()}
    assert [round(one.uploads, 2) for one in own.values()] == [61.44, 61.44, 46.32, 61.44, 46.32]
    assert [round(one.with_controls, 2) for one in own.values()] == [61.44, 61.44, 46.32, 122.88, 92.64]
    assert all(one.both_ways == 2 * one.with_controls for one in own.values())
    agrees = [
        TABLES["table6"].printed[said]["gigabytes"] == pytest.approx(one.uploads, 0.01) for said, one in own.items()
    ]
    assert agrees == [True, True, True, True, False]


def test_table_5_by_rounds_weights_and_sites_from_its_first_row():
    table = TABLES["table5"]
    full = table.printed["Full Model (MoCo v3 + SCAFFOLD)"]
    own = []
    for name, said in table.rows.items():
        one = table.printed[said]
        sites = 3 / 4 if name.endswith("one_set") else 1
        own.append(full["gigabytes"] * sites * one["rounds"] / full["rounds"] * one["parameters"] / full["parameters"])
    assert [round(one, 1) for one in own] == [17.4, 20.9, 20.3, 19.1, 13.5, 26.2]
    told = table.errors[0]
    assert "17.4, 20.9, 20.3, 19.1, 13.5 and 26.2" in " ".join(told.split())


def test_table_7_totals_are_those_of_56_rounds():
    for figures in TABLES["table7"].printed.values():
        assert 1000 * figures["gigabytes"] / figures["megabytes"] == pytest.approx(56.35, abs=0.01)


def test_table_4_against_table_3():
    classes = TABLES["table4"].printed.values()
    support = sum(one["support"] for one in classes)
    assert support == 7274
    assert [round(100 * one["support"] / support) for one in classes] == [26, 24, 23, 27]
    assert fmean(one["recall"] for one in classes) == pytest.approx(96.45)
    assert fmean(one["f1"] for one in classes) == pytest.approx(96.425)
    assert sum(one["recall"] * one["support"] for one in classes) / support == pytest.approx(96.48, abs=0.005)
    assert fmean(one["precision"] for one in classes) == pytest.approx(96.4)


def test_table_8_weighted_by_test_images():
    images = {"kermany": 16900, "duke": 1000}
    weighted = [
        sum(figures[one] * n for one, n in images.items()) / 17900 for figures in TABLES["table8"].printed.values()
    ]
    assert weighted == pytest.approx([94.97, 92.18, 94.40, 97.14], abs=0.005)
    for figures in TABLES["table8"].printed.values():
        assert figures["average"] == pytest.approx(
            fmean(figures[one] for one in ("kermany", "duke", "octid")), abs=0.06
        )


def test_table_9_copies_parameters_as_bytes():
    copied = [one["gigabytes"] == one["parameters"] for one in TABLES["table9"].printed.values()]
    assert sum(copied) == 5
