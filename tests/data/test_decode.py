import io

import cv2
import numpy as np
import pytest

from fedretina.data.decode import decode_image
from fedretina.errors import DataError

RNG = np.random.default_rng(0)
PICTURE = cv2.resize(RNG.integers(0, 256, (12, 16, 3), dtype=np.uint8), (80, 60))  # RGB, 60 x 80


def saved(tmp_path, name, pixels, *flags):
    path = tmp_path / name
    cv2.imwrite(str(path), pixels, flags)
    return path


def test_png_is_exact_and_rgb(tmp_path):
    path = saved(tmp_path, "ä b.png", PICTURE[..., ::-1])
    read = decode_image(path)
    assert read.dtype == np.uint8
    assert np.array_equal(read, PICTURE)


def test_grey_alpha_and_sixteen_bits(tmp_path):
    grey = PICTURE[..., 0]
    assert np.array_equal(decode_image(saved(tmp_path, "g.png", grey)), np.repeat(grey[..., None], 3, axis=2))
    alpha = np.dstack([PICTURE[..., ::-1], RNG.integers(0, 256, grey.shape, dtype=np.uint8)])
    assert np.array_equal(decode_image(saved(tmp_path, "a.png", alpha)), PICTURE)
    deep = PICTURE[..., ::-1].astype(np.uint16) * 257
    assert np.array_equal(decode_image(saved(tmp_path, "d.png", deep)), PICTURE)
    assert np.array_equal(decode_image(saved(tmp_path, "d.tif", deep)), PICTURE)
    assert decode_image(saved(tmp_path, "w.png", np.full((4, 4), 65535, np.uint16))).min() == 255


@pytest.mark.parametrize("progressive", [0, 1])
@pytest.mark.parametrize("keep", [0.02, 0.3, 0.6, 0.97, -2, -1])
def test_every_cut_of_a_jpeg_is_found(tmp_path, keep, progressive):
    path = saved(tmp_path, "j.jpg", PICTURE, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive)
    data = path.read_bytes()
    assert decode_image(path).shape == (60, 80, 3)
    path.write_bytes(data[: keep if keep < 0 else int(keep * len(data))])
    with pytest.raises(DataError, match=r"j\.jpg"):
        decode_image(path)


def test_a_thumbnail_does_not_hide_a_cut_and_a_trailer_is_no_fault(tmp_path):
    path = saved(tmp_path, "j.jpg", PICTURE)
    data = path.read_bytes()
    thumbnail = cv2.imencode(".jpg", PICTURE[:16, :16])[1].tobytes()
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    path.write_bytes(data[:2] + segment + data[2:] + b"camera trailer")
    assert decode_image(path).shape == (60, 80, 3)
    path.write_bytes((data[:2] + segment + data[2:])[:-200])
    with pytest.raises(DataError, match="cut off"):
        decode_image(path)


def test_a_restart_interval_is_no_end(tmp_path):
    path = saved(tmp_path, "r.jpg", PICTURE, cv2.IMWRITE_JPEG_RST_INTERVAL, 1)
    assert b"\xff\xd0" in path.read_bytes()
    assert decode_image(path).shape == (60, 80, 3)


def test_png_damage(tmp_path):
    path = saved(tmp_path, "p.png", PICTURE)
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:-4], data[:200] + bytes([data[200] ^ 1]) + data[201:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="PNG"):
            decode_image(path)


def test_what_is_no_image(tmp_path):
    path = tmp_path / "x.jpg"
    for data, words in ((b"", "empty"), (b"hello", "no image"), (b"\xff\xd8", "cut off")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=words):
            decode_image(path)
    for missing in (tmp_path / "none.jpg", tmp_path):
        with pytest.raises(DataError) as error:
            decode_image(missing)
        assert isinstance(error.value.__cause__, OSError)
    floats = saved(tmp_path, "f.tif", np.zeros((8, 8, 3), np.float32))
    with pytest.raises(DataError, match="float32"):
        decode_image(floats)


def test_orientation_is_applied(tmp_path):
    image = pytest.importorskip("PIL.Image")
    tags = image.Exif()
    tags[0x0112] = 6
    buffer = io.BytesIO()
    image.fromarray(PICTURE).save(buffer, "JPEG", exif=tags)
    (tmp_path / "o.jpg").write_bytes(buffer.getvalue())
    assert decode_image(tmp_path / "o.jpg").shape == (80, 60, 3)
