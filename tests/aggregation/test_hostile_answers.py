"""Answers of the agreed form that no site's images can give: one site is refused, and the step closes without it."""

import pytest
import torch

from fedretina.aggregation import admission
from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import RefusedError
from fedretina.exchange.partition import CONTROL, GRAM, VARIANCES
from fedretina.exchange.payload import Payload

ONE_ROUND = [{"name": "train", "rounds": 1}]
SCALARS = {"prepare": {"images": 5.0}, "train": {"theta": 0.5, "images": 5.0}, "validate": {}, "calibrate": {}}


def answer(coordinator, site, change=lambda key, tensor: tensor, scalars=None):
    """What a site sends that did nothing: what came down, 1 as any statistic, the identity as any gram."""
    parts, down, task = coordinator.partition, coordinator.down(site), coordinator.step.task
    tensors = {}
    for key in parts.sent(task):
        shape, dtype = parts.shapes[key], parts.dtypes[key]
        said = torch.eye(shape[0], dtype=dtype) if key == GRAM else torch.ones(shape, dtype=dtype)
        tensors[key] = change(key, down[key].clone() if key in down else said)
    return Payload(tensors, SCALARS[task] if scalars is None else scalars, coordinator.order(site).stamp)


def until(coordinator, task, sites="ab"):
    """Close every step before a task's, then begin that."""
    while coordinator.step.task != task:
        coordinator.begin(sites)
        for site in sites:
            coordinator.accept(site, answer(coordinator, site))
        coordinator.close()
    coordinator.begin(sites)


def refused_alone(coordinator, said, bad):
    """Site b's answer is refused with these words, and the step closes with site a's."""
    with pytest.raises(RefusedError, match=said):
        coordinator.accept("b", bad)
    coordinator.accept("a", answer(coordinator, "a"))
    record = coordinator.close()
    assert list(record["scalars"]) == ["a"]
    assert list(record["refused"]) == ["b"]
    return record


def test_images_held_back_where_a_label_free_phase_weighs_by_them(tiny, tmp_path):
    phases = [{"name": "pretrain", "rounds": 1, "weights": "samples"}, *ONE_ROUND]
    coordinator = Coordinator(
        tiny(row="oct_moco_fedavg", phases=phases, network={"contrast": {"hidden": 16, "width": 8}}), "r", tmp_path
    )
    coordinator.begin("ab")
    assert coordinator.step.task == "pretrain"
    scalars = {"images": 50.0, "contrast_loss": 1.0}
    with pytest.raises(RefusedError, match="'images' is missing"):
        coordinator.accept("b", answer(coordinator, "b", scalars={"contrast_loss": 1.0}))
    coordinator.accept("a", answer(coordinator, "a", scalars=scalars))
    record = coordinator.close()
    assert record["weights"] == {"a": 1.0}
    assert list(record["refused"]) == ["b"]


def turned_variances(key, tensor):
    return -tensor if key.endswith(VARIANCES) else tensor


@pytest.mark.attack(
    "a hostile site",
    "a negative variance of activations",
    "refused by name",
)
def test_a_negative_variance(tiny, tmp_path):
    coordinator = Coordinator(tiny(row="fedap", phases=ONE_ROUND), "r", tmp_path)
    coordinator.begin("ab")
    assert coordinator.step.task == "prepare"
    bad = answer(coordinator, "b", turned_variances)
    assert refused_alone(coordinator, "negative variance", bad)["similarity"] == {"a": {"a": 1.0}}


@pytest.mark.attack(
    "a hostile site",
    "a negative running variance",
    "refused by name",
)
def test_a_negative_running_variance(tiny, tmp_path):
    coordinator = Coordinator(tiny(row="fedavg", phases=ONE_ROUND), "r", tmp_path)
    coordinator.begin("ab")
    bad = answer(coordinator, "b", turned_variances)
    refused_alone(coordinator, r"running_var' holds a negative variance", bad)
    assert all(tensor.min() >= 0 for key, tensor in coordinator.down().items() if key.endswith(VARIANCES))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [(-1, -1e9, "counts -1e.09 images"), (-1, 0.0, "counts 0 images"), (0, -1e9, "negative sum of squares")],
)
@pytest.mark.attack(
    "a hostile site",
    "a negative count or sum of squares",
    "refused by name",
)
def test_a_negative_count_or_sum_of_squares(tiny, tmp_path, place, value, said):
    coordinator = Coordinator(tiny(row="mdt", phases=ONE_ROUND), "r", tmp_path)
    until(coordinator, "calibrate")

    def changed(key, tensor):
        if key == GRAM:
            tensor[place, place] = value
        return tensor

    refused_alone(coordinator, said, answer(coordinator, "b", changed))
    assert torch.isfinite(torch.cat([value.reshape(-1) for value in coordinator.down("a").values()])).all()


