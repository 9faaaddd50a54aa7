"""Encoders of timm's layers: files in the forms that others publish, with random weights, against timm's networks."""

import argparse
import ast
from pathlib import Path

import pytest
import timm
import torch
from timm.models import convnext, swin_transformer_v2, vision_transformer

from fedretina.errors import SettingsError, TrainingError
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.encoder import build_encoder
from fedretina.networks.layout import layouts_of
from fedretina.settings.encoder import EncoderTraits, RetFoundMaeTraits
from fedretina.settings.network import NetworkSettings
from weight_files import DECODER, TINY, dino, images, loaded, metas, microsofts, random_state, retfound, same

pytestmark = pytest.mark.usefixtures("one_seed")
CUSTOM = Path(__file__).resolve().parents[2] / "custom"
NEW = tuple(EncoderTraits.choices())[8:]


@pytest.mark.parametrize("side", [224, 160])
def test_retfounds_checkpoint_of_pre_training_gives_its_authors_features(tmp_path, shallow, side):
    theirs = retfound()
    state = random_state(theirs)
    theirs.fc_norm.reset_parameters()  # as where their code finds none in the checkpoint
    encoder_part = {k: v for k, v in state.items() if not k.startswith("fc_norm")}
    norm = {"norm.weight": torch.full((48,), 9.0), "norm.bias": torch.full((48,), 9.0)}
    arguments = argparse.Namespace(model="mae_vit_large_patch16", epochs=800)
    checkpoint = {
        "model": {**encoder_part, **norm, **DECODER},
        "args": arguments,
        "epoch": 799,
        "optimizer": {"state": {}},
    }
    encoder, told = loaded(tmp_path, "retfound_mae", checkpoint)
    same(encoder, theirs, side)
    assert (told["layout"], told["sets"]) == ("RETFound (MAE)", ["eyepacs", "kermany"])
    assert "CC BY-NC 4.0" in told["licence"]
    assert told["notes"] == ["the LayerNorm of the features starts as 1 and 0, as with RETFound's authors"]


def test_a_fine_tuned_retfound_of_another_size_has_its_positions_resampled(tmp_path, shallow):
    theirs = retfound(256)
    head = {"head.weight": torch.zeros(5, 48), "head.bias": torch.zeros(5)}
    encoder, told = loaded(tmp_path, "retfound_mae", {"model": {**random_state(theirs), **head}})
    assert told["notes"][0] == "positions of 16 x 16 patches were resampled to 14 x 14"
    small = retfound(224)
    small.load_state_dict(vision_transformer.checkpoint_filter_fn(theirs.state_dict(), small))
    same(encoder, small, 224)


@pytest.mark.parametrize("chunks", [False, True])
def test_retfound_dinov2s_teacher_gives_timms_features(tmp_path, shallow, chunks):
    theirs = dino(224, **TINY)
    state = random_state(theirs)
    if chunks:  # as DINOv2 saves them from a training in pieces
        state = {k.replace("blocks.", f"blocks.{int(k.split('.')[1]) // 2}.", 1) if k.startswith("blocks.") else k: v
                 for k, v in state.items()}  # fmt: skip
    teacher = {f"backbone.{key}": value for key, value in state.items()}
    teacher |= {"backbone.mask_token": torch.zeros(1, 48), "dino_head.mlp.0.weight": torch.zeros(8, 48)}
    encoder, told = loaded(tmp_path, "retfound_dinov2", {"teacher": teacher})
    same(encoder, theirs, 224)
    assert told["layout"] == "RETFound-DINOv2"


@pytest.mark.parametrize("side", [224, 112])
def test_a_fine_tuned_retfound_dinov2_under_timms_names_gives_timms_features(tmp_path, shallow, side):
    theirs = dino(224, **TINY)
    head = {"head.weight": torch.zeros(5, 48), "head.bias": torch.zeros(5)}
    encoder, told = loaded(tmp_path, "retfound_dinov2", {"model": {**random_state(theirs), **head}})
    same(encoder, theirs, side)
    assert (told["layout"], told["sets"]) == ("timm, ViT-L/14 at 224 px", [])
    assert "CC BY-NC 4.0 stays" in told["licence"]


def test_a_dinov2_of_another_size_is_not_taken_for_retfounds(tmp_path, shallow):
    with pytest.raises(SettingsError, match=r"stages\.0\.pos_embed has shape"):
        loaded(tmp_path, "retfound_dinov2", random_state(dino(518, **TINY)))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_retfound_green_gives_the_features_of_its_authors_snippet(tmp_path, shallow, suffix):
    """They build timm's `vit_small_patch14_reg4_dinov2` and set `global_pool` afterwards: the LayerNorm comes first."""
    theirs = dino(392, reg_tokens=4, no_embed_class=True, **TINY)
    theirs.global_pool = "avg"
    encoder, told = loaded(tmp_path, "retfound_green", random_state(theirs), suffix)
    same(encoder, theirs, 392)
    assert (told["normalisation"], told["sets"]) == ("half", ["ddr", "odir5k"])


