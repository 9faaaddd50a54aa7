"""Windows of an accelerometer: from samples to bytes, and what stands with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.data.modalities import SignalModality, modality
from fedretina.data.phantoms.signals import ACTIVITY_PHANTOMS
from fedretina.data.wav import read_wave
from fedretina.errors import DataError
from fedretina.settings.images import ActivitySettings


def window_bytes(samples: NDArray[np.floating], settings: ActivitySettings) -> NDArray[np.uint8]:
    """A window in m/s2, [n, 3] with n at least the length, as uint8 [3, 1, length]; 0 m/s2 is between 127 and 128."""
    share = np.clip(samples[: settings.length].T / settings.reach, -1, 1)
    return np.ascontiguousarray(np.round((share + 1) * 127.5).astype(np.uint8)[:, None, :])


@modality(ActivitySettings)
class Activity(SignalModality):
    """Windows of an accelerometer at a wrist."""

    phantoms = ACTIVITY_PHANTOMS

    @staticmethod
    def pipeline(settings: ActivitySettings) -> Callable[[str | Path], NDArray[np.uint8]]:
        """Load a window and round it: path of a WAV file of three channels in m/s2 to uint8 [3, 1, length].

        Of a longer file the beginning counts.

        Raises:
            DataError: When called on a file that cannot be read, has other channels, another rate, or too few samples.
        """

        def run(path: str | Path) -> NDArray[np.uint8]:
            rate, samples = read_wave(path)
            if rate != settings.rate or samples.shape[1] != 3 or len(samples) < settings.length:
                raise DataError(
                    f"{path} holds {len(samples)} samples of {samples.shape[1]} channels at {rate} Hz, expected "
                    f"{settings.length} of 3 at {settings.rate} Hz: cut the windows again, or set images.length and "
                    "images.rate."
                )
            return window_bytes(samples, settings)

        return run

    @staticmethod
    def sample(samples: NDArray[np.float64], rate: int, settings: ActivitySettings) -> NDArray[np.uint8]:
        """See `SignalModality.sample`."""
        return window_bytes(samples, settings)
