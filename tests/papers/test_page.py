"""The page: whole, honest about what is missing, the same bytes each time, from records alone."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET

import pytest
from made_runs import write_benchmark

from fedretina.errors import StateError
from fedretina.storage import read_json, write_json
from fedretina_papers.compared import statistics
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Line, taken
from fedretina_papers.page import write_benchmark_page


@pytest.fixture(scope="module")
def rendered(made, tmp_path_factory):
    """The page as a clone renders it: without the answers."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(made, folder / "out", ignore=shutil.ignore_patterns("answers"))
    write_benchmark_page(folder / "out", folder / "docs" / "benchmark.md", folder / "docs" / "pictures")
    return folder


@pytest.fixture
def text(rendered):
    return (rendered / "docs" / "benchmark.md").read_text(encoding="utf-8")


def _table(text, heading):
    part = text.split(f"## {heading}")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    ends = next((at for at, line in enumerate(lines) if at > 1 and line.startswith("|---")), len(lines) + 1) - 1
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[:ends]]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


def test_table_1_holds_ours_beside_the_papers(text, made):
    rows = _table(text, "Table 1")
    assert len(rows) == 11  # and the variant, below them
    values = [
        read_json(made / "results" / "fedbn" / f"seed-{seed}.json")["sites"]["aptos2019"]["test"]["auc"]
        for seed in (1, 2, 3)
    ]
    cell = rows["FedBN, personal head"]
    assert cell["aptos2019"] == f"{sum(values) / 3:.3f} ({min(values):.3f} to {max(values):.3f})"
    assert cell["paper, APTOS"] == "0.9335"
    assert cell["paper, its average"] == "0.8519"
    assert "paper, ODIR" not in cell
    assert (rows["SingleSet"]["training passes"], rows["SingleSet"]["sent by all sites"]) == ("8", "0 bytes")
    assert (cell["training passes"], cell["sent by all sites"]) == ("8", "41.0 MB")
    assert rows["MOON"]["training passes"] == "not run"


def test_passes_and_bytes_stand_in_every_table_of_rows(text):
    heads = [line for line in text.splitlines() if line.startswith(("| row |", "| part |"))]
    results = [head for head in heads if "what was tried" not in head]
    assert len(results) > 15
    assert [head for head in results if "training passes" not in head or "sent by all sites" not in head] == []


def test_a_row_helps_only_where_it_beats_every_row_alone(text):
    told = {row: one["helps"] for row, one in _table(text, "Table 1").items()}
    assert told["FedUAA"] == "yes, by macro AUC"
    assert told["SingleSet"] == told["MOON"] == "–"
    helps = _table(text, "Does sharing help?")
    assert (helps["FedUAA"]["least beaten"], helps["FedUAA"]["sent by all sites, both"]) == (
        "SingleSet",
        "41.0 MB and 0 bytes",
    )


def test_table_2_holds_the_controls_and_a_best_value_at_the_end_of_a_grid_is_told(tmp_path):
    out = tmp_path / "out"
    write_benchmark(out, ("probe", "singleset", "one_place", "fedbn", "feduaa"), (1, 2), patients=8, noise=False)
    write_benchmark_page(out, tmp_path / "p.md", tmp_path)
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert {"not in the paper: probe", "not in the paper: one_place"} <= set(_table(text, "Table 2"))
    assert "**The best is still the end of what was tried**: FedUAA (`tau`)." in text
    assert "`tau` 0.5 (the end of what was tried); tried 0.05: 0.610, 0.5: 0.640" in text


def test_a_row_of_the_majority_answer_has_no_rounds_and_stands_in_the_tables(tmp_path):
    out = tmp_path / "out"
    write_benchmark(out, ("fedbn", "feduaa", "singleset"), (1, 2), patients=8)
    nothing = {"passes": 0.0, "bytes_up": 0, "seconds": 0.0, "history": [], "chosen": None, "validation": {}}
    for path in out.glob("results/singleset/*.json"):
        record = read_json(path) | nothing
        for site in record["sites"].values():
            site |= {"noise": [], "theta": None, "weight": None, "theta_by_round": [], "weight_by_round": []}
        write_json(path, record)
    statistics(out, draws=20)
    write_benchmark_page(out, tmp_path / "p.md", tmp_path)
    row = _table((tmp_path / "p.md").read_text(encoding="utf-8"), "Table 1")["SingleSet"]
    assert (row["training passes"], row["sent by all sites"]) == ("0", "0 bytes")


def test_what_was_not_run_is_said_and_never_invented(text):
    assert _table(text, "Table 1")["MOON"]["aptos2019"] == "not run"
    assert _table(text, "Table 1")["MDT"]["mean of the sites"] == "not run"
    assert _table(text, "Table 2")["federated, BC + TWEU"]["mean of the sites"] == "not run"
    assert "MOON: not run" in _table(text, "Table 4")
    assert "**Not all that was planned has run**: moon not at all." in text


