import cv2
import numpy as np
import pytest

from fedretina.data.modalities import dermoscopy as transforms
from fedretina.errors import DataError
from fedretina.settings.images import DermoscopySettings


def skin(height=60, width=90, light=(1.0, 1.0, 1.0)):
    rng = np.random.default_rng(1)
    picture = rng.uniform(60, 160, (height, width, 1)) * (1.0, 0.8, 0.7) * np.array(light)
    return np.clip(picture, 0, 255).astype(np.uint8)


def test_shades_of_grey_against_its_formula():
    image = skin()
    found = transforms.ShadesOfGrey()(image)
    light = np.array([np.mean(image[..., c].astype(float) ** 6) ** (1 / 6) for c in range(3)])
    expected = np.clip(image * np.sqrt(np.mean(light**2)) / light, 0, 255)
    assert np.max(np.abs(found - expected)) <= 0.51


def test_the_colour_of_the_light_is_divided_out():
    white, warm = transforms.ShadesOfGrey()(skin()), transforms.ShadesOfGrey()(skin(light=(1.2, 1.0, 0.7)))
    ratio = [picture.reshape(-1, 3).mean(0) / picture.mean() for picture in (white, warm)]
    assert np.allclose(ratio[0], ratio[1], atol=0.02)
    assert np.allclose(ratio[0], 1, atol=0.02)
    again = transforms.ShadesOfGrey()(white)
    assert np.max(np.abs(again.astype(int) - white)) <= 2


@pytest.mark.parametrize("image", [np.zeros((40, 40, 3), np.uint8), np.full((1, 1, 3), 255, np.uint8)])
def test_degenerate_pictures_stay(image):
    assert np.array_equal(transforms.ShadesOfGrey()(image), image)


@pytest.mark.parametrize(("shape", "expected"), [((60, 90), (40, 60)), ((90, 60), (60, 40)), ((20, 21), (40, 42))])
def test_the_shorter_side_and_the_aspect(shape, expected):
    assert transforms.ShorterSideTo(40)(np.zeros((*shape, 3), np.uint8)).shape[:2] == expected


def test_the_square_is_the_middle():
    image = np.zeros((4, 8, 3), np.uint8)
    image[:, 2:6] = 9
    assert np.array_equal(transforms.CentreSquare()(image), np.full((4, 4, 3), 9, np.uint8))
    assert np.array_equal(transforms.CentreSquare()(image.transpose(1, 0, 2)), np.full((4, 4, 3), 9, np.uint8))


def test_the_pipeline(tmp_path):
    path = tmp_path / "a.png"
    assert cv2.imwrite(str(path), skin()[..., ::-1])
    settings = DermoscopySettings(image_size=32)
    found = transforms.Dermoscopy.pipeline(settings)(path)
    assert found.shape == settings.shape
    plain = transforms.Dermoscopy.pipeline(DermoscopySettings(image_size=32, constancy=False))(path)
    assert plain[0].mean() > 1.3 * plain[2].mean()  # red before blue: the channels are in order
    assert abs(found[0].mean() - found[2].mean()) < 5
    path.write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        transforms.Dermoscopy.pipeline(settings)(path)


def test_digests_tell_settings_apart():
    every = [DermoscopySettings(), DermoscopySettings(constancy=False), DermoscopySettings(image_size=64)]
    assert len({settings.digest() for settings in every}) == 3
