import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import ndimage, stats

from fedretina.data.augment import affine_sample, augment, gaussian_blur, one_view, speckle, two_views, uniforms
from fedretina.data.phantoms.draw import cases_of, phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.errors import SettingsError
from fedretina.settings.images import AugmentSettings, TwoViewSettings

SEED = (1, "site-1", "pretrain", 0, 0)
STILL = {
    "crop_scale": (1, 1),
    "crop_ratio": (1, 1),
    "flip": False,
    "rotate_degrees": 0,
    "colour_probability": 0,
    "blur_probability": 0,
    "speckle_probability": 0,
}
FULL = TwoViewSettings(colour_probability=1, blur_probability=1, speckle_probability=1)


def still(**words):
    return TwoViewSettings.model_validate({**STILL, **words})


def scans(count=8, size=21, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.repeat(rng.integers(0, 256, (count, 1, size, size), dtype=np.uint8), 3, axis=1))


def test_nothing_to_do_gives_the_image_twice():
    images = scans()
    for view in two_views(images, np.arange(8), still(), SEED):
        assert torch.allclose(view, images.float() / 255, atol=1e-4)


@pytest.mark.parametrize("settings", [TwoViewSettings(), FULL])
@pytest.mark.parametrize("grey", [True, False])
def test_a_view_has_the_same_bits_in_every_batch(settings, grey):
    images, samples = scans(64, 40), np.arange(64) + 100
    whole = two_views(images, samples, settings, SEED, grey)
    order = np.random.default_rng(3).permutation(64)
    moved = two_views(images[order], samples[order], settings, SEED, grey)
    for part in (1, 2, 7):
        cut = [two_views(images[s : s + part], samples[s : s + part], settings, SEED, grey) for s in range(0, 64, part)]
        for view in (0, 1):
            assert torch.equal(torch.cat([pair[view] for pair in cut]), whole[view])
    for view in (0, 1):
        assert torch.equal(moved[view], whole[view][order])
        assert torch.equal(one_view(images, samples, settings, SEED, view, grey), whole[view])
        assert whole[view].dtype == torch.float32
        assert whole[view].shape == images.shape
        assert 0 <= whole[view].min() < whole[view].max() <= 1


def test_one_channel_stands_for_three():
    images, samples = scans(16, 40), np.arange(16)
    pairs = [two_views(images, samples, FULL, SEED, grey) for grey in (True, False)]
    for one, three in zip(*pairs, strict=True):
        assert torch.equal(one, three)


def test_the_seed_the_sample_and_the_view_count():
    images, samples = scans(), np.arange(8)
    first, second = two_views(images, samples, TwoViewSettings(), SEED)
    others = [
        second,
        one_view(images, samples, TwoViewSettings(), SEED, 2),
        two_views(images, samples, TwoViewSettings(), (2, *SEED[1:]))[0],
        two_views(images, samples, TwoViewSettings(), (*SEED[:4], 1))[0],
        two_views(images, samples + 8, TwoViewSettings(), SEED)[0],
    ]
    assert all(not torch.allclose(first, other, atol=1e-3) for other in others)
    state = torch.get_rng_state()
    assert torch.equal(two_views(images, samples, TwoViewSettings(), SEED)[0], first)
    assert torch.equal(torch.get_rng_state(), state)


