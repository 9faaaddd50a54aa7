"""WAV files: sounds, and other signals sampled evenly in time, with no silent half of a file."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError

_HEAD = 12


def read_wave(path: str | Path) -> tuple[int, NDArray[np.float64]]:
    """Read a WAV file.

    Whole numbers come as they are stored; readers that need a unit know the scale of their files.

    Returns:
        Samples per second, and float64 [n, channels], n 1 or more.

    Raises:
        DataError: The file cannot be opened (its cause is then an OSError), is cut off, empty, damaged or no WAV file,
            or holds values that are not finite.
    """
    from scipy.io import wavfile

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}).") from error
    fault = _fault(data)
    if fault:
        raise DataError(f"{path} {fault}: copy it again from its source.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that are not ours to read
            rate, stored = wavfile.read(io.BytesIO(data))
    except (ValueError, struct.error, ArithmeticError, UnboundLocalError) as error:  # the last: a file of a head alone
        raise DataError(f"{path} cannot be read as WAV ({error}): copy it again from its source.") from error
    samples = np.asarray(stored if stored.ndim == 2 else stored[:, None], dtype=np.float64)
    if not samples.size or rate < 1:
        raise DataError(f"{path} holds no samples: copy it again from its source.")
    if not np.isfinite(samples).all():
        raise DataError(f"{path} holds values that are not finite: export it again.")
    return int(rate), samples


def wave_bytes(rate: int, samples: NDArray[np.generic], comment: bytes = b"") -> bytes:
    """A WAV file of int16 or float32 samples [n] or [n, channels]; the same samples give the same bytes.

    Args:
        rate: Samples per second.
        samples: What it holds.
        comment: Text for a list of information ahead of the samples, as editors show it.
    """
    from scipy.io import wavfile

    buffer = io.BytesIO()
    wavfile.write(buffer, rate, samples)
    data = buffer.getvalue()
    if not comment:
        return data
    text = comment + b"\0" * (2 - len(comment) % 2)
    body = b"INFOICMT" + struct.pack("<I", len(text)) + text
    chunk = b"LIST" + struct.pack("<I", len(body)) + body
    at = data.index(b"data", _HEAD)
    size = struct.pack("<I", len(data) - 8 + len(chunk))
    return data[:4] + size + data[8:at] + chunk + data[at:]


def _fault(data: bytes) -> str:
    """What is wrong with the file's structure; empty when nothing is."""
    if not data:
        return "is empty"
    if len(data) < _HEAD or data[:4] != b"RIFF" or data[8:_HEAD] != b"WAVE":
        return "is no WAV file"
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        return "is cut off"
    return ""
