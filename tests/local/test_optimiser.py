import math

import pytest
import torch
from torch import nn

from fedretina.local import supervised
from fedretina.local.supervised import RoundOptimiser, eager_step, scheduled
from fedretina.losses.objective import Clock
from fedretina.seeds import generator
from fedretina.settings.training import OptimiserSettings


def clock(round_=0, rounds=4, epoch=0, epochs=2, step=0, steps=5):
    return Clock(round_, rounds, epoch, epochs, step, steps)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(2, 2)
        self.head = nn.Linear(2, 3)


def test_cosine_falls_from_the_rate_to_nothing_over_all_steps_of_the_phase():
    settings = OptimiserSettings(learning_rate=0.2, schedule="cosine")
    rates = [scheduled(settings, clock(r, 4, e, 2, s, 5)) for r in range(4) for e in range(2) for s in range(5)]
    expected = [0.2 * (1 + math.cos(math.pi * n / 40)) / 2 for n in range(40)]
    assert rates == pytest.approx(expected)


def test_exponential_and_constant():
    assert scheduled(OptimiserSettings(learning_rate=0.1, schedule="exponential", decay=0.5), clock(3)) == 0.0125
    assert scheduled(OptimiserSettings(learning_rate=0.1), clock(3, step=4)) == 0.1


def test_the_encoder_has_a_rate_of_its_own_and_every_parameter_is_named_once():
    net = Pair()
    optimiser = RoundOptimiser(net, OptimiserSettings(learning_rate=0.1, encoder_factor=0.1))
    rates = optimiser.at(clock())
    assert rates == pytest.approx({k: 0.01 if k.startswith("encoder") else 0.1 for k, _ in net.named_parameters()})
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {key: value.detach().clone() for key, value in net.named_parameters()}
    eager_step(optimiser.torch)
    for key, value in net.named_parameters():
        torch.testing.assert_close(before[key] - value, torch.full_like(value, rates[key]))


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_two_groups_step_as_one_when_their_rates_are_equal(name, kind):
    torch.manual_seed(0)
    ours, theirs = Pair(), Pair()
    theirs.load_state_dict(ours.state_dict())
    optimiser = RoundOptimiser(ours, OptimiserSettings(optimizer=name, learning_rate=0.1, weight_decay=0.01))
    plain = kind(theirs.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(3):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        optimiser.at(clock())
        eager_step(optimiser.torch)
        plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_long_gradient_is_clipped_and_a_short_one_is_not():
    net = Pair()
    optimiser = RoundOptimiser(net, OptimiserSettings(clip_norm=1.0))
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    optimiser.clip()
    length = torch.stack([p.grad.norm() for p in net.parameters()]).norm().item()
    assert length == pytest.approx(1.0, abs=1e-4)
    short = net.head.bias.grad.clone()
    optimiser.clip()
    torch.testing.assert_close(net.head.bias.grad, short)


def test_a_network_whose_encoder_is_frozen_has_one_group():
    net = Pair()
    net.encoder.requires_grad_(False)
    assert set(RoundOptimiser(net, OptimiserSettings()).at(clock())) == {"head.weight", "head.bias"}


@pytest.mark.parametrize("words", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01}])
def test_a_fused_step_is_near_the_plain_one_and_goes_on_from_what_was_kept(words, monkeypatch):
    """As on a card: torch has the same kernels for the processor, where the product does not use them."""
    settings = OptimiserSettings(learning_rate=0.1, optimizer_state="keep", **words)
    torch.manual_seed(0)
    plain, fused = (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    kept = {}
    for name, net, devices in (("plain", plain, ()), ("fused", fused, ("cpu",))):
        monkeypatch.setattr(supervised, "_FUSED", devices)
        for round_ in range(3):
            optimiser = RoundOptimiser(net, settings)
            assert all(group["fused"] == bool(devices) for group in optimiser.torch.param_groups)
            stored = {key: value.contiguous() for key, value in kept.get(name, {}).items()}  # as from the disk
            optimiser.recall(stored)
            for step in range(2):
                for key, value in net.named_parameters():
                    value.grad = torch.empty_like(value).copy_(draws(key, round_, step).view_as(value))
                optimiser.at(clock())
                eager_step(optimiser.torch)
            kept[name] = optimiser.memory()
            for parameter, state in optimiser.torch.state.items():
                for value in state.values():
                    assert value is None or value.ndim == 0 or value.stride() == parameter.stride() or not devices
    assert kept["plain"].keys() == kept["fused"].keys()
    for key, value in kept["plain"].items():
        torch.testing.assert_close(value, kept["fused"][key])
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def draws(key, round_, step):
    count = {"weight": 4 * 3 * 3 * 3, "bias": 4}[key]
    return torch.from_numpy(generator(key, round_, step).normal(size=count)).float()


@pytest.mark.parametrize(
    ("first", "second"),
    [({"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}), ({"optimizer": "adam"}, {"momentum": 0.9})],
)
def test_what_another_optimiser_kept_is_left_and_a_round_begins_anew(first, second):
    torch.manual_seed(0)
    start = Pair().state_dict()
    kept, ends = {}, []
    for words, recalls in ((first, False), (second, True), (second, False)):
        net = Pair()
        net.load_state_dict(start)
        optimiser = RoundOptimiser(net, OptimiserSettings(learning_rate=0.1, optimizer_state="keep", **words))
        if recalls:
            optimiser.recall(kept)
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.at(clock())
        eager_step(optimiser.torch)
        kept = kept or optimiser.memory()
        ends.append((net.state_dict(), optimiser.memory()))
    (_, (recalled, memory), (anew, expected)) = ends
    assert memory.keys() == expected.keys()
    assert all(torch.equal(recalled[key], anew[key]) for key in anew)
