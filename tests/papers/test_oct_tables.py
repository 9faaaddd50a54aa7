"""The OCT tables from made runs: figures where they belong, rows that were not run, and what is pooled."""

from __future__ import annotations

import numpy as np
import pytest
from made_oct_runs import CLASSES, made_run, made_site

from fedretina.errors import SettingsError
from fedretina.exchange.moved import Moved
from fedretina_papers.oct_page import oct_page
from fedretina_papers.oct_runs import OctResults
from fedretina_papers.oct_stored import oct_results
from fedretina_papers.oct_tables import (
    ablation_table,
    class_table,
    communication_table,
    convergence_table,
    encoder_table,
    majority_share,
    method_table,
    recomputed_table,
    sites_table,
)
from slow_bootstrap import bootstrapped_slowly

ORDER = ("oct_moco_scaffold",)


@pytest.fixture(scope="module")
def runs():
    named = [("oct_moco_scaffold", 2.5, True), ("oct_fedavg", 1.2, False), ("oct_simclr_fedavg", 1.8, False)]
    return [made_run(name, seed, quality, controls=controls) for name, quality, controls in named for seed in (1, 2)]


@pytest.fixture(scope="module")
def results(runs):
    return OctResults.of(runs, ORDER)


def cells(lines, first):
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]
    head = rows[0]
    return head, next(row for row in rows if row[0] == first)


def test_pooled_figures_are_over_whole_sets_that_were_trained_on(runs, results):
    assert results.sets == ("duke", "kermany")
    figures, run = results.runs["oct_moco_scaffold"][0], runs[0]
    chosen = [site for site in run.sites.values() if site.origin != "octid"]
    right = np.concatenate([site.probabilities.argmax(1) == site.labels for site in chosen])
    assert figures.union.n == right.size == 220
    assert figures.union.accuracy == pytest.approx(right.mean())
    weighted = sum(figures.accuracy[one] * figures.images[one] for one in ("kermany", "duke")) / 220
    assert figures.union.accuracy == pytest.approx(weighted)
    assert (figures.unseen, figures.sites) == (frozenset({"octid"}), 4)


def test_the_majority_answer_is_the_share_of_the_commonest_class(runs, results):
    shares = set()
    for run in runs:
        labels = np.concatenate([site.labels for site in run.sites.values() if site.origin != "octid"])
        shares.add(f"{100 * np.bincount(labels).max() / labels.size:.1f}")
    ordered = sorted(shares, key=float)
    assert majority_share(results) == list(dict.fromkeys((ordered[0], ordered[-1])))
    assert majority_share(OctResults.of([], ORDER)) == []


def test_a_run_on_fewer_sets_is_measured_on_the_same_images(runs):
    sites = {
        "kermany-0": made_site("k", 1, "kermany", 2.0),
        "duke": made_site("k", 1, "duke", 0.0, trained=False),
    }
    found = OctResults.of([*runs, made_run("oct_moco_scaffold_one_set", sites=sites)], ORDER)
    assert found.runs["oct_moco_scaffold_one_set"][0].union.n == 120


def test_a_site_that_knows_fewer_classes_is_in_no_pool():
    sites = {
        "kermany-0": made_site("k", 1, "kermany", 2.0),
        "duke": made_site("d", 1, "duke", 2.0, classes=("NORMAL", "DME", "AMD")),
    }
    found = OctResults.of([made_run("oct_moco_scaffold", sites=sites)], ORDER)
    assert found.sets == ("kermany",)
    assert found.runs["oct_moco_scaffold"][0].union.n == 60
    assert set(found.runs["oct_moco_scaffold"][0].accuracy) == {"kermany", "duke"}


def test_two_runs_of_one_seed_are_refused(runs):
    with pytest.raises(SettingsError, match="two runs of seed 1"):
        OctResults.of([runs[0], runs[0]], ORDER)


def test_methods_stand_beside_the_paper(results):
    lines = method_table(results)
    head, row = cells(lines, "MoCo v3 + SCAFFOLD (Ours)")
    assert head[:3] == ["row", "accuracy (%)", "paper"]
    found = [100 * one.union.accuracy for one in results.runs["oct_moco_scaffold"]]
    assert row[1] == f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})"
    assert [row[at] for at in (2, 4, 6, 8, 10)] == ["96.8", "96.4", "96.2", "96.3", "0.994"]
    assert cells(lines, "FedProx + Supervised")[1][1:3] == ["not run", "92.3"]


def test_an_interval_over_patients_where_the_seeds_share_their_images(results):
    assert results.accuracy_interval("oct_moco_scaffold") is not None
    slow = bootstrapped_slowly(_mean_right(results), results.runs["oct_moco_scaffold"][0].patients, 0, 200)["accuracy"]
    assert results.accuracy_interval("oct_moco_scaffold", 200) == pytest.approx(slow)
    assert results.accuracy_interval("oct_fedprox") is None
    others = [f"other-{at}" for at in range(60)]
    sites = [{"kermany-0": made_site("k", seed, "kermany", 2.0)} for seed in (1, 2)]
    sites[1]["kermany-0"] = sites[1]["kermany-0"]._replace(patients=others)
    found = OctResults.of([made_run("oct_moco_scaffold", 1 + at, sites=one) for at, one in enumerate(sites)], ORDER)
    assert found.accuracy_interval("oct_moco_scaffold") is None
    assert "over patients" not in "\n".join(method_table(found))
    head, row = cells(method_table(results), "MoCo v3 + SCAFFOLD (Ours)")
    low, high = row[head.index("accuracy, 95 % over patients")].split(" to ")
    assert float(low) < float(row[1].split()[0]) < float(high)


