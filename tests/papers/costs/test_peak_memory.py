"""Memory of a step in a process of its own: what it holds is seen, what this one holds is not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from memory_steps import MB, die, hold
from torch import nn

from fedretina.errors import SettingsError, TrainingError
from fedretina_papers.costs.peak_memory import peak_memory
from fedretina_papers.costs.workload import Workload


def small_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_what_is_kept_and_what_is_freed_again_are_both_seen():
    mine = np.ones(300 * MB // 8)  # of the parent, and none of the child's business
    found = peak_memory(partial(hold, 120))
    assert mine.size
    assert found.source == "resident set"
    assert found.step == pytest.approx(180 * MB, rel=0.15)
    assert found.peak > found.step


def test_a_process_that_dies_is_told():
    with pytest.raises(TrainingError, match="was killed"):
        peak_memory(die)
    with pytest.raises(SettingsError):
        peak_memory(die, steps=0)


def test_steps_train_or_only_answer():
    threads = torch.get_num_threads()
    try:
        for optimizer in ("sgd", "adam"):
            nets = []

            def build(nets=nets):
                nets.append(small_net())
                return nets[-1]

            step = Workload(build, 16, 2, optimizer=optimizer)()
            before = [one.clone() for one in nets[0].parameters()]
            step()
            assert nets[0].training
            assert any(not torch.equal(old, new) for old, new in zip(before, nets[0].parameters(), strict=True))
        Workload(build, 16, 2, train=False)()()
        assert not nets[-1].training
        assert all(one.grad is None for one in nets[-1].parameters())
    finally:
        torch.set_num_threads(threads)


def test_no_such_step():
    with pytest.raises(SettingsError, match="1 or more"):
        Workload(small_net, 16, 0)
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="no CUDA device"):
            Workload(small_net, 16, 2, device="cuda")()
