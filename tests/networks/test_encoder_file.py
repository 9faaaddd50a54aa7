import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save, save_file

from fedretina.errors import SettingsError, StateError
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.encoder import build_encoder
from fedretina.networks.encoder_file import export_encoder, load_exported, read_header
from fedretina.networks.weights import load_encoder_weights
from fedretina.settings.network import NetworkSettings, WeightsSettings

WORDS = "run pretrain-1, phase pretrain, round 100"
OWN = ("resnet18", "efficientnet_lite0", "mobilenet_v2", "efficientnet_b0", "vit_small", "signal_cnn")
NAME = "mobilenet_v2"


def of_file(path, digest=None):
    return WeightsSettings(source="file", file=path, sha256=digest or hashlib.sha256(path.read_bytes()).hexdigest())


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(v, two[k]) for k, v in one.items())


@pytest.fixture(scope="module")
def trained():
    """An encoder whose counters, statistics and weights are all not at their start."""
    net = build_network(NetworkSettings(encoder=NAME), 3, seed=5).train()
    with torch.no_grad():
        net(torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return net


def refusal(path, name=NAME):
    encoder = build_encoder(name)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    with pytest.raises(SettingsError) as caught:
        load_encoder_weights(name, encoder, of_file(path))
    assert equal(encoder.state_dict(), before)
    assert path.name not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_exported_is_loaded(tmp_path, trained, whole):
    path = tmp_path / "encoder.safetensors"
    state = trained.state_dict() if whole else trained.encoder.state_dict()
    digest = export_encoder(path, NAME, state, "none", WORDS)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    encoder = build_encoder(NAME)
    provenance = load_encoder_weights(NAME, encoder, of_file(path, digest))
    assert provenance == {"source": "file", "sha256": digest, "normalisation": "none", "words": WORDS}
    assert equal(encoder.state_dict(), trained.encoder.state_dict())
    with safe_open(path, framework="pt") as handle:
        assert handle.metadata() == {
            "fedretina": "encoder",
            "encoder": NAME,
            "normalisation": "none",
            "provenance": WORDS,
        }
        assert set(handle.keys()) == set(trained.encoder.state_dict())


LEARNED = {"pretrained_on": "ImageNet, then fundus photographs", "sets": ["ddr", "eyepacs"], "licence": "CC BY-NC 4.0"}


@pytest.mark.parametrize("sets", [LEARNED["sets"], []])
def test_what_the_run_began_with_travels_with_the_file(tmp_path, trained, sets):
    path, learned = tmp_path / "encoder.safetensors", {**LEARNED, "sets": sets}
    start = {"source": "file", "sha256": "a" * 64, "normalisation": "half", "words": "an older run", **learned}
    digest = export_encoder(path, NAME, trained.state_dict(), "none", WORDS, start)
    provenance = load_encoder_weights(NAME, build_encoder(NAME), of_file(path, digest))
    assert provenance == {"source": "file", "sha256": digest, "normalisation": "none", "words": WORDS, **learned}


@pytest.mark.parametrize("name", OWN)
def test_every_encoder_has_such_a_file(tmp_path, name):
    encoder = build_encoder(name)
    state = {k: v.clone() for k, v in encoder.state_dict().items()}
    path = tmp_path / "encoder.safetensors"
    digest = export_encoder(path, name, state, "imagenet", WORDS)
    for value in encoder.state_dict().values():
        value.zero_()
    assert load_encoder_weights(name, encoder, of_file(path, digest))["normalisation"] == "imagenet"
    assert equal(encoder.state_dict(), state)


def test_equal_weights_give_equal_bytes(tmp_path, trained):
    """The library alone writes the words of the header in a new order each time."""
    words = {"fedretina": "encoder", "encoder": NAME, "normalisation": "half", "provenance": WORDS}
    assert len({save({"a": torch.zeros(1)}, words) for _ in range(30)}) > 1
    path = tmp_path / "encoder.safetensors"
    assert len({export_encoder(path, NAME, trained.state_dict(), "half", WORDS) for _ in range(6)}) == 1
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert list(header) == sorted(header)
    assert list(header["__metadata__"]) == sorted(words)
    assert len(load(content)) == len(header) - 1


def test_the_file_says_how_images_are_normalised_unless_the_settings_do(tmp_path, trained):
    path = tmp_path / "encoder.safetensors"
    weights = of_file(path, export_encoder(path, NAME, trained.state_dict(), "none", WORDS))
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    auto = build_network(NetworkSettings(encoder=NAME, weights=weights), 2, seed=0)
    assert (auto.normalisation, auto.provenance["words"]) == ("none", WORDS)
    assert torch.equal(auto.normalised(x), x)
    chosen = build_network(NetworkSettings(encoder=NAME, weights=weights, normalise="half"), 2, seed=0)
    assert chosen.normalisation == "half"
    torch.testing.assert_close(chosen.normalised(x), 2 * x - 1)
    absent = weights.model_copy(update={"file": None})
    meta = build_on_meta(NetworkSettings(encoder=NAME, weights=absent))
    assert meta.state_dict().keys() == build_on_meta(NetworkSettings(encoder=NAME)).state_dict().keys()


def test_head_and_projector_start_as_without_the_file(tmp_path, trained):
    path = tmp_path / "encoder.safetensors"
    weights = of_file(path, export_encoder(path, NAME, trained.state_dict(), "none", WORDS))
    plain, loaded = (
        build_network(NetworkSettings(encoder=NAME, projector=8, weights=w), 2, seed=3)
        for w in (WeightsSettings(), weights)
    )
    for part in ("head", "projector"):
        assert equal(getattr(plain, part).state_dict(), getattr(loaded, part).state_dict())


def test_keys_may_have_the_networks_prefix(tmp_path, trained):
    words = {"fedretina": "encoder", "encoder": NAME, "normalisation": "half", "provenance": WORDS}
    state = {f"encoder.{k}": v for k, v in trained.encoder.state_dict().items()}
    path = tmp_path / "weights.safetensors"
    save_file(state, path, words)
    encoder = build_encoder(NAME)
    load_encoder_weights(NAME, encoder, of_file(path))
    assert equal(encoder.state_dict(), trained.encoder.state_dict())
    state["stages.0.0.weight"] = state.pop("encoder.stages.0.0.weight")
    save_file(state, path, words)
    assert "do not fit" in refusal(path)


def test_a_file_of_another_architecture_is_refused(tmp_path, trained):
    path = tmp_path / "encoder.safetensors"
    export_encoder(path, NAME, trained.state_dict(), "none", WORDS)
    message = refusal(path, "resnet18")
    assert "mobilenet_v2" in message
    assert "resnet18" in message


@pytest.mark.parametrize(
    "words",
    [
        {"encoder": "patient-17"},
        {"normalisation": "patient-17"},
        {"normalisation": None},
        {"provenance": None},
        {"encoder": None},
    ],
)
def test_words_that_are_not_understood_are_refused_and_not_repeated(tmp_path, trained, words):
    whole = {"fedretina": "encoder", "encoder": NAME, "normalisation": "half", "provenance": WORDS} | words
    path = tmp_path / "weights.safetensors"
    save_file(trained.encoder.state_dict(), path, {k: v for k, v in whole.items() if v is not None})
    message = refusal(path)
    assert "export it again" in message
    assert "patient" not in message


def test_a_whole_model_is_told_from_an_exported_encoder(tmp_path, trained):
    path = tmp_path / "weights.safetensors"
    save_file(trained.state_dict(), path, {"fedretina": json.dumps({"format": 1})})
    assert "export its encoder" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"1234", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]"])
