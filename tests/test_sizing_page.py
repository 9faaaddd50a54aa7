"""docs/sizing.md says what the stored measurement says."""

from benchmarks.sizing import NETWORKS, PAGE, ROWS, render, stored


def test_the_page_is_rendered_from_the_stored_figures():
    found, many = stored()
    assert set(found["cases"]) == {f"{encoder}/{row}" for encoder in NETWORKS for row in ROWS}
    assert PAGE.read_text(encoding="utf-8") == render(found, many)
