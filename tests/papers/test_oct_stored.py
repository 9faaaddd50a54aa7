"""The OCT page from a stored folder: what is read, what is said of rows that are missing, and images from outside."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from made_oct_folder import CLASSES, SETS, site_answers, write_oct
from made_runs import write_benchmark

from fedretina.errors import StateError
from fedretina_papers.compared import statistics
from fedretina_papers.engine.records import Records
from fedretina_papers.oct_page import write_oct_page
from fedretina_papers.oct_runs import OctResults
from fedretina_papers.oct_stored import read_oct_runs
from fedretina_papers.out_of_distribution_table import out_of_distribution
from fedretina_papers.stored import read_benchmark

ROWS = ("oct_moco_scaffold", "oct_fedavg", "oct_centralised", "oct_fedprox")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("oct")
    write_oct(folder, ROWS, run=ROWS[:3])
    statistics(folder, draws=50)
    return folder


def test_runs_are_read_with_answers_bytes_rounds_and_costs(out):
    runs = {(run.name, run.seed): run for run in read_oct_runs(out)}
    assert set(runs) == {(name, seed) for name in ROWS[:3] for seed in (1, 2)}
    one = runs["oct_moco_scaffold", 2]
    expected = site_answers("oct_moco_scaffold", 2, "site-2", 2.0)
    assert np.array_equal(one.sites["site-2"].labels, expected["labels"])
    assert np.allclose(one.sites["site-2"].probabilities, expected["probabilities"])
    assert {site: answers.origin for site, answers in one.sites.items()} == SETS
    assert one.moved["pretrain"].up == 100
    assert one.moved["train"].down == 500
    assert [note.phase for note in one.history] == ["pretrain", "pretrain", "train", "train"]
    assert one.cost.parameters == 3_400_000
    assert one.inference_s == 0.004
    # A pool has no shared classes of its own, and is asked in the reference's.
    assert runs["oct_centralised", 1].classes == CLASSES
    assert OctResults.of(runs.values(), ROWS).runs["oct_centralised"][0].union.n == 3 * 40


def test_passes_and_bytes_stand_in_every_table_of_rows_with_the_controls_among_ablations(tmp_path):
    roles = {"oct_moco_scaffold": "federated", "oct_fedavg": "federated", "oct_alone": "alone"}
    write_oct(tmp_path, tuple(roles), roles={**roles, "oct_centralised": "pooled"})
    for path in tmp_path.glob("results/oct_alone/*.json"):  # as the majority answer, which has no rounds
        record = json.loads(path.read_text())
        record |= {"history": [], "moved": {"train": {"up": 0, "down": 0}}, "validation": {}, "chosen": None}
        path.write_text(json.dumps(record))
    statistics(tmp_path, draws=50)
    write_oct_page(tmp_path, tmp_path / "page.md", tmp_path / "pictures")
    page = (tmp_path / "page.md").read_text()
    heads = [line for line in page.splitlines() if line.startswith("| row |")]
    assert len(heads) > 10
    sent = ("sent by all sites", "GB up", "up and down")
    assert [one for one in heads if "training passes" not in one or not any(way in one for way in sent)] == []
    assert "4 training passes; all sites sent 400 bytes" in page.split("## Table 4")[1].split("## Table 5")[0]
    for table in ("Table 3", "Table 5", "Table 6", "Table 7"):
        assert "| not in the paper: oct alone |" in page.split(f"## {table}")[1].split("\n## ")[0], table
    helps = page.split("## Does sharing help?")[1].split("\n## ")[0]
    assert "| oct moco scaffold | oct alone |" in helps


def test_a_set_that_trained_nothing_is_left_out_of_the_pool(tmp_path):
    write_oct(tmp_path, ROWS[:1], untrained=("site-4",))
    found = OctResults.of(read_oct_runs(tmp_path), ROWS)
    assert found.sets == ("scanner_a",)
    assert found.runs[ROWS[0]][0].unseen == {"scanner_b"}
    assert found.runs[ROWS[0]][0].sites == 2


def test_convergence_is_a_picture_of_rows_that_trained_alike(out, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(out, copied)
    for seed in (1, 2):
        path = copied / "results" / "oct_centralised" / f"seed-{seed}.json"
        record = json.loads(path.read_text())
        record["history"] = record["history"][:1]  # fewer rounds than the others
        record["settings"]["phases"][-1]["training"]["encoder_factor"] = 0.1
        path.write_text(json.dumps(record))
    for name in ("one", "two"):
        write_oct_page(copied, tmp_path / name / "page.md", tmp_path / name / "pictures")
    page = (tmp_path / "one" / "page.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("!["))
    assert line.endswith("](pictures/benchmark_oct_convergence.svg)")
    assert "oct moco scaffold 0.600 to 0.800" in line
    assert "oct fedavg 0.600 to 0.800" in line
    assert "centralised" not in line
    assert page.index(line) > page.index("## Convergence")
    pictures = [
        (tmp_path / name / "pictures" / "benchmark_oct_convergence.svg").read_bytes() for name in ("one", "two")
    ]
    assert pictures[0] == pictures[1]
    assert "0.1 of the head's rate (oct centralised); the head's rate (oct moco scaffold and oct fedavg)" in page


def test_the_page_can_be_made_without_the_answers(out, tmp_path):
    write_oct_page(out, tmp_path / "whole.md")
    alone = tmp_path / "alone"
    shutil.copytree(out, alone, ignore=shutil.ignore_patterns("answers"))
    write_oct_page(alone, tmp_path / "alone.md")
    assert (tmp_path / "alone.md").read_text() == (tmp_path / "whole.md").read_text()
    stored = json.loads((alone / "oct.json").read_text())
    del stored["runs"]["oct_fedavg"]["2"]
    (alone / "oct.json").write_text(json.dumps(stored))
    with pytest.raises(StateError, match="oct_fedavg, seed 2"):
        write_oct_page(alone, tmp_path / "alone.md")


def test_the_page_says_what_the_plan_has_not_and_what_did_not_run(out, tmp_path):
    for name in ("one.md", "two.md"):
        write_oct_page(out, tmp_path / name)
    page = (tmp_path / "one.md").read_text()
    assert page == (tmp_path / "two.md").read_text()
    assert "All sites hold phantoms" in page
    assert "oct_fedprox not at all" in page
    assert "The plan has no run for SimCLR + FedAvg, so nothing of ours stands there." in page
    assert "The plan has no run for 2, 8 and 16 sites" in page
    assert "The plan leaves no set out of training for Centralized ResNet-50" in page
    assert "What may be claimed: oct moco scaffold less each row" in page
    assert "| ours: oct moco scaffold | 3.4 | – | 0.03 |" in page
    assert "oct_fedprox" not in page.split("## Table 3")[1].split("## Unseen")[0]


def test_table_7_may_come_from_a_folder_within(out, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(out, whole)
    names = ("oct_moco_scaffold", "oct_moco_scaffold_16")
    write_oct(whole / "clients", names, seeds=(1,), reference="oct_moco_scaffold", outside=False)
    write_oct_page(whole, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    before, _, table = page.partition("## Table 7")
    table, _, after = table.partition("## Table 8")
    assert "Runs of their own, with other splits than the tables above" in table
    assert "the same images dealt to more and more sites; 1 seed; the sites' own splits" in table
    assert "The plan has no run for 2 and 8 sites" in table
    assert "The plan has no run for 2, 8 and 16 sites" not in page
    assert next(line for line in table.splitlines() if line.startswith("| 16 |")).count("not run") == 0
    plain = tmp_path / "plain.md"
    write_oct_page(out, plain)
    assert before == plain.read_text().partition("## Table 7")[0]
    assert after == plain.read_text().partition("## Table 8")[2]
    # Without answers the stored figures of both folders do.
    alone = tmp_path / "alone"
    shutil.copytree(whole, alone, ignore=shutil.ignore_patterns("answers"))
    write_oct_page(alone, tmp_path / "alone.md")
    assert (tmp_path / "alone.md").read_text() == page


def test_fewer_rounds_than_the_reference_are_told(tmp_path):
    write_oct(tmp_path, ROWS[:2])
    path = tmp_path / "results" / "oct_fedavg" / "seed-1.json"
    other = tmp_path / "results" / "oct_fedavg" / "seed-2.json"
    for file in (path, other):
        record = json.loads(file.read_text())
        record["history"] = record["history"][:1]
        file.write_text(json.dumps(record))
    write_oct_page(tmp_path, tmp_path / "page.md")
    assert "**Fewer rounds than the reference**: oct fedavg (train 1 of 2)." in (tmp_path / "page.md").read_text()


def outside(folder):
    benchmark = read_benchmark(folder)
    return out_of_distribution(benchmark, Records(benchmark.runs, benchmark.sites))


def test_images_from_outside_are_a_mean_of_the_sites_over_seeds(out, tmp_path):
    found = outside(out)
    assert found["title"] == "Unseen disease"
    (lines,) = found["sets"].values()
    row = next(line for line in lines if line.startswith("| oct moco scaffold"))
    assert "0.700 (0.700 to 0.700)" in row
    assert row.count("0.900") == 3
    assert next(line for line in lines if line.startswith("| oct_fedprox")).count("not run") == 8
    write_oct(tmp_path, ROWS[:1], outside=False)
    assert outside(tmp_path)["sets"] == {}


def test_sets_without_diseases_are_told_apart(tmp_path):
    write_oct(tmp_path, ROWS[:1])
    for file in (tmp_path / "results" / ROWS[0]).glob("*.json"):
        record = json.loads(file.read_text())
        for site in record["sites"].values():
            site["strangers"]["skin"] = {**site["strangers"]["unseen"], "diseases": {}}
        file.write_text(json.dumps(record))
    path = tmp_path / "plan.json"
    for sets, title in (
        (["skin"], "Images of another kind"),
        (["unseen", "skin"], "Unseen disease and images of another kind"),
    ):
        path.write_text(json.dumps({**json.loads(path.read_text()), "strangers": sets}))
        found = outside(tmp_path)
        assert found["title"] == title
        assert any(line.startswith("| oct moco scaffold | 0.700") for line in list(found["sets"].values())[-1])


def test_records_of_a_benchmark_without_phases_can_be_read(tmp_path):
    write_benchmark(tmp_path, seeds=(1,))
    runs = read_oct_runs(tmp_path)
    assert {run.name for run in runs} == {"singleset", "fedbn", "feduaa"}
    assert all(run.history == () and run.cost is None and not run.moved for run in runs)