def test_bytes_of_another_kind_have_no_header(data):
    assert read_header(data) is None


def test_published_files_have_no_header():
    tensors = {"a": torch.zeros(2)}
    assert read_header(save(tensors)) is None
    assert read_header(save(tensors, {"format": "pt"})) is None


def test_an_encoder_without_its_batchnorm_is_not_exported(tmp_path, trained):
    path = tmp_path / "encoder.safetensors"
    state = {k: v for k, v in trained.encoder.state_dict().items() if "running" not in k}
    with pytest.raises(SettingsError, match="BatchNorm that stays at the sites"):
        export_encoder(path, NAME, state, "half", WORDS)
    broken = {k: v.clone() for k, v in trained.encoder.state_dict().items()}
    broken["stages.0.0.weight"][0] = torch.nan
    with pytest.raises(SettingsError, match="not finite"):
        export_encoder(path, NAME, broken, "half", WORDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("provenance", ["", "  ", "x" * 1001])
def test_an_export_says_where_it_comes_from(tmp_path, trained, provenance):
    with pytest.raises(SettingsError, match="1 to 1000"):
        export_encoder(tmp_path / "e.safetensors", NAME, trained.state_dict(), "half", provenance)


def test_an_export_is_safetensors(tmp_path, trained):
    with pytest.raises(SettingsError, match="safetensors"):
        export_encoder(tmp_path / "e.pth", NAME, trained.state_dict(), "half", WORDS)


def test_an_export_that_fails_leaves_the_old_file(tmp_path, trained):
    path = tmp_path / "e.safetensors"
    path.mkdir()
    with pytest.raises(StateError, match="not saved"):
        export_encoder(path, NAME, trained.state_dict(), "half", WORDS)
    assert [p.name for p in tmp_path.iterdir()] == ["e.safetensors"]


def test_global_generators_are_left_alone(tmp_path, trained):
    before = torch.get_rng_state()
    export_encoder(tmp_path / "e.safetensors", NAME, trained.state_dict(), "half", WORDS)
    assert torch.equal(torch.get_rng_state(), before)


def test_load_exported_checks_the_name_before_it_touches_the_encoder(trained):
    header = read_header(
        save(
            {"a": torch.zeros(1)},
            {"fedretina": "encoder", "encoder": NAME, "normalisation": "half", "provenance": WORDS},
        )
    )
    encoder = build_encoder("resnet18")
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    with pytest.raises(SettingsError, match=r"network\.encoder"):
        load_exported("resnet18", encoder, header, trained.encoder.state_dict())
    assert equal(encoder.state_dict(), before)