def _mean_right(results):
    right = np.mean([one.right for one in results.runs["oct_moco_scaffold"]], axis=0)
    return lambda places: {"accuracy": float(np.mean(right[places]))}


def test_classes_of_the_proposed_method(results):
    head, row = cells(class_table(results), "DRUSEN")
    figures = [one.union.classes[CLASSES.index("DRUSEN")] for one in results.runs["oct_moco_scaffold"]]
    support = [one.support for one in figures]
    assert row[head.index("test images")] == f"{np.mean(support):.0f} ({min(support)} to {max(support)})"
    assert row[2] == "95.8"
    assert row[-1] == "1685"


def test_a_class_never_answered_has_a_dash():
    site = made_site("k", 1, "kermany", 2.0)
    site.probabilities[:, 2] = 0
    lines = class_table(OctResults.of([made_run("oct_moco_scaffold", sites={"one": site})], ORDER))
    assert cells(lines, "DRUSEN")[1][1] == "–"
    assert cells(lines, "DRUSEN")[1][3] == "0.0"


def test_rounds_to_a_target_count_both_phases(results):
    one = results.runs["oct_moco_scaffold"][0]
    assert [one.rounds_to(target) for target in (0.5, 0.6, 0.7, 0.95)] == [4, 5, 5, None]
    head, row = cells(ablation_table(results, 0.9), "Full Model (MoCo v3 + SCAFFOLD)")
    assert row[head.index("rounds to 90 % on validation")] == "6"
    assert row[-3:] == ["2 of 2", "–", "efficientnet_b4"]
    assert cells(ablation_table(results, 0.95), "Full Model (MoCo v3 + SCAFFOLD)")[1][-5:-2] == ["–", "150", "0 of 2"]


def test_convergence_tells_both_phases(results):
    head, row = cells(convergence_table(results, (0.5, 0.95)), "oct moco scaffold")
    assert row[1] == "pretrain: 3 rounds, 3.000 to 2.000; train: 3 rounds, 1.000 to 0.600"
    assert row[2] == "90.2 (90.1 to 90.2)"
    assert dict(zip(head, row, strict=True))["rounds to 95 %"] == "–"


def test_bytes_measured_beside_printed_and_recomputed(results):
    lines = communication_table(results)
    head, row = cells(lines, "MoCo v3 + SCAFFOLD + EfficientNet-B4 (Ours)")
    # Four sites, six rounds, 20 MB each with controls.
    told = dict(zip(head, row, strict=True))
    assert told["MB up, a site and round"] == "20.00"
    assert told["GB up"] == told["GB down"] == "0.48"
    second = recomputed_table(results)
    _, row = cells(second, "MoCo v3 + SCAFFOLD + EfficientNet-B4 (Ours)")
    assert row[1:] == ["17.4", "46.32", "92.64", "185.28", "0.96", "71.7 %", "\u2212100.0 %", "–"]
    assert cells(second, "SCAFFOLD + ResNet-50")[1][1:] == [
        "61.4",
        "61.44",
        "122.88",
        "245.76",
        "not run",
        "0.0 %",
        "–",
        "not run",
    ]


def test_sites_and_encoders(results):
    head, row = cells(sites_table(results), "4")
    told = dict(zip(head, row, strict=True))
    assert told["MB up a round, all sites"] == "80.00"
    assert told["minutes a round"] == "1.00"
    assert told["paper's GB, recomputed"] == "46.32"
    head, row = cells(encoder_table(results), "ours: oct moco scaffold")
    told = dict(zip(head, row, strict=True))
    assert told["parameters (M)"].startswith("17.6")
    assert told["multiply-adds (G)"].startswith("4.39")
    assert told["ms an image"].startswith("38.0")


def test_the_page_is_whole_and_always_the_same(runs):
    page = oct_page(oct_results(runs))
    assert page == oct_page(oct_results(reversed(runs)))
    assert page.count("\n## ") == 9
    assert page.count("Known of the printed figures:") >= 5
    assert "(220 images a seed)" in page
    assert "Classes: CNV, DME, DRUSEN and NORMAL." in page
    assert "mean over 2 seeds" in page
    assert "| not in the paper: odd | " in oct_page(oct_results([made_run("odd")])).split("## Convergence")[0]


def test_a_page_of_nothing():
    page = oct_page(oct_results([]))
    assert "no seeds" in page
    assert "not run" in page


def test_a_run_without_costs_or_rounds_shows_dashes():
    bare = made_run(
        "oct_moco_scaffold", history=(), cost=None, inference_s=None, memory_bytes=None, seconds=None, moved={}
    )
    found = OctResults.of([bare], ORDER)
    assert found.runs["oct_moco_scaffold"][0].moved == Moved(0, 0)
    assert cells(encoder_table(found), "ours: oct moco scaffold")[1][1] == "–"
    assert cells(sites_table(found), "4")[1][7] == "–"
    assert "oct moco scaffold" in "\n".join(convergence_table(found))
