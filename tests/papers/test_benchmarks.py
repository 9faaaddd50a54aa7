"""Every benchmark's quick form runs to its end and can be rendered, so that none is broken when it is wanted."""

import importlib
import json

import pytest
import torch
from benchmarks.__main__ import _measured
from benchmarks.common import NAMES, result, target
from benchmarks.render import section, verdict

NEEDS = {"predict_throughput": "onnxruntime"}


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_form_of_a_benchmark_runs_to_its_end(tmp_path, name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    threads = torch.get_num_threads()
    try:
        found = importlib.import_module(f"benchmarks.{name}").measure(tmp_path, quick=True)
    finally:
        torch.set_num_threads(threads)
    assert any("median" in line for line in section(json.loads(json.dumps(found))))
    for figures in found["cases"].values():
        # Parts and CPU seconds are read off clocks that go on in steps, and what is left of a whole may be nothing.
        parts = {name for name in figures if name.startswith("of it ") or "CPU s " in name}
        assert all(figures[name]["min"] >= 0 for name in parts)
        assert all(figure["min"] > 0 for name, figure in figures.items() if name not in parts)
        assert figures.keys() - parts


def test_a_figure_that_nobody_was_in_time_to_count_is_left_out():
    found = result("Rounds", "What they cost.", {"2 sites": {"s a round": [2.0], "CPU s a round": []}}, [], {})
    assert found["cases"] == {"2 sites": {"s a round": {"min": 2.0, "median": 2.0, "max": 2.0, "repeats": [2.0]}}}


def test_each_target_is_judged_in_the_cases_that_have_its_figure():
    cases = {"sent": {"ratio": [0.6, 0.7, 0.6]}, "handed over": {"ratio": [0.3]}, "16 sites": {"s a round": [2.0]}}
    goals = [target("ratio", "at most", 0.5), target("s a round", "under", 3), target("other", "at least", 1)]
    assert verdict(result("Rounds", "What they cost.", cases, goals, {})) == (
        "Target: ratio at most 0.5. **Missed** in 1 of 2 cases: 0.6 (sent); met: 0.3 (handed over). "
        "Target: s a round under 3. **Met**: 2 (16 sites). Target: other at least 1. **Not measured** here."
    )
    assert verdict(result("Rounds", "What they cost.", cases, [], {})).startswith("No target was set")


def test_figures_of_a_tree_with_changes_say_so_and_are_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    found = result("Rounds", "What they cost.", {"sent": {"s": [2.0]}}, [], {})
    found |= {"commit": "0123456789ab", "seconds": 3, "load_before": 0.5}
    (tmp_path / "start.json").write_text(json.dumps(found), encoding="utf-8")
    assert section(found)[-2].endswith("It took 3 s; load before it 0.5. Commit 01234567.")
    assert (_measured("start"), _measured("import_time")) == ("0123456789ab", None)
    (tmp_path / "start.json").write_text(json.dumps(found | {"changed": True}), encoding="utf-8")
    assert section(found | {"changed": True})[-2].endswith("Commit 01234567, with changes.")
    assert _measured("start") is None
