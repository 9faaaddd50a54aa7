import pytest
import torch
from torch import nn
from torchvision import models

from fedretina.errors import SettingsError
from fedretina.networks.resnet import PublishedResNet, resnet18_encoder, resnet50_encoder


@pytest.mark.parametrize(
    ("build", "widths"),
    [(resnet18_encoder, (64, 64, 128, 256, 512)), (resnet50_encoder, (64, 256, 512, 1024, 2048))],
)
def test_shapes_after_each_stage(build, widths):
    encoder = build().eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [
        (1, width, 64 // side, 96 // side) for width, side in zip(widths, (4, 4, 8, 16, 32), strict=True)
    ]
    assert encoder.widths == widths
    assert encoder.features == widths[-1]


@pytest.mark.parametrize(("build", "count"), [(resnet18_encoder, 11_176_512), (resnet50_encoder, 23_508_032)])
def test_number_of_weights(build, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == count


@pytest.mark.parametrize(
    ("build", "theirs"), [(resnet18_encoder, models.resnet18), (resnet50_encoder, models.resnet50)]
)
def test_a_torchvision_state_gives_torchvision_features(build, theirs):
    source = theirs(weights=None)
    for module in source.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(torch.linspace(-0.1, 0.1, module.num_features))
            module.running_var.copy_(torch.linspace(0.5, 1.5, module.num_features))
    encoder = build()
    PublishedResNet().load(encoder, source.state_dict())
    source.fc = nn.Identity()
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x), source.eval()(x))


def test_names_reproduce_the_official_leak():
    encoder = resnet50_encoder()
    norms = [name for name, module in encoder.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert sum("bn" in name for name in norms) == 48


@pytest.mark.parametrize("broken", ["missing", "extra", "other"])
def test_leftovers_are_refused(broken):
    state = dict((models.resnet50 if broken == "other" else models.resnet18)(weights=None).state_dict())
    if broken == "missing":
        del state["layer3.0.bn1.running_var"]
    if broken == "extra":
        state["stages.0.0.weight"] = torch.zeros(64, 3, 7, 7)
    with pytest.raises(SettingsError, match="do not fit"):
        PublishedResNet().load(resnet18_encoder(), state)
