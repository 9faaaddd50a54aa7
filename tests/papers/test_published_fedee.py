"""The printed figures of FedEE are whole, and what is said of them holds."""

from __future__ import annotations

import pytest

from fedretina_papers.published import KEYS, METHODS, published_fedee


def test_every_cell_of_the_tables_is_there():
    paper = published_fedee()
    assert set(paper.table10) == set(paper.titles) == set(paper.table4) == set(paper.table12)
    for table in (*paper.table10.values(), paper.table13):
        assert len(table) == 6
        for methods in table.values():
            assert set(methods) == set(METHODS)
            assert all(set(one) == set(KEYS) for one in methods.values())
            assert all(0 < figure.mean < 1 for one in methods.values() for figure in one.values())
        assert set(table) < set(paper.rows)
    assert all(len(paper.tuning[key]) == 3 and len(paper.tuning[key][32]) == 4 for key in KEYS)
    names = [name for methods in paper.rows.values() for name in methods.values()]
    assert len(set(names)) == len(names) == 32


def test_deep_ensembles_lead_in_as_many_cells_as_is_said():
    cells = [
        methods["Deep Ens."][key].mean > methods["FedEE"][key].mean
        for table in published_fedee().table10.values()
        for methods in table.values()
        for key in KEYS
    ]
    assert (sum(cells), len(cells)) == (13, 54)
    assert any("13 of the 54" in one for one in published_fedee().errors["table10"])


def test_energies_are_those_of_the_rounds():
    rounds = {"pamap2": 10, "isic2019": 47, "physionet2016": 32}
    for name, methods in published_fedee().table12.items():
        for _, _, training, moved, total, grams in methods.values():
            assert total == pytest.approx((training + moved) * rounds[name], rel=0.05)
            assert grams == pytest.approx(0.281 * total, rel=0.01, abs=0.01)


def test_the_figures_of_the_settings_that_the_code_has():
    tuned = [published_fedee().tuning[key][32][0.0003].mean for key in KEYS]
    assert tuned == [0.848, 0.863, 0.951]
    table3 = [published_fedee().table10["pamap2"]["FedAvg"]["FedEE"][key].mean for key in KEYS]
    assert table3 == [0.84, 0.856, 0.942]
