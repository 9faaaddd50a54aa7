"""Table 8 from made runs: sets trained on and left out, their average, and the gain over pooled images by seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_oct_runs import made_run, made_site

from fedretina_papers.oct_runs import OctResults
from fedretina_papers.oct_tables import not_in_the_paper, set_tables
from fedretina_papers.published import published_oct

ORDER = ("oct_moco_scaffold",)
BEST, BASE = "MoCo v3 + SCAFFOLD", "Centralized ResNet-50"
GAIN = f"improvement: {BEST} less {BASE}, points"


@pytest.fixture(scope="module")
def runs():
    named = [("oct_moco_scaffold", 2.5, (1, 2)), ("oct_centralised", 1.2, (1, 2, 3)), ("oct_fedavg", 1.0, (1,))]
    return [made_run(name, seed, quality) for name, quality, seeds in named for seed in seeds]


def halves(results):
    return tuple(set_tables(results).values())


def cells(lines, first):
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    return rows[0], next(row for row in rows if row[0] == first)


def test_sets_trained_on_and_left_out(runs):
    without = made_run(
        "oct_moco_scaffold_without_duke",
        sites={"kermany-0": made_site("w", 1, "kermany", 2.0), "duke": made_site("w", 1, "duke", 3.0, trained=False)},
    )
    found = replace(OctResults.of([*runs, without], ORDER), apart={without.name: "oct_moco_scaffold"})
    assert not_in_the_paper(found) == []
    first, second = halves(found)
    head, trained = cells(first, BEST)
    took = ["training passes", "sent by all sites"]
    sets = ["row", "kermany", "paper", "duke", "paper", "octid", "paper"]
    assert head == [*sets, "average", "paper, with OCTID", *took]
    assert (trained[2], trained[4], trained[5], trained[6], trained[8]) == ("97.2", "96.1", "–", "–", "94.9")
    assert cells(first, "SimCLR + FedAvg")[1][1] == "not run"
    head, left = cells(second, BEST)
    assert head == [*sets, "average", *took]
    assert left[1:3] == ["not run", "–"]
    assert left[3] == f"{100 * found.runs['oct_moco_scaffold_without_duke'][0].accuracy['duke']:.1f}"
    assert left[5] != "not run"
    assert left[6] == "91.5"


def test_the_average_is_of_sets_in_the_seeds_that_have_them_all(runs):
    found = OctResults.of(runs, ORDER)
    first, second = halves(found)
    own = [one.accuracy for one in found.runs["oct_moco_scaffold"]]
    means = [(100 * one["kermany"] + 100 * one["duke"]) / 2 for one in own]
    _, row = cells(first, BEST)
    assert row[7] == f"{sum(means) / 2:.1f} ({min(means):.1f} to {max(means):.1f})"
    assert cells(first, "SimCLR + FedAvg")[1][7] == "–"
    # Only octid was left out, so it is the average by itself.
    _, row = cells(second, BEST)
    assert row[7] == row[5]
    lacking = made_run("oct_moco_scaffold", sites={"kermany-0": made_site("k", 1, "kermany", 2.0)})
    found = OctResults.of([lacking, *(run for run in runs if run.name == "oct_fedavg")], ORDER)
    assert cells(halves(found)[0], BEST)[1][7] == "–"


def test_the_improvement_is_paired_by_seed_and_beside_the_printed_one(runs):
    found = OctResults.of(runs, ORDER)
    first, second = halves(found)
    best, base = (found.runs[name] for name in ("oct_moco_scaffold", "oct_centralised"))
    gains = [
        100 * (one.accuracy["kermany"] - other.accuracy["kermany"]) for one, other in zip(best, base, strict=False)
    ]
    _, row = cells(first, GAIN)
    assert row[1] == f"+{sum(gains) / 2:.1f} (+{min(gains):.1f} to +{max(gains):.1f})"
    assert (row[2], row[4], row[6], row[8]) == ("+2.1", "+3.3", "–", "+3.2")
    assert cells(second, GAIN)[1][6] == "+4.2"
    alone = OctResults.of([run for run in runs if run.name != "oct_centralised"], ORDER)
    assert cells(halves(alone)[0], GAIN)[1][1] == "–"


def test_the_printed_improvements_are_differences_of_the_printed_accuracies():
    printed = published_oct().tables["table8"].printed
    gains = {key: printed[BEST][key] - printed[BASE][key] for key in ("kermany", "duke", "octid", "average")}
    assert gains == pytest.approx({"kermany": 2.1, "duke": 3.3, "octid": 4.2, "average": 3.2})


def test_nothing_run_is_a_table_of_the_paper_alone():
    trained, left_out = ("\n".join(lines) for lines in halves(OctResults.of([], ORDER)))
    assert "|" not in trained + left_out
    assert trained.startswith("no run of ours. The paper prints")
    assert "MoCo v3 + SCAFFOLD 97.2 at Kermany and 96.1 at Duke" in trained
    assert "MoCo v3 + SCAFFOLD 91.5 at OCTID" in left_out
