"""What the transforms of all pictures share."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.data import modalities as shared
from fedretina.errors import DataError


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5), (4, 7, 3), (1, 6, 3)])
def test_a_square_keeps_every_pixel_in_its_middle(shape):
    image = np.random.default_rng(1).integers(1, 255, shape, np.uint8)
    square = shared.padded_square(image, 0)
    longer = max(shape[:2])
    assert square.shape == (longer, longer, *shape[2:])
    rows, columns = (slice((longer - side) // 2, (longer - side) // 2 + side) for side in shape[:2])
    assert np.array_equal(square[rows, columns], image)
    assert int((square > 0).sum()) == image.size  # all else is the level


def test_height_and_width_are_not_exchanged():
    image = np.zeros((10, 20, 3), np.uint8)
    assert shared.resized(image, 5, 10, True).shape == (5, 10, 3)
    assert shared.resized(image, 20, 40, False).shape == (20, 40, 3)


def test_a_step_that_fails_names_the_file_and_the_shape(tmp_path):
    import cv2

    cv2.imwrite(str(tmp_path / "eye.png"), np.zeros((6, 8, 3), np.uint8))

    def broken(image):
        raise ValueError("no such colour")

    with pytest.raises(DataError, match=r"eye\.png of shape \(6, 8, 3\) cannot be transformed"):
        shared.picture_pipeline([broken])(tmp_path / "eye.png")
    assert shared.picture_pipeline([shared.ChannelsFirst()])(tmp_path / "eye.png").shape == (3, 6, 8)
