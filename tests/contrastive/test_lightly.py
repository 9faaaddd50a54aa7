"""Against the losses of the package `lightly`, where it is installed."""

import pytest
import torch

from fedretina.contrastive.key_network import KeyQueue
from fedretina.contrastive.moco_v2 import info_nce
from fedretina.contrastive.objective import unit
from fedretina.contrastive.simclr import nt_xent

lightly = pytest.importorskip("lightly.loss", reason="the package lightly is not installed")


def rows(seed, count=6):
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_nt_xent(temperature, count):
    a, b = rows(1, count), rows(2, count)
    none = torch.zeros(count, count, dtype=torch.bool)
    expected = lightly.NTXentLoss(temperature=temperature)(a, b)
    torch.testing.assert_close(nt_xent(unit(a), unit(b), temperature, none), expected)


def test_moco_with_its_queue():
    theirs = lightly.NTXentLoss(temperature=0.2, memory_bank_size=(12, 5))
    queue = KeyQueue(12, 5, torch.device("cpu"))
    queue.rows = theirs.memory_bank.bank.clone()
    for step in range(5):
        q, k = rows(10 + step).requires_grad_(), rows(20 + step)
        mine = info_nce(unit(q), unit(k), queue.rows, 0.2, torch.zeros(6, 12, dtype=torch.bool))
        torch.testing.assert_close(mine, theirs(q, k))
        queue.enqueue(unit(k), torch.arange(6), torch.arange(6))
        torch.testing.assert_close(queue.rows, theirs.memory_bank.bank)
        assert queue.at == theirs.memory_bank.bank_ptr.item()
