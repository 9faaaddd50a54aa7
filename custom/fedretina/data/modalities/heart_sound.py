"""Heart sounds: from a recording to the picture of its spectrogram, and what stands with it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from fedretina.data.modalities import SignalModality, modality
from fedretina.data.phantoms.signals import HEART_PHANTOMS
from fedretina.data.wav import read_wave
from fedretina.errors import DataError
from fedretina.settings.images import HeartSoundSettings


def spectrogram_picture(sound: NDArray[np.float64], rate: int, settings: HeartSoundSettings) -> NDArray[np.uint8]:
    """The spectrogram of a sound's beginning as a picture: time to the right, frequency upwards.

    Black is `range_db` below the loudest point and white that point itself, so the gain of a recording does not count.

    Args:
        sound: float64 [n], in any unit.
        rate: Samples per second.
        settings: Of the spectrogram.

    Returns:
        uint8 [3, S, S], three equal channels.
    """
    levels = spectrogram_db(sound, rate, settings)
    grey = (levels / settings.range_db + 1) * 255
    side = settings.image_size
    method = cv2.INTER_AREA if min(grey.shape) > side else cv2.INTER_LINEAR
    small = cv2.resize(grey[::-1].astype(np.float32), (side, side), interpolation=method)
    picture = np.clip(np.round(small), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(picture, (3, side, side)))


def spectrogram_db(sound: NDArray[np.float64], rate: int, settings: HeartSoundSettings) -> NDArray[np.float64]:
    """Power of a sound's beginning by frequency and time, Hann windows, in decibels of its loudest point.

    Args:
        sound: float64 [n], in any unit.
        rate: Samples per second.
        settings: Of the spectrogram.

    Returns:
        float64 [frequencies, times], -range_db to 0; frequencies ascend from 0 to top_hz. All is -range_db in silence.
    """
    from scipy.signal import resample_poly, spectrogram

    wanted = 2 * settings.top_hz
    begin = sound[: round(settings.seconds * rate)]
    begin = begin - begin.mean()
    if rate != wanted:
        ratio = Fraction(wanted, rate)
        begin = resample_poly(begin, ratio.numerator, ratio.denominator)
    whole = np.zeros(round(settings.seconds * wanted))
    whole[: len(begin)] = begin[: len(whole)]
    window = round(settings.window_s * wanted)
    power = spectrogram(
        whole, wanted, "hann", window, window - round(settings.hop_s * wanted), detrend=False, mode="psd"
    )[2]
    loudest = float(np.max(power))
    floor = 10 ** (-settings.range_db / 10)
    share = power / loudest if loudest > 0 else np.zeros_like(power)
    levels: NDArray[np.float64] = 10 * np.log10(np.maximum(share, floor))
    return levels


@modality(HeartSoundSettings)
class HeartSound(SignalModality):
    """Recordings of hearts, which a network sees as pictures of their spectrograms."""

    phantoms = HEART_PHANTOMS

    @staticmethod
    def pipeline(settings: HeartSoundSettings) -> Callable[[str | Path], NDArray[np.uint8]]:
        """Load, resample, cut, transform: path of a WAV file to uint8 [3, S, S], three equal channels.

        Raises:
            DataError: When called on a file that cannot be read, or that is silent.
        """

        def run(path: str | Path) -> NDArray[np.uint8]:
            rate, samples = read_wave(path)
            if not samples.any():
                raise DataError(f"{path} is silent: leave it out, or record it again.")
            return spectrogram_picture(samples.mean(axis=1), rate, settings)

        return run

    @staticmethod
    def sample(samples: NDArray[np.float64], rate: int, settings: HeartSoundSettings) -> NDArray[np.uint8]:
        """See `SignalModality.sample`."""
        return spectrogram_picture(samples, rate, settings)
