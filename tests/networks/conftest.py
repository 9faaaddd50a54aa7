from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedretina.networks import convnext, swin, vision_transformer
from weight_files import LITTLE, TINY


@pytest.fixture
def one_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def shallow(monkeypatch):
    """The vision transformers with 4 blocks of width 48 for 24 of 1024; nothing else of them is another."""
    whole = vision_transformer._tokens

    def little(traits, features, **sizes):
        return whole(traits, features, **{**sizes, **TINY})

    monkeypatch.setattr(vision_transformer, "_tokens", little)


@pytest.fixture
def narrow(monkeypatch):
    """ConvNeXt and SwinV2 with a quarter of their channels; nothing else of them is another."""
    for module in (convnext, swin):
        monkeypatch.setattr(module, "_WIDTHS", LITTLE)


@pytest.fixture
def lively() -> Callable[[nn.Module], nn.Module]:
    """Gives a network's BatchNorms statistics that are not their start, so that a lost one is noticed."""

    def change(net: nn.Module) -> nn.Module:
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(torch.linspace(-0.1, 0.1, module.num_features))
                module.running_var.copy_(torch.linspace(0.5, 1.5, module.num_features))
        return net

    return change