@pytest.mark.attack(
    "a hostile site",
    "control variates near the end of float32",
    "refused by name",
)
def test_controls_that_would_overflow_what_the_server_adds_up(tiny, tmp_path):
    coordinator = Coordinator(tiny(correction={"name": "scaffold"}, phases=ONE_ROUND), "r", tmp_path)
    coordinator.begin("ab")
    bad = answer(coordinator, "b", lambda key, t: torch.full_like(t, 3e38) if key.startswith(CONTROL) else t)
    refused_alone(coordinator, "at most 1e.06", bad)


@pytest.mark.attack(
    "a hostile site",
    "finite answers whose sum is not finite",
    "no such aggregate is stored or sent",
)
def test_an_aggregate_that_is_not_finite_is_not_committed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "largest", lambda key, kind: 3.4e38)
    rounds = [{"name": "train", "rounds": 3}]
    experiment = tiny(correction={"name": "scaffold"}, phases=rounds, aggregation={"proportion": None})
    coordinator = Coordinator(experiment, "r", tmp_path)

    def absurd(key, tensor):
        return torch.full_like(tensor, 3e38) if key.startswith(CONTROL) else tensor

    coordinator.begin("a")
    coordinator.accept("a", answer(coordinator, "a", absurd))
    coordinator.close()
    coordinator.begin("a")
    coordinator.accept("a", answer(coordinator, "a", absurd))
    with pytest.raises(RefusedError, match=f"train-0001: the aggregate is not finite in tensor '{CONTROL}"):
        coordinator.close()
    again = Coordinator(experiment, "r", tmp_path)
    assert again.done == coordinator.done == 1
    again.begin("a")
    again.accept("a", answer(again, "a", lambda key, t: torch.zeros_like(t) if key.startswith(CONTROL) else t))
    again.close()
    assert all(torch.isfinite(tensor).all() for tensor in again.down().values())


@pytest.mark.attack(
    "a hostile site",
    "an error of seven megabytes",
    "one short line of it is kept",
)
def test_a_reason_of_seven_megabytes_is_one_short_line(tiny, tmp_path, caplog):
    coordinator = Coordinator(tiny(phases=ONE_ROUND), "r", tmp_path)
    coordinator.begin("abc")
    coordinator.refuse("b", "patient smith\n2026 ERROR forged line " * 200_000)
    with pytest.raises(RefusedError):
        coordinator.accept("c", answer(coordinator, "c", scalars={"s" * 7_000_000: 1.0}))
    coordinator.accept("a", answer(coordinator, "a"))
    for why in coordinator.close()["refused"].values():
        assert len(why) <= 500
        assert why.isprintable()
    assert (tmp_path / "train-0000.json").stat().st_size < 5000
    assert len(caplog.text) < 5000


@pytest.mark.attack(
    "a hostile site",
    "a site's name that is a path",
    "nothing is written outside the run's folder",
)
def test_no_enrolled_name_leaves_the_runs_folder(tiny, tmp_path):
    folder = tmp_path / "deep" / "er" / "server"
    coordinator = Coordinator(tiny(row="fedap", phases=ONE_ROUND), "r", folder)
    with pytest.raises(RefusedError, match="not a plain name"):
        coordinator.begin(["a", "b", "/../../../escaped"])
    until(coordinator, "train")
    for site in "ab":
        coordinator.accept(site, answer(coordinator, site))
    coordinator.close()
    assert all(path.is_relative_to(folder) for path in tmp_path.rglob("*.safetensors"))
