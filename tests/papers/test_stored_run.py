"""The pages of the stored runs over real sites are what their stored results give."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
STORED = {
    "fedee": "fedee_benchmark",
    "fedee-oct": "fedee_oct",
    "fedee-dermoscopy": "fedee_dermoscopy",
    "fedee-heart": "fedee_heart",
}
RESULTS = REPOSITORY / "benchmarks" / "results"


def packed(name):
    return RESULTS / f"{name.replace('-', '_')}.jsonl.gz"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STORED if packed(name).exists()])
def test_a_stored_page_comes_from_the_stored_results_alone(name, tmp_path):
    page = tmp_path / "docs" / f"{STORED[name]}.md"
    pictures = page.parent / "pictures" / STORED[name]
    page.parent.mkdir()
    words = ["benchmark", name, "--out", tmp_path / name, "--stored", packed(name), "--render"]
    words += ["--page", page, "--pictures", pictures]
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    assert page.read_text() == (REPOSITORY / "docs" / page.name).read_text()
    shown = (REPOSITORY / "docs" / "pictures" / STORED[name]).glob("*")
    assert {path.name for path in pictures.glob("*")} == {path.name for path in shown}
