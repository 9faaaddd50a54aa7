"""The page of the study of doubt comes from its stored figures alone, and they name no image."""

from pathlib import Path

from benchmarks.doubt import STORED
from benchmarks.doubt_page import PAGE, write_page

from fedretina_papers.packed import read_packed


def test_the_page_is_that_of_the_stored_figures(tmp_path):
    page: Path = tmp_path / "page.md"
    write_page(STORED, page)
    assert page.read_text() == PAGE.read_text()


def words(held):
    """Every text in what is stored, keys and values."""
    if isinstance(held, dict):
        return set(held) | {word for value in held.values() for word in words(value)}
    return {held} if isinstance(held, str) else set()


def test_what_is_stored_are_figures_and_no_images():
    for run in read_packed(STORED).values():
        del run["machine"]
        assert not any("/" in word or ".jp" in word or ".png" in word for word in words(run))
