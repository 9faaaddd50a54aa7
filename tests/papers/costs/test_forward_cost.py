"""Counts against the figures that torchvision prints, a layer by hand, and what must be left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models

from fedretina.errors import SettingsError
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.network import NetworkSettings
from fedretina_papers.costs.forward_cost import forward_cost


@pytest.mark.parametrize(
    ("build", "weights", "side"),
    [
        (models.resnet50, models.ResNet50_Weights.IMAGENET1K_V2, 224),
        (models.efficientnet_b4, models.EfficientNet_B4_Weights.IMAGENET1K_V1, 380),
        (models.vit_b_16, models.ViT_B_16_Weights.IMAGENET1K_V1, 224),
    ],
)
def test_counts_are_those_that_torchvision_prints(build, weights, side):
    with torch.device("meta"):
        found = forward_cost(build(), side)
    assert found.parameters == weights.meta["num_params"]
    assert found.multiply_adds / 1e9 == pytest.approx(weights.meta["_ops"], abs=5e-4)
    assert found.flops == 2 * found.multiply_adds


def test_a_convolution_and_a_layer_by_hand():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.append(nn.Linear(8, 5))
    found = forward_cost(net, 16)
    assert found.multiply_adds == 16 * 16 * 8 * 3 * 9 + 8 * 5
    assert found.parameters == 8 * 27 + 8 + 16 + 8 * 5 + 5
    assert found.buffers == 8 + 8 + 1


def test_our_network_counts_encoder_and_head_and_is_left_alone():
    net = build_network(NetworkSettings(encoder="resnet18"), 5, 1)
    net.train()
    net.encoder.eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found, on_meta = forward_cost(net, 64), forward_cost(build_on_meta(NetworkSettings(encoder="resnet18"), 5), 64)
    assert found == on_meta
    assert (net.training, net.encoder.training, net.head.training) == (True, False, True)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


@pytest.mark.parametrize("frozen", [2, "all"])
def test_frozen_stages_cost_an_image_what_they_cost_when_they_train(frozen):
    moving = forward_cost(build_on_meta(NetworkSettings(encoder="resnet18"), 5), 64)
    still = forward_cost(build_on_meta(NetworkSettings(encoder="resnet18", frozen=frozen), 5), 64)
    assert still.multiply_adds == moving.multiply_adds


def test_arithmetic_grows_with_the_area():
    net = build_on_meta(NetworkSettings(encoder="resnet18"), 5)
    small, large = forward_cost(net, 64), forward_cost(net, 128)
    assert small.parameters == large.parameters
    assert large.multiply_adds == pytest.approx(4 * small.multiply_adds, rel=0.01)


def test_no_image():
    with pytest.raises(SettingsError, match="1 or more"):
        forward_cost(nn.Conv2d(3, 1, 1), 0)
