import pytest
import torch
from torch import nn
from torchvision import models

from fedretina.errors import SettingsError
from fedretina.networks.mobilenet import TorchvisionMobileNet, mobilenet_v2_encoder


def test_shapes_after_each_stage():
    encoder = mobilenet_v2_encoder().eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, 64, 96))
    widths, sides = (32, 16, 24, 32, 64, 96, 160, 1280), (2, 2, 4, 8, 16, 16, 32, 32)
    assert [tuple(m.shape) for m in maps] == [
        (1, width, 64 // side, 96 // side) for width, side in zip(widths, sides, strict=True)
    ]
    assert encoder.widths == widths
    assert encoder.features == 1280


def test_a_torchvision_state_gives_torchvision_features(lively):
    source = lively(models.mobilenet_v2(weights=None))
    encoder = mobilenet_v2_encoder()
    TorchvisionMobileNet().load(encoder, source.state_dict())
    source.classifier = nn.Identity()
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), source.eval()(x), rtol=1e-6, atol=1e-6)


def test_weights_are_those_of_torchvision_without_its_classifier():
    with torch.device("meta"):
        ours, theirs = mobilenet_v2_encoder(), models.mobilenet_v2(weights=None)
    assert (
        sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.features.parameters()) == 2_223_872
    )


@pytest.mark.parametrize("broken", ["missing", "extra", "other"])
def test_leftovers_are_refused(broken):
    build = models.efficientnet_b0 if broken == "other" else models.mobilenet_v2
    state = dict(build(weights=None).state_dict())
    if broken == "missing":
        del state["features.18.1.running_var"]
    if broken == "extra":
        state["stages.0.0.weight"] = torch.zeros(32, 3, 3, 3)
    with pytest.raises(SettingsError, match="do not fit"):
        TorchvisionMobileNet().load(mobilenet_v2_encoder(), state)