@pytest.mark.parametrize("name", ["dinov2_small", "dinov2_base", "dinov2_large"])
@pytest.mark.parametrize("meta", [False, True])
def test_dinov2_by_metas_file_and_by_timms(tmp_path, shallow, name, meta):
    theirs = dino(518, **TINY)
    state = random_state(theirs)
    if meta:
        state["mask_token"] = torch.zeros(1, 48)
    encoder, told = loaded(tmp_path, name, state)
    same(encoder, theirs, 224)
    assert (told["layout"], told["licence"], told["notes"]) == ("DINOv2", "Apache-2.0", [])


@pytest.mark.slow
def test_the_real_sizes_are_timms():
    for name, theirs in [
        ("retfound_mae", "vit_large_patch16_224"),
        ("retfound_dinov2", "vit_large_patch14_dinov2"),
        ("retfound_green", "vit_small_patch14_reg4_dinov2"),
        ("dinov2_small", "vit_small_patch14_dinov2"),
        ("dinov2_base", "vit_base_patch14_dinov2"),
        ("dinov2_large", "vit_large_patch14_dinov2"),
        ("swinv2_tiny", "swinv2_tiny_window8_256"),
        ("convnext_tiny", "convnext_tiny"),
    ]:
        traits = EncoderTraits.choices()[name]
        more = {"img_size": traits.side} if traits.positions else {}
        with torch.device("meta"):
            whole, mine = timm.create_model(theirs, num_classes=0, **more), build_encoder(name)
        assert sorted(map(tuple, (p.shape for p in mine.parameters()))) == sorted(
            map(tuple, (p.shape for p in whole.parameters()))
        ), name


@pytest.mark.slow  # of its true size, as ConvNeXt
@pytest.mark.parametrize(("form", "side"), [(dict, 256), (microsofts, 192)])
def test_swinv2_gives_timms_features(tmp_path, form, side):
    theirs = swin_transformer_v2.swinv2_tiny_window8_256(num_classes=0, strict_img_size=False).eval()
    encoder, _ = loaded(tmp_path, "swinv2_tiny", form(random_state(theirs)))
    same(encoder, theirs, side)


@pytest.mark.slow
@pytest.mark.parametrize("form", [dict, metas])
def test_convnext_gives_timms_features(tmp_path, form):
    theirs = convnext.convnext_tiny(num_classes=0).eval()
    encoder, _ = loaded(tmp_path, "convnext_tiny", form(random_state(theirs)))
    same(encoder, theirs, 96)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("resnet18", "resnet18"),
        ("resnet50", "resnet50"),
        ("mobilenet_v2", "mobilenetv2_100"),
        ("efficientnet_b0", "efficientnet_b0"),
        ("efficientnet_b4", "efficientnet_b4"),
        ("efficientnet_lite0", "tf_efficientnet_lite0"),
    ],
)
def test_timms_file_of_a_network_that_is_built_here_gives_timms_features(tmp_path, lively, name, theirs):
    source = lively(timm.create_model(theirs, num_classes=10)).eval()
    encoder, told = loaded(tmp_path, name, source.state_dict())
    source.reset_classifier(0)
    same(encoder, source, 97)
    assert told["layout"] in ("timm", "torchvision or timm")


