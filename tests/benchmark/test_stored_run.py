"""The page of the stored run over real sites is what its stored results give."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_stored_page_comes_from_the_stored_results_alone(tmp_path):
    stored = tmp_path / "feduaa"
    shutil.copytree(REPOSITORY / "benchmarks" / "results" / "feduaa", stored)
    page = tmp_path / "docs" / "feduaa_benchmark.md"
    page.parent.mkdir()
    pictures = page.parent / "pictures" / "feduaa_benchmark"
    words = ["benchmark", "feduaa", "--out", stored, "--render", "--page", page, "--pictures", pictures]
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    assert page.read_text() == (REPOSITORY / "docs" / "feduaa_benchmark.md").read_text()
    shown = {path.name for path in (REPOSITORY / "docs" / "pictures" / "feduaa_benchmark").iterdir()}
    assert {path.name for path in pictures.iterdir()} == shown
