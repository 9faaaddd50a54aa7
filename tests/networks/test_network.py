import copy

import pytest
import torch
from pydantic import ValidationError

from fedretina.errors import SettingsError, TrainingError
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.encoder import build_encoder, encoder
from fedretina.networks.network import Network
from fedretina.settings.encoder import EncoderTraits, ResNet50Traits
from fedretina.settings.network import NetworkSettings

NAMES = (
    "resnet18",
    "resnet50",
    "efficientnet_lite0",
    "mobilenet_v2",
    "efficientnet_b0",
    "efficientnet_b4",
    "vit_small",
    "signal_cnn",
)
LITE = NetworkSettings(encoder="efficientnet_lite0")


def equal(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(v, two[k]) for k, v in one.items())


def images(n=4, side=32):
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_the_choices_and_the_builders_agree():
    assert tuple(EncoderTraits.choices())[: len(NAMES)] == NAMES
    assert all(NetworkSettings(encoder=name).encoder == name for name in NAMES)


@pytest.mark.parametrize("encoder", NAMES)
def test_encoders_start_alike_whatever_the_grades(encoder):
    four, six = (build_network(NetworkSettings(encoder=encoder), k, seed=3) for k in (4, 6))
    assert equal(four.encoder, six.encoder)
    assert torch.equal(four.head[0].weight, six.head[0].weight)
    assert four.head[3].weight.shape == (4, 512)
    assert six.head[3].weight.shape == (6, 512)


def test_the_seed_decides_and_nothing_else():
    torch.manual_seed(11)
    one = build_network(LITE, 5, seed=3)
    torch.manual_seed(12)
    assert equal(one, build_network(LITE, 5, seed=3))
    other = build_network(LITE, 5, seed=4)
    assert not equal(one.encoder, other.encoder)
    assert not equal(one.head, other.head)


def test_the_head_does_not_depend_on_the_draws_of_the_encoder(monkeypatch):
    def thirstier():
        built = build_encoder("resnet18")
        torch.rand(1000)
        return built

    one = build_network(NetworkSettings(), 5, seed=3)
    build_encoder("resnet50")  # so that it is registered
    monkeypatch.setitem(encoder._parts, ResNet50Traits, thirstier)
    two = build_network(NetworkSettings(encoder="resnet50"), 5, seed=3)
    assert equal(one, two)


def test_global_generators_are_left_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    build_network(LITE, 5, seed=3)
    build_on_meta(LITE)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("encoder", NAMES)
def test_state_holds_encoder_and_head_only(encoder):
    net = build_on_meta(NetworkSettings(encoder=encoder), 5)
    assert {key.partition(".")[0] for key in net.state_dict()} == {"encoder", "head"}


@pytest.mark.parametrize("encoder", NAMES)
def test_meta_agrees_with_the_real_network(encoder):
    settings = NetworkSettings(encoder=encoder)
    real, meta = build_network(settings, 4, seed=0), build_on_meta(settings, 4)
    assert all(t.is_meta for t in (*meta.parameters(), *meta.buffers()))
    assert [(k, v.shape, v.dtype) for k, v in real.state_dict().items()] == [
        (k, v.shape, v.dtype) for k, v in meta.state_dict().items()
    ]
    assert [(n, type(m)) for n, m in real.named_modules()] == [(n, type(m)) for n, m in meta.named_modules()]


def test_meta_needs_no_weights():
    absent = {"source": "file", "file": "absent.pth", "sha256": "0" * 64}
    settings = NetworkSettings(encoder="resnet18", weights=absent)
    net = build_on_meta(settings)
    assert net.provenance is None
    assert net.normalisation == "imagenet"


@pytest.mark.parametrize("encoder", NAMES)
def test_gradients_reach_every_parameter(encoder):
    net = build_network(NetworkSettings(encoder=encoder), 4, seed=0).train()
    torch.nn.functional.cross_entropy(net(images(side=64)), torch.tensor([0, 1, 2, 3])).backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert torch.isfinite(p.grad).all(), name
    assert next(net.encoder.stages[0].parameters()).grad.abs().max() > 0


def test_training_moves_statistics_and_evaluation_does_not():
    net = build_network(LITE, 4, seed=0)
    start = copy.deepcopy(net)
    net.eval()
    with torch.no_grad():
        alone, together = net(images()[:1]), net(images())[:1]
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    assert equal(net, start)
    net.train()(images())
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, start.state_dict()[k])}
    assert moved
    assert all(k.endswith(("running_mean", "running_var", "num_batches_tracked")) for k in moved)


def test_forward_is_head_of_features():
    net = build_network(LITE, 4, seed=0).eval()
    with torch.no_grad():
        features = net.features(images())
        assert features.shape == (4, 1280)
        torch.testing.assert_close(net(images()), net.head(features))


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [
        ("none", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_normalisation_by_channel(normalise, mean, std):
    net = build_network(NetworkSettings(encoder="efficientnet_lite0", normalise=normalise), 2, seed=0)
    x = images()
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(net.normalised(x), expected)


def test_auto_normalises_as_the_weights_were_trained():
    def used(**settings):
        return build_on_meta(NetworkSettings(**settings)).normalisation

    file = {"source": "file", "file": "w.pth", "sha256": "0" * 64}
    assert used(encoder="resnet50") == "half"
    assert used(encoder="resnet50", weights=file) == "imagenet"
    assert used(encoder="efficientnet_b4", weights=file) == "imagenet"
    assert used(encoder="efficientnet_lite0", weights=file) == "half"
    assert used(encoder="efficientnet_lite0", weights={"source": "package"}) == "half"
    assert used(encoder="resnet50", weights=file, normalise="none") == "none"


def test_channels_last_survives_normalisation_and_changes_little():
    net = build_network(NetworkSettings(), 3, seed=0).eval()
    x = images().to(memory_format=torch.channels_last)
    assert net.normalised(x).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        plain = net(images())
        torch.testing.assert_close(net.to(memory_format=torch.channels_last)(x), plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, 1, 32, 32), torch.zeros(3, 32, 32)]
)
def test_images_of_another_form_are_refused(x):
    with pytest.raises(TrainingError, match=r"\[B, 3, H, W\]"):
        build_network(LITE, 2, seed=0)(x)


def test_provenance_is_kept():
    settings = NetworkSettings(encoder="efficientnet_lite0", weights={"source": "package"})
    one, two = build_network(settings, 4, seed=0), build_network(settings, 4, seed=1)
    assert isinstance(one, Network)
    assert one.provenance["source"] == "package"
    assert equal(one.encoder, two.encoder)
    assert not equal(one.head, two.head)


def test_settings_are_checked():
    with pytest.raises(ValidationError, match="resnet18"):
        NetworkSettings(encoder="resnet18", weights={"source": "package"})
    with pytest.raises(ValidationError):
        NetworkSettings(encoder="vgg16")
    with pytest.raises(SettingsError, match="seed"):
        build_network(LITE, 2, seed=-1)
    with pytest.raises(SettingsError, match="grades"):
        build_on_meta(LITE, 1)


def test_settings_survive_json():
    settings = NetworkSettings(encoder="resnet50", normalise="none", head={"layout": "linear"})
    assert NetworkSettings.model_validate_json(settings.model_dump_json()) == settings
