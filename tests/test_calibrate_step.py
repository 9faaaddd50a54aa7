"""The `calibrate` step: multi-domain temperature scaling after training, in the whole loop."""

from dataclasses import replace

import pytest
import torch

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import QuorumError
from fedretina.local.site import Site
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.storage import read_json, read_tensors

pytestmark = pytest.mark.slow


def final(root, run, site):
    return read_tensors(root / run / site / "final" / "model.safetensors")[0]


@pytest.mark.slow
def test_temperatures_change_no_grade_and_nothing_of_the_training(tiny, phantoms, tmp_path):
    plain, calibrated = (tiny(row=row, phantom_images=160, verdict="off") for row in ("fedavg", "mdt"))
    data = phantoms(plain, "site-1", "site-2")
    before, after = (run_loop(e, data, tmp_path, n) for e, n in ((plain, "plain"), (calibrated, "mdt")))
    assert before["model_digest"] == after["model_digest"]
    assert [step["task"] for step in after["steps"]] == ["train", "train", "validate", "calibrate"]
    features = len(final(tmp_path, "mdt", "site-1")["calibrator.weight"].flatten())
    sums = 8 * ((features + 1) ** 2 + features + 1)
    assert after["steps"][3]["bytes_up"] == {"site-1": sums, "site-2": sums}
    assert after["steps"][3]["scalars"] == {"site-1": {}, "site-2": {}}
    assert after["partition"]["calibration"] == ["calibration:gram", "calibration:moment"]
    for site in data:
        plain_model, model = final(tmp_path, "plain", site), final(tmp_path, "mdt", site)
        assert set(model) - set(plain_model) == {"calibrator.weight", "calibrator.bias"}
        assert all(torch.equal(model[key], plain_model[key]) for key in plain_model)
        assert before["sites"][site]["test_accuracy"] == after["sites"][site]["test_accuracy"]
    moved = [final(tmp_path, "mdt", site)["calibrator.bias"] for site in data]
    assert torch.equal(*moved)

    assert float(moved[0]) != 1.0


@pytest.mark.attack(
    "a hostile server",
    "read the features of few patients off the sums over a site's validation images",
    "a site whose validation has fewer patients than min_count sends no such sums",
)
def test_no_sums_over_few_validation_patients_leave(tiny, phantoms, tmp_path, caplog):
    experiment = tiny(row="mdt", phases=[{"name": "train", "rounds": 1}], quorum=2)
    data = {name: replace(site, min_count=1) for name, site in phantoms(experiment, "site-1", "site-2").items()}
    data["site-2"] = replace(data["site-2"], min_count=1000)
    found = run_loop(experiment, data, tmp_path, "r")
    calibrate = next(step for step in found["steps"] if step["task"] == "calibrate")
    assert calibrate["scalars"] == {"site-1": {}, "site-2": {}}  # who tells nothing has answered: the quorum is kept
    assert calibrate["bytes_up"]["site-1"] > calibrate["bytes_up"]["site-2"] == 0
    assert "site-2: fewer patients stand behind the validation images" in caplog.text
    biases = [final(tmp_path, "r", site)["calibrator.bias"] for site in data]
    assert torch.equal(*biases)  # it ends with the temperatures of the others


def test_where_no_site_may_tell_the_run_ends_without_temperatures(tiny, phantoms, tmp_path):
    experiment = tiny(row="mdt", phases=[{"name": "train", "rounds": 1}])
    data = {name: replace(site, min_count=1000) for name, site in phantoms(experiment, "site-1").items()}
    assert run_loop(experiment, data, tmp_path, "r")["steps"][-1]["task"] == "calibrate"
    model = final(tmp_path, "r", "site-1")
    assert float(model["calibrator.bias"]) == 1.0
    assert not model["calibrator.weight"].any()


def test_a_site_that_is_away_is_missed_by_the_quorum(tiny, phantoms, tmp_path):
    experiment = tiny(row="mdt", phases=[{"name": "train", "rounds": 1}], quorum=2)
    data = {name: replace(site, min_count=1000) for name, site in phantoms(experiment, "site-1", "site-2").items()}
    coordinator = Coordinator(experiment, "r", tmp_path / "server")
    hosts = {name: Site(experiment, data[name], tmp_path / name) for name in data}
    while coordinator.step.task != "calibrate":
        coordinator.begin(data)
        for name, host in hosts.items():
            coordinator.accept(name, host.handle(coordinator.order(name), coordinator.down()))
        coordinator.close()
    coordinator.begin(data)
    coordinator.accept("site-1", hosts["site-1"].handle(coordinator.order("site-1"), coordinator.down()))
    with pytest.raises(QuorumError, match="1 update was accepted, the quorum is 2"):
        coordinator.close()


@pytest.mark.parametrize("row", ["mdt", "moon_projected"])
def test_the_predictor_answers_as_the_whole_network_did(row, tiny, phantoms, tmp_path):
    experiment = tiny(row=row)
    data = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, data, tmp_path, "mdt")
    host = Site(experiment, data["site-1"], tmp_path / "mdt" / "site-1")
    model = final(tmp_path, "mdt", "site-1")
    predictor = Predictor.load(tmp_path / "mdt" / "site-1" / "final", "cpu")
    images = data["site-1"].split("test").images
    with torch.inference_mode():
        expected = host.trainer.answers({}, model, data["site-1"].split("test")).logits
        got = predictor.net(images.float().div(255))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_run_killed_around_its_calibration_ends_with_the_same_models(tiny, phantoms, tmp_path):
    experiment = tiny(row="mdt")
    data = phantoms(experiment, "site-1", "site-2")
    expected = run_loop(experiment, data, tmp_path, "whole")
    for _ in range(len(expected["steps"]) + 1):
        coordinator = Coordinator(experiment, "whole", tmp_path / "parts" / "server")
        coordinator.begin(data)
        for site in coordinator.asked:
            for _ in range(2):
                host = Site(experiment, data[site], tmp_path / "parts" / site)
                answer = host.handle(coordinator.order(site), coordinator.down())
            coordinator.accept(site, answer)
        coordinator.close()
    assert read_json(tmp_path / "parts" / "server" / "results.json")["sites"] == expected["sites"]
    for site in data:
        whole, parts = final(tmp_path, "whole", site), final(tmp_path, "parts", site)
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
