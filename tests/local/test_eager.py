"""Optimisers without torch's compiler: the same bits as torch's own, and the compiler is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedretina.local.supervised import EagerAdam, EagerSGD, eager_step

USED = """
import sys, torch
from fedretina.local.supervised import EagerAdam, EagerSGD, eager_step
weight = torch.nn.Parameter(torch.ones(3))
for kind in (EagerAdam, EagerSGD):
    optimiser = kind([{"params": [weight]}], lr=0.1)
    weight.sum().backward()
    eager_step(optimiser)
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize(
    ("eager", "own", "settings"),
    [
        (EagerSGD, torch.optim.SGD, {"lr": 0.1}),
        (EagerSGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (EagerAdam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.001}),
    ],
)
def test_the_same_steps_to_the_bit(eager, own, settings):
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(5, 3, generator=generator), torch.randn(7, generator=generator)]
    gradients = [[torch.randn(start.shape, generator=generator) for start in starts] for _ in range(6)]
    ends = []
    for kind in (eager, own):
        weights = [torch.nn.Parameter(start.clone()) for start in starts]
        optimiser = kind([{"params": [weights[0]]}, {"params": [weights[1]]}], **settings)
        for at, step in enumerate(gradients):
            for group, factor in zip(optimiser.param_groups, (0.1, 1.0), strict=True):
                group["lr"] = settings["lr"] * factor / (at + 1)
            for weight, gradient in zip(weights, step, strict=True):
                weight.grad = gradient.clone()
            eager_step(optimiser) if kind is eager else optimiser.step()
        assert all(weight.requires_grad for weight in weights)
        ends.append([weight.detach() for weight in weights])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert not torch.equal(ends[0][0], starts[0])


def test_the_compiler_stays_out():
    ran = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
