import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import ndimage, stats

from fedretina.data.augment import ORIENTATIONS, augment, drawn_orientations, orientations, oriented, uniforms
from fedretina.errors import SettingsError
from fedretina.settings.images import AugmentSettings, ImageSettings

STILL = AugmentSettings(flip=False, rotate_degrees=0)
SEED = (1, "site-1", "train", 0, 0)


def batch(count=8, size=21, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, size, size), dtype=np.uint8))


def test_nothing_to_do_is_a_division():
    images = batch()
    assert torch.equal(augment(images, np.arange(8), STILL, SEED), images.float() / 255)


@pytest.mark.parametrize(
    "settings",
    [
        AugmentSettings(),
        AugmentSettings(rotate_degrees=0),
        AugmentSettings(flip=False, rotate_degrees=180, brightness=0.4, contrast=0.5),
    ],
)
def test_a_sample_does_not_depend_on_its_batch(settings):
    images, samples = batch(33, 40), np.arange(33)
    whole = augment(images, samples, settings, SEED)
    order = np.random.default_rng(3).permutation(33)
    assert torch.equal(augment(images[order], samples[order], settings, SEED), whole[order])
    for parts in (1, 2, 7):
        cut = [augment(images[s : s + parts], samples[s : s + parts], settings, SEED) for s in range(0, 33, parts)]
        assert torch.equal(torch.cat(cut), whole)
    assert whole.min() >= 0
    assert whole.max() <= 1
    assert whole.dtype == torch.float32


def test_layout_in_memory_does_not_matter():
    images, samples = batch(), np.arange(8)
    settings = AugmentSettings(brightness=0.2, contrast=0.2)
    plain = augment(images, samples, settings, SEED)
    last = augment(images.to(memory_format=torch.channels_last), samples, settings, SEED)
    assert torch.allclose(plain, last, atol=1e-6)


def test_each_part_of_the_seed_counts():
    images, samples = batch(), np.arange(8)
    seeds = [SEED, (2, *SEED[1:]), (1, "site-2", *SEED[2:]), (*SEED[:4], 1), (*SEED[:3], 1, 0)]
    results = [augment(images, samples, AugmentSettings(), seed) for seed in seeds]
    assert all(not torch.equal(results[0], other) for other in results[1:])
    assert torch.equal(results[0], augment(images, samples, AugmentSettings(), SEED))


def test_torch_and_numpy_generators_are_left_alone():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    augment(batch(), np.arange(8), AugmentSettings(brightness=0.1), SEED)
    assert torch.equal(torch.get_rng_state(), state)


def test_flip_alone_mirrors_half():
    images, samples = batch(2000, 4), np.arange(2000)
    out = augment(images, samples, AugmentSettings(rotate_degrees=0), SEED)
    plain = images.float() / 255
    flipped = (out == plain.flip(3)).all(dim=(1, 2, 3))
    same = (out == plain).all(dim=(1, 2, 3))
    assert bool((flipped | same).all())
    assert stats.binomtest(int(flipped.sum()), 2000).pvalue > 1e-3


def test_rotation_equals_scipy():
    images, samples = batch(6, 25), np.arange(6)
    out = augment(images, samples, AugmentSettings(flip=False, rotate_degrees=90), SEED)
    angles = 90 * (2 * uniforms(samples, 4, SEED)[:, 1] - 1)
    for i, angle in enumerate(angles):
        slow = ndimage.rotate(
            images[i].numpy() / 255.0, angle, axes=(1, 2), reshape=False, order=1, mode="grid-constant", cval=0
        )
        assert np.abs(out[i].numpy() - slow).max() < 1e-4


def test_flip_then_rotation_is_both():
    images, samples = batch(40, 25), np.arange(40)
    both = augment(images, samples, AugmentSettings(), SEED)
    flips = torch.from_numpy(uniforms(samples, 4, SEED)[:, 0] < 0.5).view(-1, 1, 1, 1)
    mirrored = torch.where(flips, images.flip(3), images)
    rotated = augment(mirrored, samples, AugmentSettings(flip=False), SEED)
    assert torch.allclose(both, rotated, atol=2e-5)


def test_brightness_and_contrast_closed_form():
    images, samples = batch(5), np.arange(5)
    draws = uniforms(samples, 4, SEED)
    x = images.numpy() / 255.0
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    light = (1 + 0.3 * (2 * draws[:, 2] - 1)).reshape(-1, 1, 1, 1)
    spread = (1 + 0.5 * (2 * draws[:, 3] - 1)).reshape(-1, 1, 1, 1)
    slow = np.clip(light * (mean + spread * (x - mean)), 0, 1)
    settings = AugmentSettings(flip=False, rotate_degrees=0, brightness=0.3, contrast=0.5)
    assert np.abs(augment(images, samples, settings, SEED).numpy() - slow).max() < 1e-5


def test_draws_are_uniform_and_independent():
    draws = uniforms(np.arange(20000), 4, SEED)
    assert draws.min() >= 0
    assert draws.max() < 1
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    others = uniforms(np.arange(20000), 4, (2,))
    table = np.corrcoef(np.column_stack([draws, others, np.roll(draws[:, 0], 1)]).T)
    assert np.abs(table - np.eye(len(table))).max() < 0.03


