import pytest
import torch
from torch import nn
from torchvision import models

from fedretina.errors import SettingsError
from fedretina.networks.efficientnet import TorchvisionEfficientNet, efficientnet_b0_encoder, efficientnet_b4_encoder

B0 = (efficientnet_b0_encoder, models.efficientnet_b0, (32, 16, 24, 40, 80, 112, 192, 1280), 4_007_548)
B4 = (efficientnet_b4_encoder, models.efficientnet_b4, (48, 24, 32, 56, 112, 160, 272, 1792), 17_548_616)
BOTH = pytest.mark.parametrize(("build", "theirs", "widths", "count"), [B0, B4], ids=["b0", "b4"])


@BOTH
def test_shapes_after_each_stage(build, theirs, widths, count):
    encoder = build().eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [
        (1, width, 64 // side, 96 // side) for width, side in zip(widths, (2, 2, 4, 8, 16, 16, 32, 32), strict=True)
    ]
    assert encoder.widths == widths
    assert encoder.features == widths[-1]


def test_stages_end_where_fedee_has_its_exits():
    """After MBConv blocks 4, 7, 10 and 14 of EfficientNet-B0, with 40, 80, 112 and 192 channels."""
    encoder = efficientnet_b0_encoder()
    blocks = [number for number, stage in enumerate(encoder.stages) for m in stage if type(m).__name__ == "MBConv"]
    assert len(blocks) == 16
    ends = [at for at, stage in enumerate(blocks) if at + 1 == len(blocks) or blocks[at + 1] != stage]
    assert [(at, encoder.widths[blocks[at]]) for at in ends if at in (4, 7, 10, 14)] == [
        (4, 40),
        (7, 80),
        (10, 112),
        (14, 192),
    ]


@BOTH
def test_a_torchvision_state_gives_torchvision_features(lively, build, theirs, widths, count):
    source = lively(theirs(weights=None))
    encoder = build()
    TorchvisionEfficientNet().load(encoder, source.state_dict())
    source.classifier = nn.Identity()
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), source.eval()(x), rtol=1e-6, atol=1e-6)


@BOTH
def test_weights_are_those_of_torchvision_without_its_classifier(build, theirs, widths, count):
    with torch.device("meta"):
        ours, whole = build(), theirs(weights=None)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in whole.features.parameters()) == count


def test_training_draws_nothing():
    """Stochastic depth would: two passes differ then, and torch's global generator moves on."""
    net, stochastic = efficientnet_b0_encoder().train(), models.efficientnet_b0(weights=None).train()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    assert torch.equal(net(x), net(x))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        stochastic.features(x)
        assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("broken", ["missing", "extra", "other"])
def test_leftovers_are_refused(broken):
    state = dict((models.mobilenet_v2 if broken == "other" else models.efficientnet_b0)(weights=None).state_dict())
    if broken == "missing":
        del state["features.8.1.running_var"]
    if broken == "extra":
        state["stages.0.0.weight"] = torch.zeros(32, 3, 3, 3)
    with pytest.raises(SettingsError, match="do not fit"):
        TorchvisionEfficientNet().load(efficientnet_b0_encoder(), state)
