from collections.abc import Callable

import pytest
import torch
from torch import nn


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
