"""Every row that exchanges a network does so encoded; rows that exchange none, or sums, refuse a codec."""

import pytest
import torch

from fedretina.errors import SettingsError
from fedretina.exchange.moved import moving_steps
from fedretina.loop import run_loop
from fedretina.rows import ROWS
from fedretina.storage import read_tensors

EVERYDAY = ("scaffold", "feduaa", "fedap")
REFUSE = {
    **dict.fromkeys(
        ("singleset", "singleset_eu", "singleset_tweu", "centralised", "oct_centralised", "analytic"), "read"
    ),
    "oct_moco_sums": "ends with sums",
}
ENCODE = [row if row in EVERYDAY else pytest.param(row, marks=pytest.mark.slow) for row in ROWS if row not in REFUSE]


def encoded(row, tiny):
    """Two rounds of each phase."""
    short = {"training": {"epochs": 1, "batch_size": 8}}
    listed = ROWS[row].settings.get("phases", [{"name": "train"}])
    rounds = {"sums": 1}
    phases = [
        {"name": one["name"], "rounds": rounds.get(one["name"], 2), **(short if "training" in one else {})}
        for one in listed
    ]
    return tiny(row=row, phases=phases, exchange={"codec": "int4"})


@pytest.mark.parametrize("row", ENCODE)
def test_a_row_runs_encoded_and_sends_less_from_its_second_round_on(row, tiny, phantoms, tmp_path):
    experiment = encoded(row, tiny)
    results = run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "r")
    assert all(step["refused"] == {} for step in results["steps"])
    steps = {step["step"]: step for step in moving_steps(results)}
    for phase in experiment.phases:
        first, second = (steps[f"{phase.name}-000{number}"] for number in range(2))
        assert second["bytes_down"] < 0.9 * first["bytes_down"]
    for site in results["sites"]:
        model, _ = read_tensors(tmp_path / "r" / site / "final" / "model.safetensors")
        assert all(torch.isfinite(one).all() for one in model.values() if one.is_floating_point())


@pytest.mark.parametrize(("row", "said"), REFUSE.items())
def test_a_row_that_has_nothing_to_encode_says_so(row, said, tiny):
    with pytest.raises(SettingsError, match=f"codec.*{said}"):
        encoded(row, tiny)
