from pathlib import Path

import cv2
import numpy as np
import pytest
from pydantic import ValidationError

from fedretina.data.decode import decode_image
from fedretina.data.modalities import fundus as transforms
from fedretina.errors import DataError
from fedretina.settings.images import FundusSettings

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "fundus"


def eye(height, width, centre, radius, level=150, border=4):
    rng = np.random.default_rng(1)
    image = np.full((height, width, 3), border, np.uint8)
    cv2.circle(image, centre, radius, (level, level // 2, level // 4), -1)
    return np.clip(image.astype(int) + rng.integers(-3, 4, image.shape), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("level", "border"), [(150, 4), (45, 10), (255, 40)])
@pytest.mark.parametrize("scale", [1, 4])
def test_crop_finds_the_disc(level, border, scale):
    image = eye(200 * scale, 300 * scale, (140 * scale, 95 * scale), 70 * scale, level, border)
    box = transforms.FieldOfViewCrop().box(image)
    assert np.allclose(np.array(box) / scale, (25, 166, 70, 211), atol=10)


def test_crop_pads_to_a_square_with_black():
    image = eye(120, 300, (150, 60), 100)  # top and bottom are cut off
    crop = transforms.FieldOfViewCrop()(image)
    assert crop.shape[0] == crop.shape[1]
    assert 185 <= crop.shape[0] <= 205
    assert crop[:30].max() == 0
    assert crop[-30:].max() == 0
    assert crop[crop.shape[0] // 2].max() > 100


def test_speckle_and_reflections_do_not_widen_the_crop():
    image = eye(224, 224, (112, 112), 60)
    speckle = np.random.default_rng(2).random(image.shape[:2]) < 0.15
    image[speckle & (image[..., 0] < 20)] = 200
    image[4:7, 100:103] = 220
    assert np.allclose(transforms.FieldOfViewCrop().box(image), (52, 173, 52, 173), atol=8)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((60, 80, 3), np.uint8),
        np.full((60, 80, 3), 200, np.uint8),
        np.random.default_rng(0).integers(90, 200, (60, 80, 3), dtype=np.uint8),
        np.zeros((1, 1, 3), np.uint8),
        np.zeros((3, 400, 3), np.uint8),
    ],
)
def test_an_image_without_border_or_disc_stays(image):
    assert transforms.FieldOfViewCrop()(image) is image


def test_clahe_raises_contrast_and_keeps_grey_grey():
    flat = np.random.default_rng(0).integers(110, 130, (64, 64, 1), dtype=np.uint8).repeat(3, axis=2)
    out = transforms.Clahe()(flat)
    assert out.std() > 1.5 * flat.std()
    assert np.abs(out.astype(int) - out.mean(axis=2, keepdims=True)).max() <= 2


def test_ben_graham_is_the_recipe():
    image = eye(90, 90, (45, 45), 44)
    out = transforms.BenGraham()(image)
    blurred = cv2.GaussianBlur(image.astype(np.float64), (0, 0), 1.5)
    slow = np.clip(4 * image.astype(np.float64) - 4 * blurred + 128, 0, 255)
    y, x = np.mgrid[:90, :90] - 44.5
    inside = x**2 + y**2 <= 40.5**2
    assert np.abs(out[inside] - slow[inside]).max() <= 6  # the blur is rounded to 8 bits before it is times 4
    assert (out[~inside] == 128).all()
    assert (transforms.BenGraham()(np.full((40, 40, 3), 77, np.uint8)) == 128).all()


@pytest.mark.parametrize("enhance", ["none", "clahe", "ben_graham"])
@pytest.mark.parametrize("crop", [True, False])
def test_pipeline(tmp_path, enhance, crop):
    cv2.imwrite(str(tmp_path / "a.png"), eye(200, 300, (140, 95), 70)[..., ::-1])
    pipeline = transforms.Fundus.pipeline(FundusSettings(image_size=48, crop=crop, enhance=enhance))
    out = pipeline(tmp_path / "a.png")
    assert out.shape == (3, 48, 48)
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    assert np.array_equal(out, pipeline(str(tmp_path / "a.png")))
    if enhance == "none":
        red, green, blue = out[:, 22:26, 22:26].mean(axis=(1, 2))
        assert red > green > blue


def test_small_images_grow(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((5, 7, 3), 90, np.uint8))
    assert (transforms.Fundus.pipeline(FundusSettings(image_size=32))(tmp_path / "a.png") == 90).all()


def test_a_bad_file_raises(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a\.png"):
        transforms.Fundus.pipeline(FundusSettings())(tmp_path / "a.png")


def test_settings_and_digest():
    digests = {
        FundusSettings(image_size=size, crop=crop, enhance=enhance).digest()
        for size in (64, 128)
        for crop in (True, False)
        for enhance in ("none", "clahe", "ben_graham")
    }
    assert len(digests) == 12
    assert FundusSettings().digest() == FundusSettings(image_size=256).digest()
    for bad in ({"image_size": 31}, {"image_size": 1025}, {"enhance": "x"}, {"size": 64}):
        with pytest.raises(ValidationError):
            FundusSettings.model_validate(bad)


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="the real images are not here")
@pytest.mark.parametrize("site", ["aptos2019", "idrid", "odir5k", "eyepacs"])
def test_real_images_fill_the_crop(site):
    crop = transforms.FieldOfViewCrop()
    filled = 0
    files = sorted((REAL / site).glob("*.jpg"))[:40]
    for file in files:
        square = crop(decode_image(file))
        middle = square[square.shape[0] // 2].max(axis=1) > 20
        filled += middle[: len(middle) // 10].any() and middle[-len(middle) // 10 :].any()
    assert filled >= 0.9 * len(files)
