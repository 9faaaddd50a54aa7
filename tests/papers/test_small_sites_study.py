"""The page of the study of small sites, and README's first table, come from its stored runs alone."""

from pathlib import Path

from benchmarks.small_sites import STORED
from benchmarks.small_sites_page import PAGE, README, kept_outcome, write_page


def test_page_and_readme_are_those_of_the_stored_runs(tmp_path):
    page: Path = tmp_path / "page.md"
    readme = tmp_path / "README.md"
    readme.write_text(README.read_text())
    write_page(STORED, page, readme)
    assert page.read_text() == PAGE.read_text()
    assert readme.read_text() == README.read_text()


def test_a_site_whose_interval_is_unknown_counts_as_neither():
    """A rare grade is missing in draws of a site's test patients: its AUC then has a value and no interval."""

    def outcome(low, high):
        own = {"referable_auc": {"value": 0.1, "low": low, "high": high}}
        return kept_outcome({"kept": "federated", "test": {"differences": {"own": own}}})

    assert [outcome(*one) for one in ((0.02, 0.2), (-0.2, -0.02), (-0.1, 0.2), (None, None))] == [1, -1, 0, 0]
