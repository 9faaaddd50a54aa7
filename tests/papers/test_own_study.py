"""A study of one's own is a plan, columns and a page of prose: three files, and none of the package is touched."""

import pytest
import yaml
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.errors import SettingsError
from fedretina_papers import kinds
from fedretina_papers.plan import asked_plan, preset

PLAN = {
    "name": "mine",
    "paper": "mine",
    "reference": "fedbn",
    "rows": ["fedbn", "fedavg"],
    "seeds": [1, 2],
    "experiment": {
        "phases": [{"name": "train", "rounds": 1}],
        "images": {"image_size": 32},
        "network": {"encoder": "efficientnet_lite0", "weights": {"source": "none"}, "head": {"width": 16}},
        "training": {"batch_size": 8},
        "phantom_images": 32,
    },
    "splits": {"kind": "repeated", "limit": {"train": 24, "val": 16, "test": 24}},
}
COLUMNS = """
from fedretina_papers.engine.records import OfRun
from fedretina_papers.engine.table import Column, Line, apart, bytes_told, render
from fedretina_papers.row_study import study

COLUMNS = [
    Column("macro AUC", "test.auc", better="highest"),
    Column("worst site", "test.auc", "lowest"),
    Column("against FedBN", "test.auc", difference=True, show=apart),
    Column("sent", OfRun("bytes_up"), show=bytes_told),
]


@study("mine")
def values(benchmark, records, statistics):
    lines = [Line((benchmark.title(row),), row, benchmark.reference) for row in benchmark.plan["rows"]]
    return {"table": render(records, ["row"], lines, COLUMNS), "compared": list(statistics["comparisons"])}
"""
PROSE = """# Mine

{{ ran }}

{{ table }}

Compared: {{ compared | listed }}, over {{ plan.seeds | length }} seeds.
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The three files, registered in the test alone."""
    kinds.packaged()
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(PLAN))
    (tmp_path / "mine.py").write_text(COLUMNS)
    (tmp_path / "mine.md.j2").write_text(PROSE)
    return tmp_path / "mine.yaml"


@pytest.mark.slow
def test_three_files_are_a_study_and_its_page_is_made_again_from_its_results(mine, tmp_path):
    words = ["benchmark", str(mine), "--phantoms", "site-1,site-2", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "page.md").read_text()
    assert page.startswith("# Mine\n\n> **All sites hold phantoms")
    assert "| row | macro AUC | worst site | against FedBN | sent |" in page
    assert page.count("**0.") == 1  # the better row
    assert "Compared: fedavg, over 2 seeds." in page
    again = CliRunner().invoke(main, [*words, "--render", "--page", str(tmp_path / "again.md")])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "again.md").read_text() == page


def test_no_study_of_ones_own_takes_a_name_of_the_package(mine):
    plan, taken = asked_plan(str(mine)), kinds.kind_of("oct")
    (mine.parent / "mine.py").write_text(COLUMNS.replace('@study("mine")', '@study("oct")'))
    with pytest.raises(SettingsError, match="there is a study 'oct' already: give yours another name"):
        asked_plan(str(mine))
    assert kinds.kind_of("oct") is taken
    (mine.parent / "mine.py").write_text(COLUMNS)
    assert asked_plan(str(mine)) == plan  # run anew, a file replaces its own


def test_a_plan_names_a_kind_that_is_registered(mine):
    assert asked_plan(str(mine))["paper"] == "mine"
    assert kinds.kind_of("mine").render is not kinds.kind_of("feduaa").render
    with pytest.raises(SettingsError, match="block, fedee, feduaa, first_phase, gpu, mine, oct, paper_size"):
        kinds.kind_of("nobodys")
    with pytest.raises(SettingsError, match=r"no benchmark 'nobodys'.*PLAN\.yaml"):
        asked_plan("nobodys")
    with pytest.raises(SettingsError, match="no benchmark"):
        preset(str(mine))  # a plan that another one extends, or begins with, is of the package, and runs nothing
