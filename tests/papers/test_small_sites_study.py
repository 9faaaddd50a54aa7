"""The page of the study of small sites comes from its stored runs alone."""

from benchmarks.small_sites import STORED
from benchmarks.small_sites_page import PAGE, kept_outcome, write_page

from fedretina_papers.packed import read_packed


def test_the_page_is_that_of_the_stored_runs(tmp_path):
    write_page(STORED, tmp_path / PAGE.name)
    assert (tmp_path / PAGE.name).read_text() == PAGE.read_text()


def test_a_site_whose_interval_is_unknown_counts_as_neither():
    """A rare grade is missing in draws of a site's test patients: its AUC then has a value and no interval."""

    def outcome(low, high):
        own = {"referable_auc": {"value": 0.1, "low": low, "high": high}}
        return kept_outcome({"kept": "federated", "test": {"differences": {"own": own}}})

    assert [outcome(*one) for one in ((0.02, 0.2), (-0.2, -0.02), (-0.1, 0.2), (None, None))] == [1, -1, 0, 0]


def test_who_has_too_few_patients_to_choose_by_is_told_with_what_came_of_it():
    """No site could choose up to 60 photographs: what validation keeps is what would have been kept without it."""
    few = [
        (run["size"], kept_outcome(site))
        for run in read_packed(STORED).values()
        if (run["set"], run["row"]) == ("fundus", "both")
        for site in run["sites"].values()
        if site["reason"] == "too_few_patients"
    ]
    small = [outcome for size, outcome in few if size <= 60]
    assert (len(small), small.count(-1)) == (96, 9)
    page = " ".join(PAGE.read_text().split())
    better = [outcome for _, outcome in few].count(1)
    words = (
        f"was better than the own head beyond its interval in {better}, "
        "and worse in 9 (8 at aptos2019 and 1 at odir5k)."
    )
    assert f"Of these {len(few)} it {words}" in page
    assert "32 of 32 at n = 60 and 18 of 32 at n = 120" in page
    assert "So at n = 15, n = 30 and n = 60 nothing is chosen." in page
