"""The page of the study of small sites, and README's first table, come from its stored runs alone."""

import gzip
import json
from pathlib import Path
from statistics import fmean

from benchmarks.small_sites import STORED
from benchmarks.small_sites_page import PAGE, README, kept_outcome, of_run, write_page

from fedretina_papers.packed import read_packed
from fedretina_papers.small_grades import COSTS, leads, losses, table, thousandths


def test_page_and_readme_are_those_of_the_stored_runs(tmp_path):
    page: Path = tmp_path / "page.md"
    readme = tmp_path / "README.md"
    readme.write_text(README.read_text())
    write_page(STORED, page, readme)
    assert page.read_text() == PAGE.read_text()
    assert readme.read_text() == README.read_text()


def test_a_row_of_fewer_draws_stands_beside_own_head_and_sums_of_the_same_draws(tmp_path):
    """Draws differ by more than rows do: a mean of two draws beside means of eight would turn the order round."""
    kept, readme = tmp_path / "fewer.jsonl.gz", tmp_path / "README.md"
    runs = {
        name: run
        for name, run in read_packed(STORED).items()
        if run["set"] == "fundus" and run["size"] == 60 and (run["row"] != "feduaa" or run["draw"] in (3, 5))
    }
    kept.write_bytes(
        gzip.compress("\n".join(json.dumps({"file": name, "holds": run}) for name, run in runs.items()).encode())
    )
    readme.write_text(README.read_text())
    write_page(kept, tmp_path / "page.md", readme)
    page = (tmp_path / "page.md").read_text()

    def mean(row, model):
        mine = [run for run in runs.values() if run["row"] == row and run["draw"] in (3, 5)]
        figures = ("auc", "referable_auc")
        return " / ".join(f"{fmean(of_run(run, model, figure) for run in mine):.3f}" for figure in figures)

    shown = next(line for line in page.splitlines() if line.startswith("| `feduaa`"))
    assert shown.startswith(f"| `feduaa`, with `recipe: small_sites` | {mean('feduaa', 'federated')} (")
    assert f"; own {mean('both', 'own')}, mean of both heads {mean('both', 'federated')} in these draws |" in shown
    assert page.count("in these draws") == 1
    assert "Not every draw of the trained rows has run yet: 2 to 8 of 8 draws." in page
    assert "Not every draw" not in PAGE.read_text().split("## OCT")[0]


def test_a_site_whose_interval_is_unknown_counts_as_neither():
    """A rare grade is missing in draws of a site's test patients: its AUC then has a value and no interval."""

    def outcome(low, high):
        own = {"referable_auc": {"value": 0.1, "low": low, "high": high}}
        return kept_outcome({"kept": "federated", "test": {"differences": {"own": own}}})

    assert [outcome(*one) for one in ((0.02, 0.2), (-0.2, -0.02), (-0.1, 0.2), (None, None))] == [1, -1, 0, 0]


def test_what_small_grades_cost_is_the_same_wherever_it_stands():
    """README and the study print differences; a reader who takes one figure of analytic.md from another finds them."""
    analytic = (README.parent / "docs" / "analytic.md").read_text()
    assert "\n".join(table()) in analytic
    referable = [thousandths(one.referable) for one in COSTS]
    assert f"`both` loses {', '.join(referable[:-1])} and {referable[-1]}" in analytic
    assert f"in {COSTS[0].above} of 8 draws with every grade, and in {COSTS[0].above_held} of 8 by default" in analytic
    assert losses() in README.read_text()
    assert leads() in PAGE.read_text()
    assert losses().startswith(".020 / .025 at n = 15, .008 / .002 at n = 30 and .007 / .001")
    assert leads().startswith("by .007 (5 of 8 draws) in the place of .027 (8 of 8 draws) with 15 photographs a site")
