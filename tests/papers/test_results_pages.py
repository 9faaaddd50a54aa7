"""The pages on what came out of the blocks say what is stored."""

import statistics
from pathlib import Path

import pytest

from fedretina_papers.blocks.results_pages import gains, stored_block, write_results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.slow
def test_both_pages_are_those_of_the_stored_blocks(tmp_path):
    write_results(RESULTS, tmp_path)
    for name in ("does_it_help.md", "results.md"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()


@pytest.mark.slow
def test_a_gain_is_that_of_the_records():
    block = stored_block(RESULTS / "f2.jsonl.gz")
    first = gains(block, row="sums_both")[0]
    runs = block.cases[0][1][first.size]

    def mean(row):
        return statistics.fmean(
            one["test"]["referable_auc"] for record in runs[row].values() for one in record["sites"].values()
        )

    assert first.together == pytest.approx(mean("sums_both"))
    ways = ("probe", "probe_stages", "singleset", "singleset_exits", "joined_alone")
    assert first.alone == pytest.approx(max(mean(name) for name in ways))
    assert (first.gained, first.hospitals, first.ways) == (1, 1, len(ways))
    assert first.worst == pytest.approx(first.together)  # one hospital is judged
