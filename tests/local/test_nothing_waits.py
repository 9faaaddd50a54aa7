"""Within an epoch nothing asks a card for a number: whoever does waits until all that was queued there is computed."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedretina.errors import DivergedError
from fedretina.local import trainer as of_rounds
from fedretina.local.supervised import BatchLosses
from fedretina.local.trainer import LocalTrainer
from fedretina.losses.objective import Clock
from fedretina.seeds import reproducible_torch
from fedretina.settings.plan import Plan
from fedretina.settings.training import TrainingSettings

_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
}


class Reads(TorchDispatchMode):
    """Counts what would wait for a card."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in _READS:
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "words",
    [
        {"row": "feduaa"},
        {"row": "fedprox"},
        {"row": "scaffold"},
        {"row": "moon", "augment": {"brightness": 0.2, "contrast": 0.2, "flip_vertical": True, "rotate_degrees": 10}},
        {"row": "feddc", "training": {"clip_norm": 10, "momentum": 0.9}},
    ],
    ids=lambda words: words["row"],
)
def test_no_epoch_reads_a_number(words, tiny, phantoms, monkeypatch):
    experiment = tiny(**words)
    data = phantoms(experiment, "site-1")["site-1"]
    trainer, reads, plain = LocalTrainer(experiment, data), Reads(), of_rounds.labelled_epochs

    def watched(*given):
        monkeypatch.setattr(BatchLosses, "note", lambda self, loss, clock: self._noted.append((loss.detach(), clock)))
        with reads:
            return plain(*given)

    monkeypatch.setattr(of_rounds, "labelled_epochs", watched)
    state = trainer.model.net.state_dict()
    correction = trainer.partition
    sent = {key: state[key].clone() for key in correction.travelling if key in state}
    sent |= {key: torch.zeros_like(state[key.partition(":")[2]]) for key in correction.travelling if key not in state}
    update = trainer.train(sent, trainer.initial(), Plan.of(experiment)[0])
    assert math.isfinite(update.snapshot.record["loss"])
    assert reads.found == []


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
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    for kernels, flags in (("repeatable", (True, False)), ("fastest", (False, True))):
        with reproducible_torch(TrainingSettings(kernels=kernels)):
            assert (cudnn.deterministic, cudnn.benchmark) == flags
    assert (cudnn.deterministic, cudnn.benchmark) == before
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
