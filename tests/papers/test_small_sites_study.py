"""The page of the study of small sites, and README's first table, come from its stored runs alone."""

from pathlib import Path

from benchmarks.small_sites import STORED
from benchmarks.small_sites_page import PAGE, README, write_page


def test_page_and_readme_are_those_of_the_stored_runs(tmp_path):
    page: Path = tmp_path / "page.md"
    readme = tmp_path / "README.md"
    readme.write_text(README.read_text())
    write_page(STORED, page, readme)
    assert page.read_text() == PAGE.read_text()
    assert readme.read_text() == README.read_text()
