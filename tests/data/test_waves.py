import numpy as np
import pytest
from scipy.io import wavfile

from fedretina.data.wav import read_wave, wave_bytes
from fedretina.errors import DataError


@pytest.mark.parametrize(
    "samples", [np.arange(-5, 6, dtype=np.int16), np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)]
)
@pytest.mark.parametrize("comment", [b"", b"even", b"odd"])
def test_what_is_written_is_read(tmp_path, samples, comment):
    path = tmp_path / "a.wav"
    path.write_bytes(wave_bytes(100, samples, comment))
    rate, found = read_wave(path)
    assert rate == 100
    assert np.array_equal(found, samples.reshape(len(samples), -1).astype(np.float64))
    assert comment in path.read_bytes()
    assert np.array_equal(wavfile.read(path)[1], samples)  # another reader passes the comment over


def test_the_same_samples_give_the_same_bytes():
    assert wave_bytes(8, np.ones(4, np.int16), b"x") == wave_bytes(8, np.ones(4, np.int16), b"x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"RIFF", "is no WAV file"),
        (b"\xff\xd8 a photograph that was renamed", "is no WAV file"),
        (wave_bytes(100, np.arange(9, dtype=np.int16))[:-3], "is cut off"),
        (wave_bytes(100, np.arange(0, dtype=np.int16)), "holds no samples|cannot be read"),
        (wave_bytes(100, np.array([1, np.nan], np.float32)), "not finite"),
        (b"RIFF\x04\x00\x00\x00WAVE", "cannot be read as WAV"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, data, message):
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_wave(path)


def test_a_missing_file_says_so_and_may_come_back(tmp_path):
    with pytest.raises(DataError, match="cannot be opened") as caught:
        read_wave(tmp_path / "a.wav")
    assert isinstance(caught.value.__cause__, OSError)
