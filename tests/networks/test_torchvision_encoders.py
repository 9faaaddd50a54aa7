"""The encoders that torchvision has too: shapes, number of weights, and its files in ours."""

import pytest
import torch
from torch import nn
from torchvision.models import get_model

from fedretina.errors import SettingsError
from fedretina.networks.efficientnet import TorchvisionEfficientNet
from fedretina.networks.encoder import build_encoder
from fedretina.networks.mobilenet import TorchvisionMobileNet
from fedretina.networks.resnet import PublishedResNet

WIDTHS = {
    "efficientnet_b0": (32, 16, 24, 40, 80, 112, 192, 1280),
    "efficientnet_b4": (48, 24, 32, 56, 112, 160, 272, 1792),
    "mobilenet_v2": (32, 16, 24, 32, 64, 96, 160, 1280),
    "resnet18": (64, 64, 128, 256, 512),
    "resnet50": (64, 256, 512, 1024, 2048),
}
WEIGHTS = {
    "efficientnet_b0": 4_007_548,
    "efficientnet_b4": 17_548_616,
    "mobilenet_v2": 2_223_872,
    "resnet18": 11_176_512,
    "resnet50": 23_508_032,
}
EACH = pytest.mark.parametrize("name", WIDTHS)


def layout(name):
    if name.startswith("efficientnet"):
        return TorchvisionEfficientNet()
    return TorchvisionMobileNet() if name == "mobilenet_v2" else PublishedResNet()


def theirs(name):
    return get_model(name, weights=None)


def without_classifier(net):
    setattr(net, "fc" if hasattr(net, "fc") else "classifier", nn.Identity())
    return net


@EACH
def test_shapes_after_each_stage(name):
    encoder = build_encoder(name).eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, 64, 96))
    sides = (4, 4, 8, 16, 32) if name.startswith("resnet") else (2, 2, 4, 8, 16, 16, 32, 32)
    assert [tuple(m.shape) for m in maps] == [
        (1, width, 64 // side, 96 // side) for width, side in zip(WIDTHS[name], sides, strict=True)
    ]
    assert encoder.widths == WIDTHS[name]
    assert encoder.features == WIDTHS[name][-1]


@EACH
def test_a_torchvision_state_gives_torchvision_features(lively, name):
    source = lively(theirs(name))
    encoder = build_encoder(name)
    layout(name).load(encoder, source.state_dict())
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = without_classifier(source).eval()(x)
        torch.testing.assert_close(encoder.eval()(x), expected, rtol=1e-6, atol=1e-6)


@EACH
def test_weights_are_those_of_torchvision_without_its_classifier(name):
    with torch.device("meta"):
        networks = build_encoder(name), without_classifier(theirs(name))
    assert [sum(p.numel() for p in net.parameters()) for net in networks] == [WEIGHTS[name]] * 2


@pytest.mark.parametrize("broken", ["missing", "extra", "other"])
@EACH
def test_leftovers_are_refused(name, broken):
    other = "mobilenet_v2" if name == "efficientnet_b0" else "efficientnet_b0"
    state = dict(theirs(other if broken == "other" else name).state_dict())
    if broken == "missing":
        del state[next(key for key in state if key.endswith("running_var"))]
    if broken == "extra":
        state["stages.0.0.weight"] = torch.zeros(32, 3, 3, 3)
    with pytest.raises(SettingsError, match="do not fit"):
        layout(name).load(build_encoder(name), state)


def test_stages_end_where_fedee_has_its_exits():
    """After MBConv blocks 4, 7, 10 and 14 of EfficientNet-B0, with 40, 80, 112 and 192 channels."""
    encoder = build_encoder("efficientnet_b0")
    blocks = [number for number, stage in enumerate(encoder.stages) for m in stage if type(m).__name__ == "MBConv"]
    assert len(blocks) == 16
    ends = [at for at, stage in enumerate(blocks) if at + 1 == len(blocks) or blocks[at + 1] != stage]
    assert [(at, encoder.widths[blocks[at]]) for at in ends if at in (4, 7, 10, 14)] == [
        (4, 40),
        (7, 80),
        (10, 112),
        (14, 192),
    ]


def test_training_draws_nothing():
    """Stochastic depth would: two passes differ then, and torch's global generator moves on."""
    net, stochastic = build_encoder("efficientnet_b0").train(), theirs("efficientnet_b0").train()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    assert torch.equal(net(x), net(x))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        stochastic.features(x)
        assert not torch.equal(torch.get_rng_state(), before)


def test_names_of_resnet50_reproduce_the_official_leak():
    encoder = build_encoder("resnet50")
    norms = [name for name, module in encoder.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert sum("bn" in name for name in norms) == 48
