"""Within an epoch nothing asks a card for a number: whoever does waits until all that was queued there is computed."""

import math

import numpy as np
import pytest
import torch
from fake_card import Copies, put_on_card

from fedretina.errors import DivergedError
from fedretina.local import pretrainer, supervised
from fedretina.local import trainer as of_rounds
from fedretina.local.model import read_ahead
from fedretina.local.pretrainer import Pretrainer
from fedretina.local.supervised import BatchLosses, batches
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock
from fedretina.seeds import reproducible_torch
from fedretina.settings.plan import Plan
from fedretina.settings.training import TrainingSettings

_ONCE = {"epochs": 1, "batch_size": 8, "threads": 1}
_OCT = {"phases": [{"name": "pretrain", "rounds": 1, "training": _ONCE}, {"name": "train", "rounds": 1}]}


@pytest.mark.parametrize(
    "words",
    [
        {
            "row": "fedprox",
            "objective": {"name": "focal", "alpha": [1, 2, 3, 4, 5]},
            "evaluation": {"estimator": "softmax"},
        },
        {"row": "scaffold", "training": {"optimizer": "adam", "learning_rate": 0.001}},
        {
            "row": "moon",
            "augment": {"brightness": 0.2, "contrast": 0.2, "flip_vertical": True, "rotate_degrees": 10},
            "training": {"clip_norm": 10, "momentum": 0.9},
        },
        {"row": "fedee_tweu"},
        {"row": "feddyn"},
        {"row": "feddc"},
        {"row": "fedrep"},
        {"row": "ditto"},
        {"row": "oct_moco_fedavg", **_OCT},
        {"row": "oct_simclr_fedavg", **_OCT},
    ],
    ids=lambda words: words["row"],
)
def test_an_epoch_on_a_card_mixes_no_devices_reads_no_number_and_waits_for_no_copy(words, tiny, phantoms, monkeypatch):
    experiment = tiny(**words)
    step, data = Plan.of(experiment)[0], phantoms(experiment, "site-1")["site-1"]
    trainer, copies, epochs = LocalTrainer(experiment, data), Copies(), []
    state, keys = trainer.model.net.state_dict(), trainer.partition.moving(step.task).travelling
    sent = {key: state[key].clone() if key in state else torch.zeros_like(state[key.partition(":")[2]]) for key in keys}
    kept = trainer.initial()

    def begun(*given):
        if not epochs:  # what comes before the first epoch of a round may be waited for: the weights
            copies.begin()
        epochs.append(given)
        return batches(*given)

    def ended(losses):  # what it would do, once an epoch: read all losses of it together
        assert losses.values == []
        assert len(losses._noted) == 3
        losses._noted = []
        if len(epochs) == of:
            raise RoundEndedError

    phase = experiment.phase(step.phase)
    settings = phase.training or experiment.training
    of = sum(one.epochs for one in settings.stretches) or settings.epochs
    monkeypatch.setattr(pretrainer if step.task == "pretrain" else supervised, "batches", begun)
    monkeypatch.setattr(BatchLosses, "settle", ended)
    put_on_card(trainer.model, monkeypatch)
    do = trainer.train if step.task == "train" else Pretrainer(experiment, data, trainer.model).run
    with copies, pytest.raises(RoundEndedError):
        do(sent, kept, step)
    assert copies.waited_for == []
    assert copies.brought >= 3 * 3 * of  # images, labels and at least one draw of each batch


class RoundEndedError(Exception):
    pass


def test_batches_are_read_ahead_in_their_order_and_a_fault_comes_with_its_batch():
    order = [np.array([at, at + 1]) for at in range(0, 10, 2)]
    for most in range(len(order) + 1):
        assert [list(one) for one in read_ahead(torch.from_numpy, order[:most])] == [list(one) for one in order[:most]]

    def read(samples):
        if samples[0] == 4:
            raise OSError("the disk is gone")
        return torch.from_numpy(samples)

    found = []
    with pytest.raises(OSError, match="gone"):
        found += (int(one[0]) for one in read_ahead(read, order))
    given = read_ahead(read, order)
    assert int(next(given)[0]) == 0
    given.close()  # in the midst: the thread ends


