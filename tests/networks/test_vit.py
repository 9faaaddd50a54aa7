import math

import pytest
import torch
import torch.nn.functional as F
from torchvision.models.vision_transformer import Encoder as TorchvisionEncoder

from fedretina.errors import TrainingError
from fedretina.networks.vit import sine_cosine_positions, vit_small_encoder


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def encoder():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return vit_small_encoder()


def position(channel, row, column, width=384):
    """The slow form: one number."""
    half, quarter = width // 2, width // 4
    at, channel = (row, channel) if channel < half else (column, channel - half)
    angle = at / 10_000 ** ((channel % quarter) / quarter)
    return math.sin(angle) if channel < quarter else math.cos(angle)


def test_positions_are_sines_and_cosines_of_row_and_column():
    found = sine_cosine_positions(384, 3, 5)
    expected = [[[position(c, r, k) for k in range(5)] for r in range(3)] for c in range(384)]
    assert found.shape == (1, 384, 3, 5)
    torch.testing.assert_close(found[0], torch.tensor(expected), rtol=0, atol=1e-6)


def test_no_two_places_of_a_large_grid_have_the_same_position():
    places = sine_cosine_positions(384, 64, 64)[0].flatten(1).T
    distances = torch.cdist(places, places) + 1e3 * torch.eye(len(places))
    assert distances.min() > 0.5


def test_shapes_after_each_stage(encoder):
    with torch.no_grad():
        maps = encoder.eval().forward_stages(torch.zeros(1, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [(1, 384, 4, 6)] * 5
    assert encoder.widths == (384,) * 5
    assert encoder.features == 384


@pytest.mark.parametrize("training", [True, False])
def test_it_is_torchvisions_transformer_over_the_tokens_without_a_class(encoder, training):
    state = encoder.state_dict()
    theirs = TorchvisionEncoder(12, 12, 6, 384, 1536, 0.0, 0.0)
    renamed = {"pos_embedding": sine_cosine_positions(384, 3, 4).flatten(2).transpose(1, 2)}
    for key, value in state.items():
        _, stage, kind, *rest = key.split(".")
        if kind == "blocks":
            renamed[".".join([f"layers.encoder_layer_{3 * (int(stage) - 1) + int(rest[0])}", *rest[1:]])] = value
        elif kind == "norm":
            renamed[f"ln.{rest[0]}"] = value
    theirs.load_state_dict(renamed, strict=True)
    x = images(2, 3, 48, 64)
    weight, bias = (state[f"stages.0.projection.{name}"] for name in ("weight", "bias"))
    tokens = F.unfold(x, 16, stride=16).transpose(1, 2) @ weight.flatten(1).T + bias
    with torch.no_grad():
        expected = theirs.train(training)(tokens).mean(1)
        torch.testing.assert_close(encoder.train(training)(x), expected, rtol=1e-5, atol=1e-5)


def test_the_place_of_a_patch_matters_and_positions_are_no_weights(encoder):
    x = images(1, 3, 32, 32)
    with torch.no_grad():
        assert (encoder(x) - encoder(x.roll(16, 2))).abs().max() > 1e-3
    assert not any("position" in key for key in encoder.state_dict())


def test_weights_start_at_xaviers_bounds_with_query_key_and_value_apart(encoder):
    state = encoder.state_dict()
    bounds = {
        "stages.0.projection.weight": math.sqrt(6 / (3 * 256 + 384)),
        "stages.2.blocks.1.self_attention.in_proj_weight": math.sqrt(6 / (384 + 384)),
        "stages.2.blocks.1.self_attention.out_proj.weight": math.sqrt(6 / (384 + 384)),
        "stages.2.blocks.1.mlp.0.weight": math.sqrt(6 / (384 + 1536)),
    }
    for key, bound in bounds.items():
        assert 0.99 * bound < state[key].abs().max() <= bound, key
    biases = [v for k, v in state.items() if k.endswith("bias")]
    assert len(biases) == 1 + 12 * 6 + 1
    assert not any(b.any() for b in biases)


def test_training_draws_nothing(encoder):
    before = torch.get_rng_state()
    encoder.train()(images(2, 3, 32, 32))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(1, 3, 40, 32), (1, 3, 32, 40), (1, 1, 32, 32), (3, 32, 32), (1, 3, 8, 8)])
def test_images_that_do_not_fit_the_patch_are_refused(encoder, shape):
    with pytest.raises(TrainingError, match="16 x 16 pixels"):
        encoder(torch.zeros(shape))
