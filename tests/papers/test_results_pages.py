"""The pages on what came out of the blocks say what is stored."""

import statistics
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.settings.experiment import Experiment
from fedretina_papers.blocks.gains import gains, leads_of, stored_block, where_seen
from fedretina_papers.blocks.results_pages import CLOSEST, HELD, SHARED, _seen_with, write_results
from fedretina_papers.blocks.tables import comparisons

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@cache
def _block(name):
    return stored_block(RESULTS / f"{name}.jsonl.gz")


@pytest.mark.slow
def test_pages_and_readmes_table_are_those_of_the_stored_blocks(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    (tmp_path / "analytic.md").write_text((ROOT / "docs" / "analytic.md").read_text())
    write_results(RESULTS, tmp_path, readme)
    assert readme.read_text() == (ROOT / "README.md").read_text()
    for name in ("does_it_help.md", "results.md", "analytic.md"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()


@pytest.mark.slow
def test_the_doctors_page_shows_what_the_defaults_give():
    """The answer and the policy that a hospital has without a word; every number of photographs has run with both."""
    block = _block("f1")
    shown, every = block.plan.row(HELD), block.plan.row(SHARED)
    assert not shown.small_grades
    assert every.small_grades
    for row in (shown, every):
        experiment = block.plan.experiment_of(row, 1, {})
        assert experiment.sums == Experiment.resolve({"row": "analytic", "name": "defaults"}).sums
    found = gains(block, HELD)
    assert [one.size for one in found] == [one.size for one in gains(block, SHARED)] == [25, 50, 100, "all"]
    page = (ROOT / "docs" / "does_it_help.md").read_text()
    for one in found:
        cells = f"| {100 * one.alone:.0f} of 100 | {100 * one.together:.0f} of 100 | "
        (line,) = [line for line in page.split("**Unlike mixes of grades.**")[0].splitlines() if cells in line]
        assert f"| {100 * one.against.seen:.0f} | {100 * one.bound:.0f} | {one.gained} of {one.hospitals} |" in line


def test_sizes_are_told_where_a_gain_is_seen_at_all_of_them_at_some_and_at_none():
    found = gains(_block("p1_photographs"), SHARED)
    seen = [one for one in found if one.against.helps]
    unseen = [one for one in found if not one.against.helps]
    assert _seen_with(found) == "with 60 photographs and not with 15, 30, 120 and all"
    assert _seen_with(seen) == "with 60 photographs"
    assert _seen_with(unseen) == "nowhere"


@pytest.mark.parametrize("name", ["paper-size", "gpu"])
def test_the_page_of_what_takes_a_gpu_is_that_of_the_stored_results(tmp_path, name):
    file = name.replace("-", "_")
    stored = RESULTS / f"{file}.jsonl.gz"
    words = ["benchmark", name, "--render", "--out", tmp_path / "out", "--page", tmp_path / "page.md"]
    words += ["--stored", stored] if stored.exists() else []
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / f"{file}.md").read_text()


@pytest.mark.slow
def test_a_gain_is_that_of_the_records():
    block = _block("f2")
    first = gains(block, "sums_both")[0]
    runs = block.cases[0][1][first.size]

    def mean(row):
        return statistics.fmean(
            one["test"]["referable_auc"] for record in runs[row].values() for one in record["sites"].values()
        )

    assert first.together == pytest.approx(mean("sums_both"))
    ways = ("probe", "probe_stages", "singleset", "singleset_even", "singleset_longer", "singleset_exits")
    ways += ("mean_alone", "joined_alone")
    assert first.alone == pytest.approx(max(mean(name) for name in ways))
    assert first.best == first.alone  # all rows stand on one encoder
    assert first.bound == pytest.approx(mean("pooled"))
    assert (first.gained, first.hospitals, first.ways) == (1, 1, len(ways))
    assert first.worst == pytest.approx(first.together)  # one hospital is judged


@pytest.mark.slow
def test_a_hospital_gained_where_it_is_better_than_by_every_way_alone_on_whichever_encoder():
    block = _block("o1")
    alone = [row.name for row in block.plan.rows if row.role == "alone" and row.kind != "majority"]
    plain = [name for name in alone if not block.plan.row(name).start]
    assert len(plain) < len(alone)
    for at, (_, sizes) in enumerate(block.cases):
        for one in gains(block, "sums_both", at, "auc"):
            runs = sizes[one.size]

            def mean(row, hospital, runs=runs):
                return statistics.fmean(record["sites"][hospital]["test"]["auc"] for record in runs[row].values())

            hospitals = next(iter(runs["sums_both"].values()))["sites"]
            means = {row: statistics.fmean(mean(row, name) for name in hospitals) for row in alone}
            leads = [mean("sums_both", name) - max(mean(row, name) for row in alone) for name in hospitals]
            assert one.alone == pytest.approx(max(means[row] for row in plain))
            assert one.best == pytest.approx(max(means.values()))
            assert (one.gained, one.hospitals) == (sum(lead > 0 for lead in leads), len(leads))
            assert one.most_lost == pytest.approx(max(0.0, -min(leads)))
            assert one.passes[2] == "0"
            (against,) = (test for test in comparisons(block.plan, runs)["sums_both"] if test.figure == "auc")
            assert one.against == against


@pytest.mark.slow
def test_where_a_row_beats_every_row_alone_is_told_as_it_was_tested():
    block = _block("o1")
    told = where_seen(block, "balanced_accuracy")
    for case, sizes in block.cases:
        tested = [
            any(one.helps for each in comparisons(block.plan, runs).values() for one in each if "bal" in one.figure)
            for runs in sizes.values()
        ]
        assert (case.title.lower() in told) == any(tested)
    assert where_seen(block, "balanced_accuracy", "sums_both") == "none"
    closest = leads_of(_block("f1"), CLOSEST)
    page = (ROOT / "docs" / "results.md").read_text()
    assert f"both primary figures in {closest.seen} of {closest.cells} cells" in page
    assert f"the largest p is {closest.p:.3f}" in page
