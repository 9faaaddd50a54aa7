"""The page of the study of small sites comes from its stored runs alone."""

from pathlib import Path

from benchmarks.small_sites import STORED
from benchmarks.small_sites_page import PAGE, write_page


def test_the_page_is_that_of_the_stored_runs(tmp_path):
    page: Path = tmp_path / "page.md"
    write_page(STORED, page)
    assert page.read_text() == PAGE.read_text()
