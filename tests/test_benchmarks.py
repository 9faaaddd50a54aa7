"""Every benchmark's quick form runs to its end and can be rendered, so that none is broken when it is wanted."""

import importlib
import json

import pytest
import torch
from benchmarks.common import NAMES
from benchmarks.render import section

ELSEWHERE = {
    "round_overhead": "tests/flare/test_round_overhead.py",  # it starts the simulator
    "predict_throughput": "tests/prediction/test_export.py",  # with the export that is made there
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_the_quick_form_of_a_benchmark_runs_to_its_end(tmp_path, name):
    threads = torch.get_num_threads()
    try:
        found = importlib.import_module(f"benchmarks.{name}").measure(tmp_path, quick=True)
    finally:
        torch.set_num_threads(threads)
    assert any("median" in line for line in section(json.loads(json.dumps(found))))
    assert all(figure["min"] > 0 for case in found["cases"].values() for figure in case.values())


def test_those_that_run_elsewhere_do(request):
    for name, place in ELSEWHERE.items():
        assert f"benchmarks.{name} " in (request.config.rootpath / place).read_text(encoding="utf-8")
