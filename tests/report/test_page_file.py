"""A page is written whole or not at all."""

from __future__ import annotations

import pytest

from fedretina.errors import StateError
from fedretina.report.render import write_page


def test_a_page_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "deep" / "page.html"
    write_page(path, "one")
    write_page(path, "zwei \u2212")
    assert path.read_text(encoding="utf-8") == "zwei \u2212"
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match="was not written"):
        write_page(tmp_path / "file" / "page.html", "x")
    (tmp_path / "page.html").mkdir()
    with pytest.raises(StateError, match="name another place"):
        write_page(tmp_path / "page.html", "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "page.html"]