def test_draws_are_splitmix64():
    from fedretina.seeds import derive_seed

    mask = (1 << 64) - 1
    for sample, draw in ((0, 0), (5, 3), (123456, 1)):
        z = (derive_seed(*SEED) + (sample * 4 + draw + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected = math.ldexp((z ^ (z >> 31)) >> 11, -53)
        assert uniforms(np.array([sample]), 4, SEED)[0, draw] == expected


def test_empty_batch_and_what_is_refused():
    empty = augment(batch(0), np.arange(0), AugmentSettings(brightness=0.1, contrast=0.1), SEED)
    assert empty.shape == (0, 3, 21, 21)
    with pytest.raises(SettingsError, match="uint8"):
        augment(batch().float(), np.arange(8), AugmentSettings(), SEED)
    with pytest.raises(SettingsError, match="8 images"):
        augment(batch(), np.arange(7), AugmentSettings(), SEED)
    for bad in ({"rotate_degrees": 181}, {"brightness": -0.1}, {"contrast": 1.0}, {"zoom": 1}):
        with pytest.raises(ValidationError):
            AugmentSettings.model_validate(bad)


def signals(count=6, length=40):
    rng = np.random.default_rng(4)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, 1, length), dtype=np.uint8))


def test_roll_turns_time_around_and_loses_nothing():
    pixels = signals()
    found = augment(pixels, np.arange(6), AugmentSettings(flip=False, rotate_degrees=0, roll=0.5), SEED)
    steps = []
    for before, after in zip(pixels.float() / 255, found, strict=True):
        fits = [step for step in range(-20, 21) if torch.equal(before.roll(step, 2), after)]
        assert fits
        steps.append(fits[0])
    assert len(set(steps)) > 3
    near = augment(pixels, np.arange(6), AugmentSettings(flip=False, rotate_degrees=0, roll=0.05), SEED)
    assert all(
        any(torch.equal(before.roll(step, 2), after) for step in (-2, -1, 0, 1, 2))
        for before, after in zip(pixels.float() / 255, near, strict=True)
    )


def test_gain_keeps_the_middle():
    pixels = torch.full((5, 3, 1, 8), 140, dtype=torch.uint8)
    found = augment(pixels, np.arange(5), AugmentSettings(flip=False, rotate_degrees=0, gain=0.5), SEED)
    factor = (found[:, 0, 0, 0] - 0.5) / (140 / 255 - 0.5)
    assert float(factor.min()) >= 0.5 - 1e-5
    assert float(factor.max()) <= 1.5 + 1e-5
    assert len(set(factor.tolist())) == 5


def test_upside_down_half_of_the_time_and_the_other_draws_stay():
    pixels = batch(200)
    still = AugmentSettings(flip=False, rotate_degrees=0, flip_vertical=True)
    found = augment(pixels, np.arange(200), still, SEED)
    upside = [torch.equal(after, before.flip(1)) for before, after in zip(pixels.float() / 255, found, strict=True)]
    same = [torch.equal(after, before) for before, after in zip(pixels.float() / 255, found, strict=True)]
    assert all(one != other for one, other in zip(upside, same, strict=True))
    assert 70 < sum(upside) < 130
    plain = augment(pixels, np.arange(200), AugmentSettings(rotate_degrees=0), SEED)
    both = augment(pixels, np.arange(200), AugmentSettings(rotate_degrees=0, flip_vertical=True), SEED)
    assert torch.equal(torch.where(torch.tensor(upside).view(-1, 1, 1, 1), plain.flip(2), plain), both)


def test_what_spoils_a_modality_is_told_and_new_settings_keep_old_digests():
    default = AugmentSettings()
    fundus, oct_, dermoscopy, heart, activity = ImageSettings.choices().values()
    assert default.unfit(fundus) == default.unfit(oct_) == default.unfit(dermoscopy) == ()
    assert default.unfit(heart) == default.unfit(activity) == ("flip", "rotate_degrees")
    assert AugmentSettings(flip_vertical=True, roll=0.1).unfit(oct_) == ("flip_vertical", "roll")
    assert AugmentSettings(flip=False, rotate_degrees=0, brightness=0.1, roll=0.1).unfit(heart) == ()
    assert AugmentSettings(flip=False, rotate_degrees=0, brightness=0.1).unfit(activity) == ("brightness",)
    assert list(default.model_dump()) == ["flip", "rotate_degrees", "brightness", "contrast"]
    full = AugmentSettings(roll=0.2)
    assert AugmentSettings.model_validate_json(full.model_dump_json()) == full


def test_only_square_samples_are_rotated():
    with pytest.raises(SettingsError, match="uint8 images"):
        augment(signals(), np.arange(6), AugmentSettings(), SEED)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("upside", [False, True])
@pytest.mark.parametrize("quarters", [False, True])
def test_what_flips_and_turns_by_quarters_is_one_of_eight_orientations(flip, upside, quarters):
    settings = AugmentSettings(flip=flip, flip_vertical=upside, quarter_turns=quarters, rotate_degrees=0)
    images, samples = batch(64), np.arange(64)
    drawn = drawn_orientations(samples, settings, SEED)
    assert torch.equal(augment(images, samples, settings, SEED), oriented(images, drawn).float() / 255)
    assert sorted(set(drawn.tolist())) == list(orientations(settings))
    assert settings.endless == ()


def test_orientations_are_turns_and_turns_of_the_mirror_image():
    image = batch(1).expand(ORIENTATIONS, -1, -1, -1)
    found = oriented(image, np.arange(ORIENTATIONS)).numpy()
    slow = [
        np.rot90(image[0].numpy()[..., ::-1] if one >= 4 else image[0].numpy(), one % 4, (1, 2)) for one in range(8)
    ]
    assert all(np.array_equal(*pair) for pair in zip(found, slow, strict=True))
    assert len({one.tobytes() for one in found}) == ORIENTATIONS


def test_a_quarter_turn_needs_a_square():
    with pytest.raises(SettingsError, match="augment takes uint8 images"):
        augment(torch.zeros(1, 3, 4, 6, dtype=torch.uint8), np.arange(1), AugmentSettings(quarter_turns=True), SEED)
