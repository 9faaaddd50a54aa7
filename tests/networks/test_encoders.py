"""What holds for every encoder: size, as the OCT paper prints it, precision and layout."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model_weights

from fedretina.errors import SettingsError
from fedretina.networks.encoder import build_encoder
from fedretina.networks.layout import layouts_of
from fedretina.settings.encoder import EncoderTraits
from fedretina.settings.experiment import Experiment

TABLE_9 = {  # of the OCT paper: millions of weights, 1e9 operations
    "resnet18": (11.7, 1.8),
    "resnet50": (25.6, 4.1),
    "mobilenet_v2": (3.5, 0.3),
    "efficientnet_b0": (5.3, 0.4),
    "efficientnet_b4": (19.3, 4.2),
    "vit_small": (22.0, 4.6),
}
CLASSES = 1000


def test_the_table_and_the_names_agree():
    # Another test of this process may have brought an encoder of another package.
    traits = {name: one for name, one in EncoderTraits.choices().items() if one.__module__.startswith("fedretina.")}
    for name, one in traits.items():
        with torch.device("meta"):
            encoder = build_encoder(name)
        assert set(one.exits) <= set(range(len(encoder.widths))), name
        assert bool(layouts_of(name)) == (one.normalisation is not None) == (one.side is not None), name
        assert one.side is None or one.side % one.patch == 0, name
        assert one.positions == ("stages.0.pos_embed" in encoder.state_dict()), name
    assert {name for name in traits if not layouts_of(name)} == {"vit_small", "signal_cnn"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"network": {"encoder": "resnet19"}}, "there is no encoder 'resnet19': use one of resnet18, resnet50, "),
        ({"network": {"encoder": "signal_cnn"}}, "takes signals, one row of samples, but images.modality is 'fundus'"),
        ({"network": {"encoder": "vit_small"}, "images": {"image_size": 250}}, "patches of 16 pixels, but"),
        (
            {"network": {"encoder": "swinv2_tiny"}, "images": {"image_size": 250}},
            "images.image_size is 250: choose a multiple; its published weights are made for 256",
        ),
        ({"network": {"weights": {"source": "package"}}}, "exists for efficientnet_lite0 only"),
    ],
)
def test_what_an_encoder_cannot_do_is_refused_before_torch_is_loaded(words, said):
    with pytest.raises(SettingsError, match=said):
        Experiment.resolve(words)


@pytest.mark.parametrize("name", TABLE_9)
def test_weights_are_those_of_table_9_with_a_classifier_for_imagenet(name):
    with torch.device("meta"):
        encoder = build_encoder(name)
    weights = sum(p.numel() for p in encoder.parameters())
    with_classifier = weights + (encoder.features + 1) * CLASSES
    assert round(with_classifier / 1e6, 1) == TABLE_9[name][0]
    assert round(weights / 1e6, 1) < TABLE_9[name][0]


@pytest.mark.parametrize("name", TABLE_9)
def test_operations_are_those_of_table_9(name):
    """At 224 px, but EfficientNet-B4, which comes near at 380 px (4.4) and has 1.5 at 224: the paper says neither."""
    side = 380 if name == "efficientnet_b4" else 224
    with torch.device("meta"), torch.no_grad():
        encoder = build_encoder(name).eval()
        with FlopCounterMode(display=False) as counter:
            encoder(torch.zeros(1, 3, side, side))
    operations = counter.get_total_flops() / 2 / 1e9  # a multiplication and an addition count as one
    assert operations == pytest.approx(TABLE_9[name][1], abs=0.21 if name == "efficientnet_b4" else 0.051)


@pytest.mark.parametrize("name", TABLE_9)
def test_bfloat16_and_channels_last_train(name):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        encoder = build_encoder(name).train().to(memory_format=torch.channels_last)
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        maps = encoder.forward_stages(x)
        loss = encoder(x).square().mean()
    assert [m.shape[1] for m in maps] == list(encoder.widths)
    assert all(m.isfinite().all() for m in maps)
    loss.backward()
    for key, weight in encoder.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key


OF_TORCHVISION = [(name, name) for name in (*TABLE_9, "convnext_tiny") if name != "vit_small"]


@pytest.mark.parametrize(("name", "theirs"), [*OF_TORCHVISION, ("swinv2_tiny", "swin_v2_t")])
def test_size_and_normalisation_of_the_images_are_those_that_torchvision_names(name, theirs):
    traits = EncoderTraits.choices()[name]
    for weights in get_model_weights(theirs):
        transform = weights.transforms()
        assert (transform.mean, transform.std) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        assert transform.crop_size == [traits.side]
    assert traits.normalisation == "imagenet"


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("efficientnet_lite0", "tf_efficientnet_lite0"),
        ("swinv2_tiny", "swinv2_tiny_window8_256"),
        ("convnext_tiny", "convnext_tiny"),
        ("dinov2_small", "vit_small_patch14_dinov2"),
        ("dinov2_base", "vit_base_patch14_dinov2"),
        ("dinov2_large", "vit_large_patch14_dinov2"),
    ],
)
def test_size_and_normalisation_of_the_images_are_those_that_timm_names(name, theirs):
    traits, named = EncoderTraits.choices()[name], timm.get_pretrained_cfg(theirs)
    assert named.input_size == (3, traits.side, traits.side)
    assert {"half": 0.5, "imagenet": 0.485}[traits.normalisation] == named.mean[0]