def losses(device, tiny):
    return BatchLosses(torch.device(device), Plan.of(tiny())[0])


def test_a_loss_that_is_not_finite_is_found_at_once_or_when_the_epoch_ends(tiny):
    good, bad = torch.tensor(0.5), torch.tensor(math.nan)
    here, there = losses("cpu", tiny), losses("cuda", tiny)
    for one in (here, there):
        one.note(good, Clock(0, 1, 0, 1, 0, 3))
    assert (here.values, there.values) == ([0.5], [])
    with pytest.raises(DivergedError):
        here.note(bad, Clock(0, 1, 0, 1, 1, 3))
    there.note(bad, Clock(0, 1, 0, 1, 1, 3))
    there.note(good, Clock(0, 1, 0, 1, 2, 3))
    with pytest.raises(DivergedError, match="the loss became nan in train-0000, epoch 0") as raised:
        there.settle()
    assert raised.value.notes == ("It was batch 1 of the epoch, from 0.",)


def test_the_fastest_kernels_are_asked_for_by_name_and_no_digest_knows_of_the_others():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    for kernels, flags in (("repeatable", (True, False)), ("fastest", (False, True))):
        with reproducible_torch(TrainingSettings(kernels=kernels)):
            assert (cudnn.deterministic, cudnn.benchmark) == flags
    for precision, allowed in (("float32", False), ("tf32", True), ("bf16", False)):
        with reproducible_torch(TrainingSettings(precision=precision)):
            assert (cudnn.allow_tf32, matmul.allow_tf32) == (allowed, allowed)
            assert (cudnn.conv.fp32_precision == "tf32", matmul.fp32_precision == "tf32") == (allowed, allowed)
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32) == before
    assert "kernels" not in TrainingSettings().model_dump()
    assert TrainingSettings(kernels="fastest").model_dump()["kernels"] == "fastest"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_epoch_waits_on_a_card(tiny, phantoms, monkeypatch):
    """The same on a card itself, copies included."""
    experiment = tiny(row="scaffold", training={"precision": "bf16"})
    trainer = LocalTrainer(experiment, phantoms(experiment, "site-1")["site-1"])
    settle = BatchLosses.settle

    def settled(self):
        torch.cuda.set_sync_debug_mode("default")
        settle(self)

    monkeypatch.setattr(BatchLosses, "settle", settled)
    plain = of_rounds.labelled_epochs

    def watched(*given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return plain(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(of_rounds, "labelled_epochs", watched)
    state = trainer.model.net.state_dict()
    keys = trainer.partition.travelling
    sent = {key: state[key].clone() if key in state else torch.zeros_like(state[key.partition(":")[2]]) for key in keys}
    assert math.isfinite(trainer.train(sent, trainer.initial(), Plan.of(experiment)[0]).snapshot.record["loss"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam", "learning_rate": 0.001}], ids=str)
def test_a_round_on_a_card_repeats_its_bits_and_is_near_the_processors(optimizer, tiny, phantoms):
    ends = {}
    for name, device in (("here", "cpu"), ("there", "cuda"), ("again", "cuda")):
        training = {"device": device, "optimizer_state": "keep", **optimizer}
        experiment = tiny(row="singleset", training=training)
        trainer = LocalTrainer(experiment, phantoms(experiment, "site-1")["site-1"])
        plan, kept = Plan.of(experiment), trainer.initial()
        for round_ in range(2):  # the second goes on from what the optimiser kept
            kept = trainer.train({}, kept, plan[round_]).snapshot
        ends[name] = torch.cat([kept.tensors[key].flatten().double() for key in sorted(kept.tensors)])
    assert torch.equal(ends["there"], ends["again"])
    torch.testing.assert_close(ends["there"], ends["here"], rtol=0.05, atol=0.01)
