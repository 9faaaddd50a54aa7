import cv2
import numpy as np
import pytest

from fedretina.data.modalities import oct as transforms
from fedretina.errors import DataError
from fedretina.settings.images import OctSettings


def scan(height=248, width=256, dark=20):
    """A dark scan with a band of retina and, within it, a saturated layer of four pixels from edge to edge."""
    rng = np.random.default_rng(1)
    image = rng.integers(dark - 6, dark + 7, (height, width))
    image[100:150] = rng.integers(90, 140, (50, width))
    image[140:144] = 255
    return np.clip(image, 0, 255).astype(np.uint8)


def test_a_scan_without_margins_loses_its_outermost_pixels_alone():
    image = scan()
    masked = transforms.MaskBorders()(image)
    assert np.array_equal(masked, image[3:-3, 3:-3])


@pytest.mark.parametrize("dark", [4, 20, 60])
def test_a_wedge_takes_the_level_of_the_dark_and_leaves_the_layer_that_it_touches(dark):
    image = scan(dark=dark)
    wedge = np.array([[0, 0], [60, 0], [0, 247]], np.int32)  # down the left edge, over the saturated layer's end
    cv2.fillConvexPoly(image, wedge, 255)
    margin = transforms.MaskBorders().margin(image)
    masked = image.copy()
    masked[margin] = 0
    assert masked[:, 70:].max() == 255
    assert (masked[141, 45:-3] == 255).all()
    assert (masked >= 235)[:130].sum() == 0
    painted = transforms.MaskBorders()(image)
    assert abs(int(painted[20, 5]) - dark) <= 3


@pytest.mark.parametrize("side", ["top", "bottom", "left", "frame"])
def test_margins_are_cropped_away(side):
    image = scan()
    image[:40] = 255 if side in ("top", "frame") else image[:40]
    image[-40:] = 255 if side in ("bottom", "frame") else image[-40:]
    image[:, :30] = 255 if side in ("left", "frame") else image[:, :30]
    masked = transforms.MaskBorders()(image)
    expected = {"top": (202, 250), "bottom": (202, 250), "left": (242, 220), "frame": (162, 220)}
    assert masked.shape == expected[side]
    assert (masked >= 235).mean() < 0.03


def test_white_within_the_retina_stays():
    image = scan()
    image[110:130, 100:140] = 255
    masked = transforms.MaskBorders()(image)
    assert (masked[110:120, 100:130] == 255).all()


@pytest.mark.parametrize(
    "image",
    [np.full((60, 80), 255, np.uint8), np.zeros((60, 80), np.uint8), np.zeros((1, 1), np.uint8), scan(300, 3)],
)
def test_degenerate_scans_pass(image):
    masked = transforms.MaskBorders()(image)
    assert masked.size
    assert transforms.SquareOnBackground()(masked).shape == (max(masked.shape),) * 2


def test_the_square_keeps_the_aspect_and_the_dark():
    square = transforms.SquareOnBackground()(scan(150, 256))
    assert square.shape == (256, 256)
    assert np.array_equal(square[53:203], scan(150, 256))
    assert 17 <= square[:53].min() == square[:53].max() <= 23


@pytest.mark.parametrize("colour", [False, True])
def test_the_pipeline(tmp_path, colour):
    image = scan()
    image[:60] = 255
    cv2.imwrite(str(tmp_path / "a.png"), np.repeat(image[..., None], 3, axis=2) if colour else image)
    found = transforms.Oct.pipeline(OctSettings(image_size=48))(tmp_path / "a.png")
    assert (found.shape, found.dtype) == ((3, 48, 48), np.uint8)
    assert found.flags.c_contiguous
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert found[0, :5].max() < 60
    raw = transforms.Oct.pipeline(OctSettings(image_size=48, mask_borders=False))(tmp_path / "a.png")
    assert raw[0, 1:5].min() > 200


def test_a_file_that_is_no_image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.png"):
        transforms.Oct.pipeline(OctSettings())(tmp_path / "a.png")


@pytest.mark.real
def test_white_margins_of_real_scans_are_gone(shared):
    files = sorted((shared / "oct" / "kermany").iterdir())[::25]
    pipeline, raw = transforms.Oct.pipeline(OctSettings()), transforms.Oct.pipeline(OctSettings(mask_borders=False))
    before = [float((raw(file) >= 250).mean()) for file in files]
    after = [float((pipeline(file) >= 250).mean()) for file in files]
    assert max(before) > 0.1
    assert max(after) < 0.02
