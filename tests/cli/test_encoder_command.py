"""`fedretina encoder check`: what it says of a file, and its exit code."""

import argparse
import hashlib
import json

import pytest
import torch
from click.testing import CliRunner
from timm.models.vision_transformer import VisionTransformer
from torchvision.models import resnet18

from fedretina.cli import main
from fedretina.networks.encoder_check import check_weights
from fedretina.networks.encoder_file import export_encoder
from fedretina.networks.layout import layouts_of
from fedretina.networks.resnet import resnet18_encoder
from fedretina.settings.encoder import EncoderTraits


def asked(*words):
    done = CliRunner().invoke(main, ["encoder", "check", *map(str, words)])
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    """RETFound-Green's form, at its real size."""
    net = VisionTransformer(
        img_size=392, patch_size=14, embed_dim=384, depth=12, num_heads=6, init_values=1e-5, num_classes=0,
        reg_tokens=4, no_embed_class=True,
    )  # fmt: skip
    file = tmp_path_factory.mktemp("green") / "retfoundgreen_statedict.pth"
    torch.save(net.state_dict(), file)
    return file


def test_a_file_is_told_with_all_that_a_federation_must_know(green):
    code, said = asked(green)
    assert code == 0
    counted = CliRunner().invoke(main, ["--json-lines", "encoder", "check", str(green)]).stderr.splitlines()
    lines, many = [json.loads(line) for line in counted], len(EncoderTraits.choices())
    assert (lines[0], lines[-1]) == tuple({"what": "encoders", "done": done, "of": many} for done in (0, many))
    digest = hashlib.sha256(green.read_bytes()).hexdigest()
    for words in (
        f"sha256          {digest}",
        "form            RETFound-Green",
        "images          made for 392 px; takes multiples of 14 px; positions are those of 392 px",
        "normalisation   half",
        "none in a project with industry involved",
        "public sets     ddr, odir5k",
        f"network: {{encoder: retfound_green, weights: {{source: file, sha256: {digest}}}}}",
    ):
        assert words in said
    code, said = asked(green, "--encoder", "dinov2_small", "--json")
    told = json.loads(said)
    assert (code, told["whole"], told["left_over"]) == (1, False, ["reg_token"])
    assert told["other_shape"] == ["stages.0.pos_embed: (1, 784, 384), needed (1, 1370, 384)"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet50", "made for 224 px; takes any size"),
        ("efficientnet_b4", "made for 380 px; takes any size"),
        ("efficientnet_lite0", "made for 224 px; takes any size"),
        ("swinv2_tiny", "made for 256 px; takes multiples of 32 px"),
        ("convnext_tiny", "made for 224 px; takes multiples of 32 px"),
        (
            "retfound_mae",
            "made for 224 px; takes multiples of 16 px; positions are those of 224 px, resampled for others",
        ),
    ],
)
def test_the_size_of_the_images_that_the_weights_are_made_for_is_told(tmp_path, name, said):
    """A file needs no more than the marks of a form to be told what it is meant for."""
    for number, layout in enumerate(layouts_of(name)):
        marks = {*layout.marks, *(["fc_norm.weight"] if name == "retfound_mae" else [])}
        file = tmp_path / f"{number}.pth"
        torch.save({mark: torch.zeros(1) for mark in marks}, file)
        code, told = asked(file, "--encoder", name)
        assert (code, f"form            {layout.title}\n" in told) == (1, True)
        assert f"images          {said}\n" in told
        side = int(said.split()[2])
        found = json.loads(asked(file, "--encoder", name, "--json")[1])
        assert (found["side"], found["positions"]) == (side, side if "positions" in said else None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("layer2.0.conv1.weight"), "missing         stages.2.0.conv1.weight"),
        (lambda s: s.update(stranger=torch.zeros(1)), "left over       stranger"),
        (
            lambda s: s.update({"conv1.weight": torch.zeros(64, 1, 7, 7)}),
            "another shape   stages.0.0.weight: (64, 1, 7, 7)",
        ),
        (lambda s: s["conv1.weight"].fill_(torch.nan), "not finite      stages.0.0.weight"),
        (lambda s: s.pop("conv1.weight"), "It has none of the forms that the product knows"),
    ],
)
def test_what_keeps_a_file_from_being_loaded_is_named_and_the_code_is_1(tmp_path, change, said):
    state = resnet18(weights=None).state_dict()
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    code, told = asked(tmp_path / "weights.pth")
    assert code == 1
    assert said in told


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (384,), (1370, 384), (1, 1, 384), (1, 0, 384), (0, 26, 384), (2, 26, 384), (1, 26, 0), (1, 26, 384, 1)],
)
def test_positions_of_a_shape_that_cannot_be_is_named_and_the_code_is_1(tmp_path, shape):
    """What a form changes before it compares must not meet a damaged tensor half way."""
    marks = {"cls_token": torch.zeros(1, 1, 384), "patch_embed.proj.weight": torch.zeros(384, 3, 14, 14)}
    file = tmp_path / "weights.pth"
    torch.save({**marks, "pos_embed": torch.zeros(shape)}, file)
    for name in ("dinov2_small", "retfound_green"):
        assert asked(file, "--encoder", name)[0] == 1
    code, told = asked(file, "--encoder", "dinov2_small", "--json")
    assert (code, json.loads(told)["other_shape"]) == (1, [f"stages.0.pos_embed: {shape}, needed (1, 1370, 384)"])


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_plain_numbers_are_refused(tmp_path, kind):
    state = resnet18(weights=None).state_dict()
    plain = state["conv1.weight"]
    state["conv1.weight"] = plain.to_sparse() if kind == "sparse" else plain.to("meta")
    torch.save(state, tmp_path / "weights.pth")
    code, told = asked(tmp_path / "weights.pth")
    assert code == 2
    assert "not a plain state dict" in told