def test_crop_and_rotation_read_where_they_should():
    # An image whose grey is its own coordinate shows where each pixel of a view was read.
    size, count = 64, 400
    ramp = torch.arange(size, dtype=torch.uint8).view(1, 1, 1, size).expand(count, 3, size, size)
    settings = still(crop_scale=(0.2, 0.6), crop_ratio=(3 / 4, 4 / 3))
    across = one_view(ramp.contiguous(), np.arange(count), settings, SEED, 0, True)[:, 0] * 255
    down = one_view(ramp.transpose(2, 3).contiguous(), np.arange(count), settings, SEED, 0, True)[:, 0] * 255
    middle = slice(1, -1)  # the outermost pixels may fade into the black around
    width = (across[:, middle, -2] - across[:, middle, 1]).mean(1) * size / (size - 3) / size
    height = (down[:, -2, middle] - down[:, 1, middle]).mean(1) * size / (size - 3) / size
    area, ratio = (width * height).numpy(), (width / height).numpy()
    assert stats.kstest(area, stats.uniform(0.2, 0.4).cdf).pvalue > 1e-3
    logs = np.log(ratio) / math.log(4 / 3)
    assert stats.kstest(logs, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    place = ((across[:, 32, 32].numpy() + 0.5) / size - 0.5) / (1 - width.numpy())
    assert abs(place.mean()) < 0.05
    assert place.std() > 0.2


def test_rotation_alone_is_that_of_augment():
    images, samples = scans(6, 25), np.arange(6)
    view = one_view(images, samples, still(rotate_degrees=90), SEED, 0, True)
    for i, draw in enumerate(uniforms(samples, 14, (*SEED, "view", 0))[:, 5]):
        slow = ndimage.rotate(
            images[i, 0].numpy() / 255.0, 90 * (2 * draw - 1), reshape=False, order=1, mode="grid-constant", cval=0
        )
        assert np.abs(view[i, 0].numpy() - slow).max() < 1e-4


def test_mirrored_left_to_right_half_of_the_time_and_never_upside_down():
    images, samples = scans(600, 8), np.arange(600)
    view = one_view(images, samples, still(flip=True), SEED, 0, True)
    plain = images.float() / 255
    mirrored = (view - plain.flip(3)).abs().amax((1, 2, 3)) < 1e-3
    same = (view - plain).abs().amax((1, 2, 3)) < 1e-3
    assert bool((mirrored ^ same).all())
    assert stats.binomtest(int(mirrored.sum()), 600).pvalue > 1e-3


def test_each_change_comes_as_often_as_it_is_told():
    images, samples = scans(600, 16), np.arange(600)
    plain = images.float() / 255
    for words in ({"colour_probability": 0.3}, {"blur_probability": 0.3}, {"speckle_probability": 0.3}):
        settings = still(**words, blur_sigma=(8, 16))
        changed = (one_view(images, samples, settings, SEED, 0, True) - plain).abs().amax((1, 2, 3)) > 1e-3
        assert stats.binomtest(int(changed.sum()), 600, 0.3).pvalue > 1e-3


def test_colour_closed_form():
    images, samples = scans(), np.arange(8)
    view = one_view(images, samples, still(colour_probability=1, brightness=0.3, contrast=0.5), SEED, 1)
    x, draws = images.numpy() / 255.0, uniforms(samples, 14, (*SEED, "view", 1))
    light = (1 + 0.3 * (2 * draws[:, 7] - 1)).reshape(-1, 1, 1, 1)
    spread = (1 + 0.5 * (2 * draws[:, 8] - 1)).reshape(-1, 1, 1, 1)
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    assert np.abs(view.numpy() - np.clip(light * (mean + spread * (x - mean)), 0, 1)).max() < 1e-4


def test_blur_equals_scipy_and_scales_with_the_side():
    pixels, sigma = scans(5, 40).float() / 255, np.array([0.1, 0.5, 1.0, 1.7, 2.0])
    blurred = gaussian_blur(pixels, sigma, 2.0)
    for i, width in enumerate(sigma):
        for c in range(3):
            slow = ndimage.gaussian_filter(pixels[i, c].numpy(), width, mode="nearest", radius=6)
            assert np.abs(blurred[i, c].numpy() - slow).max() < 1e-5
    images, samples = scans(3, 56), np.arange(3)
    view = one_view(images, samples, still(blur_probability=1, blur_sigma=(4, 4)), SEED, 0, True)
    assert torch.allclose(view[:, :1], gaussian_blur(images[:, :1].float() / 255, np.ones(3), 1.0), atol=1e-4)


def test_speckle_is_the_hash_in_plain_integers_and_close_to_normal():
    size, key, amount = 24, 0.7, 0.2
    noise = speckle(torch.full((1, 3, size, size), 0.5), np.array([amount]), np.array([key]))
    for place in (0, 1, 77, size * size - 1):
        x = (int(key * 2**32) + place * 0x9E3779B9) % 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        total = sum((x ^ (x >> 16)).to_bytes(4, "little"))
        slow = 0.5 * (1 + amount * (total - 510) / math.sqrt(4 * (256**2 - 1) / 12))
        assert noise[0, :, place // size, place % size].tolist() == pytest.approx([slow] * 3, abs=1e-6)
    many = speckle(torch.full((4, 1, 128, 128), 0.5), np.full(4, 0.1), np.array([0.1, 0.2, 0.3, 0.4])) * 2 - 1
    assert abs(float(many.mean())) < 1e-3
    assert abs(float(many.std()) - 0.1) < 1e-3
    assert abs(stats.kurtosis(many.numpy().ravel())) < 0.4  # a sum of four bytes has -0.3
    flat = many.view(4, -1).numpy()
    for step in (1, 2, 128):
        assert abs(np.corrcoef(flat[:, :-step].ravel(), flat[:, step:].ravel())[0, 1]) < 0.02
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 0.04
    assert torch.equal(speckle(torch.zeros(1, 1, 8, 8), np.array([0.5]), np.array([0.1])), torch.zeros(1, 1, 8, 8))


def test_affine_sample_shifts():
    image = scans(1, 16).float() / 255
    moved = affine_sample(image, np.array([[[1.0, 0, 2 / 16], [0, 1.0, -4 / 16]]]))
    assert torch.allclose(moved[..., 2:, :-1], image[..., :-2, 1:], atol=1e-5)
    assert float(moved[..., :2, :].max()) == 0


def test_phantom_scans_are_augmented_and_viewed():
    images = phantom_images(phantom_hospital("site-1", modality="oct"), cases_of([0, 1, 2, 3]), 64, (1, "t"))
    turned = augment(images, np.arange(4), AugmentSettings(rotate_degrees=10, brightness=0.2), SEED)
    assert torch.equal(turned[:, 0], turned[:, 2])
    first, second = two_views(images, np.arange(4), TwoViewSettings(), SEED, True)
    assert float((first - second).abs().mean()) > 0.01


def test_empty_batch_and_what_is_refused():
    assert two_views(scans(0), np.arange(0), FULL, SEED, True)[1].shape == (0, 3, 21, 21)
    with pytest.raises(SettingsError, match="uint8"):
        two_views(scans().float(), np.arange(8), FULL, SEED)
    with pytest.raises(SettingsError, match="uint8"):
        two_views(scans()[:, :1], np.arange(8), FULL, SEED)
    with pytest.raises(SettingsError, match="8 images"):
        one_view(scans(), np.arange(7), FULL, SEED, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop_scale", (0, 1)),
        ("crop_scale", (0.5, 0.2)),
        ("crop_scale", (math.nan, 1)),
        ("crop_ratio", (0.5, 11)),
        ("rotate_degrees", 181),
        ("brightness", 1.0),
        ("contrast", -0.1),
        ("colour_probability", 1.1),
        ("blur_probability", -0.1),
        ("blur_sigma", (0, 1)),
        ("blur_sigma", (1, 17)),
        ("speckle", 0.6),
        ("speckle_probability", math.nan),
        ("flip_vertical", True),
    ],
)
def test_settings_that_are_refused(name, value):
    with pytest.raises(ValidationError, match=r"give|Extra inputs"):
        TwoViewSettings.model_validate({name: value})
