"""What the page says of FedEE's costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedretina_papers.fedee_cost_page import claim_words
from fedretina_papers.packed import read_packed


@pytest.mark.parametrize(("ratio", "words"), [(1.04, "holds here"), (1.2, "does not hold here")])
def test_the_claim_is_worded_by_the_measurement(ratio, words):
    exits = {"inference_ratio": {"median": ratio, "low": ratio - 0.01, "high": ratio}, "multiply_adds": 101}
    text = claim_words({"methods": {"FedEE": exits, "Backbone": {"multiply_adds": 100}}})
    assert words in text
    assert "add 1.00 %" in text


REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("task", ["dermoscopy", "heart_sound", "activity"])
def test_the_page_on_fedee_tells_the_stored_costs(task):
    stored = read_packed(REPOSITORY / "benchmarks" / "results" / "fedee_costs.jsonl.gz")[f"{task}.json"]
    methods = stored["methods"]
    ratio = methods["FedEE"]["inference_ratio"]
    cells = [methods[name]["parameters"] / 1e6 for name in ("Backbone", "FedEE")]
    row = " | ".join(f"{cell:.3f}" for cell in cells)
    row += f" | {ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    for name in ("MCDrop", "Deep Ens."):
        row += f" | {methods[name]['inference_ratio']['median']:.2f}"
    lines = (REPOSITORY / "docs" / "fedee.md").read_text().splitlines()
    assert any(line.startswith(f"| {task.replace('_', ' ')}:") and row in line for line in lines)