BUILDERS = {
    "retfound_green": lambda: dino(392, reg_tokens=4, no_embed_class=True, **TINY),
    "dinov2_small": lambda: dino(518, **TINY),
    "swinv2_tiny": lambda: swin_transformer_v2.swinv2_tiny_window8_256(num_classes=0),
    "convnext_tiny": lambda: convnext.convnext_tiny(num_classes=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_every_key_is_accounted_for(tmp_path, shallow, name):
    state = BUILDERS[name]().state_dict()
    with pytest.raises(SettingsError, match="1 are left over"):
        loaded(tmp_path, name, {**state, "stranger.weight": torch.zeros(1)})
    last = list(state)[-1]
    with pytest.raises(SettingsError, match="1 of its"):
        loaded(tmp_path, name, {key: value for key, value in state.items() if key != last})


@pytest.mark.parametrize("name", NEW)
def test_each_starts_by_the_seed_and_agrees_with_itself_without_memory(shallow, name):
    settings = NetworkSettings(encoder=name, head={"layout": "linear"}, exits={"width": 8})
    net, again, bare = build_network(settings, 3, 1), build_network(settings, 5, 1), build_on_meta(settings, 3)
    start = net.encoder.state_dict()
    assert all(torch.equal(value, start[key]) for key, value in again.encoder.state_dict().items())
    assert [(k, v.shape, v.dtype) for k, v in net.state_dict().items()] == [
        (k, v.shape, v.dtype) for k, v in bare.state_dict().items()
    ]
    x = images(EncoderTraits.choices()[name].patch * 2).clamp(0, 1)
    maps = net.encoder.forward_stages(net.normalised(x))
    assert [m.shape[1] for m in maps] == list(net.encoder.widths)
    assert net(x).shape == (2, 5, 3)
    net(x).square().sum().backward()
    assert not [key for key, one in net.named_parameters() if one.grad is None or not one.grad.isfinite().all()]


@pytest.mark.parametrize("name", ["retfound_mae", "retfound_green", "dinov2_large", "swinv2_tiny", "convnext_tiny"])
@pytest.mark.parametrize("frozen", [2, "all"])
def test_frozen_stages_answer_as_those_that_train(shallow, name, frozen):
    settings = {"encoder": name, "head": {"layout": "linear"}, "exits": {"width": 8}}
    plain, held = (
        build_network(NetworkSettings(**settings, **more), 3, seed=1).eval() for more in ({}, {"frozen": frozen})
    )
    x = images(EncoderTraits.choices()[name].patch * 2).clamp(0, 1)
    stored = held.frozen_outputs(x)
    torch.testing.assert_close(held(stored), plain(x), rtol=1e-2, atol=1e-2)  # stored in float16
    held.train()(stored).square().sum().backward()
    trained = {key for key, one in held.encoder.named_parameters() if one.grad is not None}
    begins = tuple(f"stages.{stage}." for stage in range(2))
    keys = {key for key, _ in held.encoder.named_parameters()}
    assert trained == (set() if frozen == "all" else {key for key in keys if not key.startswith(begins)})


def test_an_exit_of_a_vision_transformer_reads_the_patches_alone(shallow):
    encoder = build_encoder("dinov2_large").eval()
    seen = encoder.forward_stages(images(28))[2]
    assert seen.shape == (2, 48, 1, 5)
    torch.testing.assert_close(encoder.average(seen), seen[:, :, 0, 1:].mean(2))
    net = build_network(NetworkSettings(encoder="dinov2_large", exits={"after": (2,), "width": 8}), 3, seed=1).eval()
    with torch.no_grad():
        x = images(28).clamp(0, 1)
        seen = net.encoder.forward_stages(net.normalised(x))[2]
        torch.testing.assert_close(net(x)[:, 0], net.exits[0](seen[:, :, 0, 1:].mean(2)))


def test_an_image_that_is_no_whole_number_of_patches_is_refused(shallow):
    for name in ("dinov2_large", "swinv2_tiny"):
        with pytest.raises(TrainingError, match="to a multiple of"):
            build_encoder(name)(images(45))


def test_the_page_names_every_encoder_and_every_form():
    page = (CUSTOM.parent / "docs" / "encoders.md").read_text(encoding="utf-8")
    ours = [name for name, one in EncoderTraits.choices().items() if one.__module__.startswith("fedretina.")]
    for name in ours:
        assert f"`{name}`" in page
        for layout in layouts_of(name):
            assert layout.title in page, layout.title
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]] or [
            ""
        ]
        assert bool(row) == bool(layouts_of(name)), name
        if row:
            assert row.split("|")[4].strip() == str(EncoderTraits.choices()[name].side), name


def test_no_code_of_the_product_can_ask_a_hub_for_weights():
    """Nowhere `create_model`, `torch.hub`, an argument that is not `pretrained=False` or `weights=None`."""
    for path in sorted((CUSTOM / "fedretina").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "pretrained":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
            if isinstance(node, ast.Attribute | ast.Name | ast.alias):
                name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
                assert name not in ("create_model", "hub", "load_state_dict_from_url", "hf_hub_download"), path
                assert not name.startswith("huggingface_hub"), path


def test_building_every_encoder_opens_no_connection(monkeypatch):
    def refused(*arguments, **more):
        pytest.fail("an encoder asked the network for something")

    monkeypatch.setattr("socket.socket.connect", refused)
    monkeypatch.setattr("timm.models._builder.load_pretrained", refused)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refused)
    for name in EncoderTraits.choices():
        with torch.device("meta"):
            build_encoder(name)
    assert RetFoundMaeTraits.side == 224
