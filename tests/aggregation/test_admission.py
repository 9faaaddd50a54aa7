import math

import pytest
import torch

from fedretina.aggregation.admission import admit
from fedretina.errors import RefusedError
from fedretina.exchange.partition import partition
from fedretina.exchange.payload import Payload, Stamp
from fedretina.networks.build import build_network
from fedretina.settings.experiment import Experiment
from fedretina.settings.scalars import BY_TASK

STAMP = Stamp("run", "train", 1, 0, "d" * 64)
SCALARS = {"theta": 0.5, "images": 100.0, "val_auc": 0.7, "val_accuracy": 0.5}


@pytest.fixture(scope="module")
def sent():
    experiment = Experiment.resolve({"network": {"encoder": "resnet18"}})
    net = build_network(experiment.network, 5, 0)
    parts = partition(net, experiment.exchange)
    state = net.state_dict()
    return parts, {key: state[key] for key in parts.shared}, state


def check(sent, tensors=None, scalars=SCALARS, stamp=STAMP):
    parts, shared, _ = sent
    admit(Payload({**shared, **(tensors or {})}, scalars, stamp), STAMP, parts, BY_TASK["train"], parts.sent("train"))


def test_a_good_update_passes(sent):
    check(sent)
    check(sent, scalars={"theta": 1.0, "images": 1.0})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scalars": {**SCALARS, "theta": math.inf}}, "'theta' is not a finite"),
        ({"scalars": {**SCALARS, "theta": math.nan}}, "'theta' is not a finite"),
        ({"scalars": {**SCALARS, "theta": 0.0}}, "'theta' is 0"),
        ({"scalars": {**SCALARS, "theta": 2.5}}, "'theta' is 2.5"),
        ({"scalars": {**SCALARS, "theta": 1.5}}, "'theta' is 1.5, the run's rule gives at most 1"),
        ({"scalars": {**SCALARS, "theta": "0.5"}}, "'theta' is not a finite number"),
        ({"scalars": {**SCALARS, "theta": True}}, "'theta' is not a finite number"),
        ({"scalars": {**SCALARS, "images": 0.0}}, "'images' is 0"),
        ({"scalars": {**SCALARS, "age": 70.0}}, "'age' is not one of those"),
        ({"scalars": {"images": 5.0}}, "'theta' is missing"),
        ({"stamp": STAMP._replace(round=0)}, "round 0"),
        ({"stamp": STAMP._replace(run="other")}, "run 'other'"),
        ({"stamp": STAMP._replace(attempt=1)}, "attempt 1"),
        ({"stamp": STAMP._replace(digest="e" * 64)}, "disagree"),
        ({"tensors": {"encoder.extra": torch.zeros(2)}}, "does not travel.*encoder.extra"),
    ],
)
def test_each_fault_is_refused_in_a_sentence(sent, change, said):
    with pytest.raises(RefusedError, match=said):
        check(sent, **change)


def test_a_head_or_norm_that_arrives_is_refused(sent):
    _, _, state = sent
    for key in ("head.0.weight", "encoder.stages.0.1.weight"):
        with pytest.raises(RefusedError, match=f"does not travel.*{key}"):
            check(sent, {key: state[key]})


def test_shapes_types_values_and_missing_tensors(sent):
    parts, shared, _ = sent
    key = parts.shared[0]
    for wrong, said in [
        (shared[key][:1], "has shape"),
        (shared[key].double(), "has type"),
        (torch.full_like(shared[key], math.nan), "not finite"),
        (torch.where(torch.ones_like(shared[key]) > 0, torch.inf, shared[key]), "not finite"),
    ]:
        with pytest.raises(RefusedError, match=said):
            check(sent, {key: wrong})
    with pytest.raises(RefusedError, match="1 tensor is missing"):
        admit(
            Payload({k: v for k, v in shared.items() if k != key}, SCALARS, STAMP),
            STAMP,
            parts,
            BY_TASK["train"],
            parts.sent("train"),
        )


def test_scalars_alone_bring_no_tensor(sent):
    parts, shared, _ = sent
    admit(Payload({}, {"val_auc": 0.5}, STAMP), STAMP, parts, BY_TASK["validate"], parts.sent("validate"))
    with pytest.raises(RefusedError, match="do not travel"):
        admit(Payload(shared, {"val_auc": 0.5}, STAMP), STAMP, parts, BY_TASK["validate"], parts.sent("validate"))
