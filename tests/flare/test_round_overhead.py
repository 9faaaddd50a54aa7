"""The benchmark of a round that trains nothing: both of its jobs run in the real simulator."""

import json

import pytest
from benchmarks.render import section
from benchmarks.round_overhead import measure


@pytest.mark.flare
def test_its_quick_form_runs_to_its_end(tmp_path):
    found = measure(tmp_path, quick=True)
    (figures,) = found["cases"].values()
    assert figures["ours, s a round"]["min"] > 0
    assert figures["FLARE's FedAvg, s a round"]["min"] > 0
    assert section(json.loads(json.dumps(found)))