def test_variants_stand_below_the_papers_rows_under_their_own_name(text):
    assert list(_table(text, "Table 1"))[-1] == "not in the paper: FedUAA (feduaa_tuned)"
    assert "FedUAA" in _table(text, "Table 1")


def test_rows_with_more_passes_than_a_network_alone_are_marked():
    runs = {
        "alone": {1: {"passes": 8.0, "bytes_up": 0, "sites": {}}},
        "longer": {1: {"passes": 48.0, "bytes_up": 0, "sites": {}}},
        "probe": {1: {"passes": 0.0, "bytes_up": 100, "sites": {}}},
        "shared": {1: {"passes": 9.0, "bytes_up": 2_000_000, "sites": {}}},
    }
    records = Records(runs)
    passes, sent = taken(records)
    lines = {name: Line((name,), name) for name in (*runs, "later")}
    told = {name: (passes.cell(records, line), sent.cell(records, line)) for name, line in lines.items()}
    assert told == {
        "alone": ("8", "0 bytes"),
        "longer": ("48 \\*", "0 bytes"),
        "probe": ("0", "100 bytes"),
        "shared": ("9 \\*", "2.0 MB"),
        "later": ("not run", "not run"),
    }


def test_the_verdict_is_read_off_the_figures(text):
    assert "**macro AUC**: FedUAA leads SingleSet. It is not told apart from the other row." in text
    assert "could not be tested against FedUAA (feduaa_tuned)" in text


def test_it_says_what_it_is(text):
    assert "Research software, not a medical device" in text
    assert "phantoms" not in text
    assert not re.search(r"\b(None|nan|NaN)\b", text)


def test_every_picture_is_there_and_is_sound_svg(rendered, text):
    links = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert {link.rsplit("_", 1)[1] for _, link in links} == {
        "uncertainty.svg",
        "noise.svg",
        "differences.svg",
        "validation.svg",
        "theta.svg",
        "weight.svg",
    }
    for alt, link in links:
        assert len(alt) > 30
        ET.fromstring((rendered / "docs" / link).read_text(encoding="utf-8"))
    assert len(links) == len(list((rendered / "docs" / "pictures").iterdir()))


def test_tables_are_whole(text):
    widths = [len(re.split(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) > 15
    assert all(len({len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1 for block in blocks)
    assert max(widths) < 20


def test_the_same_records_give_the_same_bytes(rendered, tmp_path):
    write_benchmark_page(rendered / "out", tmp_path / "docs" / "benchmark.md", tmp_path / "docs" / "pictures")
    for path in (rendered / "docs").rglob("*.*"):
        assert (tmp_path / "docs" / path.relative_to(rendered / "docs")).read_bytes() == path.read_bytes()


def test_phantoms_are_named_at_the_top_and_statistics_may_wait(tmp_path):
    write_benchmark(tmp_path / "out", ("feduaa",), (1,), synthetic=True, noise=False, patients=8)
    write_benchmark_page(tmp_path / "out", tmp_path / "p.md", tmp_path)
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert text.index("phantoms: drawn pictures") < text.index("## What was run")
    assert "The comparisons are not computed yet" in text
    assert "The noise study was not run" in text
    assert "## Table 4" not in text
    statistics(tmp_path / "out", draws=20)
    write_benchmark_page(tmp_path / "out", tmp_path / "p.md", tmp_path)
    assert "nothing to compare" in (tmp_path / "p.md").read_text(encoding="utf-8")


def test_old_statistics_and_lacking_seeds_are_called_so(tmp_path):
    out = tmp_path / "out"
    write_benchmark(out, ("fedbn", "feduaa"), (1, 2), patients=8, splits="repeated")
    statistics(out, draws=20)
    (out / "results" / "fedbn" / "seed-2.json").unlink()
    write_benchmark_page(out, tmp_path / "p.md", tmp_path)
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert "comparisons are older than the runs" in text
    assert "FedBN, personal head lacks 1 seed" in text
    assert "they are not independent" in text


def test_figures_that_are_undefined_leave_a_dash(tmp_path):
    out = tmp_path / "out"
    write_benchmark(out, ("fedbn", "feduaa"), (1, 2), patients=8)
    for path in out.glob("results/*/*.json"):
        record = read_json(path)
        record["validation"]["train-0003"]["mean_auc"] = None
        for site in record["sites"].values():
            site["test"] |= {"auc": None, "error_auroc": None, "referable_auc": None, "auc_logits": None}
            site |= {"theta_by_round": [], "weight_by_round": [None]}
        write_json(path, record)
    statistics(out, draws=20)
    write_benchmark_page(out, tmp_path / "p.md", tmp_path)
    text = (tmp_path / "p.md").read_text(encoding="utf-8")
    assert _table(text, "Table 1")["FedBN, personal head"]["aptos2019"] == "–"
    assert not re.search(r"\b(None|nan|NaN)\b", text)


def test_without_a_plan_there_is_no_page(tmp_path):
    with pytest.raises(StateError, match="plan"):
        write_benchmark_page(tmp_path, tmp_path / "p.md", tmp_path)
