import numpy as np
import pytest

from fedretina.data.cache import PixelArrayWriter, map_pixels
from fedretina.errors import DataError

SAMPLE = (3, 4, 5)


def written(path, rows, most):
    pixels = np.random.default_rng(rows).integers(0, 256, (rows, *SAMPLE), dtype=np.uint8)
    with path.open("wb") as handle:
        array = PixelArrayWriter(handle, most, SAMPLE)
        assert [array.add(row) for row in pixels] == list(range(rows))
        array.finish()
    assert array.rows == rows
    return pixels


@pytest.mark.parametrize(("rows", "most"), [(3, 3), (2, 1000), (1, 10**9)])
def test_fewer_rows_than_room_give_the_same_file_as_numpy(tmp_path, rows, most):
    pixels = written(tmp_path / "a.npy", rows, most)
    assert np.array_equal(np.load(tmp_path / "a.npy"), pixels)
    mapped = map_pixels(tmp_path / "a.npy", rows, SAMPLE)
    assert np.array_equal(mapped, pixels)
    assert not mapped.flags.writeable


def test_an_array_without_rows_needs_no_file(tmp_path):
    assert map_pixels(tmp_path / "none.npy", 0, SAMPLE).shape == (0, *SAMPLE)


def test_a_file_that_is_another_one_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(DataError, match="missing or damaged"):
        map_pixels(path, 2, SAMPLE)
    written(path, 2, 2)
    with pytest.raises(DataError, match=r"expected uint8 \(3, 3, 4, 5\)"):
        map_pixels(path, 3, SAMPLE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="missing or damaged"):
        map_pixels(path, 2, SAMPLE)
    np.save(path, np.zeros((2, *SAMPLE), np.float32))
    with pytest.raises(DataError, match="holds float32"):
        map_pixels(path, 2, SAMPLE)