def test_a_checkpoint_is_unwrapped_and_its_classifier_left_out(tmp_path):
    content = {"model": resnet18(weights=None).state_dict(), "args": argparse.Namespace(lr=0.1), "epoch": 3}
    torch.save(content, tmp_path / "checkpoint.pth")
    code, told = asked(tmp_path / "checkpoint.pth")
    assert code == 0
    assert "the weights are under 'model'" in told
    assert "encoder         resnet18" in told
    assert "left out        fc.weight, fc.bias" in told


def test_an_encoder_that_a_run_exported_says_where_it_comes_from(tmp_path):
    file = tmp_path / "encoder.safetensors"
    export_encoder(file, "resnet18", resnet18_encoder().state_dict(), "none", "moco, 3 rounds, run x")
    code, told = asked(file)
    assert code == 0
    assert "pre-trained on  moco, 3 rounds, run x" in told
    assert "images          its owner must say for which size; takes any size" in told
    assert "before that run" not in told
    code, told = asked(file, "--encoder", "resnet50")
    assert (code, "it is no resnet50" in told) == (1, True)


def test_an_exported_encoder_says_what_its_run_began_with(tmp_path):
    file = tmp_path / "encoder.safetensors"
    learned = {"pretrained_on": "fundus photographs", "sets": ["eyepacs", "kermany"], "licence": "CC BY-NC 4.0"}
    export_encoder(file, "resnet18", resnet18_encoder().state_dict(), "none", "moco, 3 rounds, run x", learned)
    code, told = asked(file)
    assert code == 0
    assert "pre-trained on  moco, 3 rounds, run x; before that run: fundus photographs" in told
    assert "and of what the run itself began with: CC BY-NC 4.0" in told
    assert "public sets     eyepacs, kermany: figures on them may be too good" in told


class Trigger:
    fired = False

    def __reduce__(self):
        return setattr, (Trigger, "fired", True)


@pytest.mark.attack("an outsider", "a file of weights whose unpickling runs code", "it is refused and nothing runs")
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_that_would_run_code_is_refused(tmp_path):
    torch.save({"model": {"conv1.weight": torch.zeros(1)}, "args": Trigger()}, tmp_path / "weights.pth")
    code, told = asked(tmp_path / "weights.pth")
    assert (code, Trigger.fired) == (2, False)
    assert "cannot be unpacked" in told


def test_an_unknown_encoder_is_told(green):
    code, told = asked(green, "--encoder", "vit_huge")
    assert (code, "there is no encoder 'vit_huge'" in told) == (2, True)
    assert check_weights(green).whole
