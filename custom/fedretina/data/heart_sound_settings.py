"""What is done to each heart sound once, before anything random."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Raised whenever the pixels that a pipeline gives change, so that old caches are seen as stale.
PIPELINE_VERSION = 1


class HeartSoundSettings(BaseModel):
    """Settings of the spectrogram of a heart sound.

    FedEE's input is 101 x 99. It does not say how it is made; windows of 0.1 s, 0.05 s apart, give exactly that of
    5 s at the 2 kHz that the set is published in: 101 frequencies, 0 to 1000 Hz in steps of 10, at 99 times.

    Attributes:
        modality: "heart_sound", which tells these settings from those of other modalities.
        image_size: Side S of the square that the spectrogram is resampled to, 32 to 1024.
        seconds: Length of the segment that is taken from the beginning of a file, 1 to 60; what is missing is silence.
        window_s: Length of a window of the spectrogram in seconds, 0.02 to 0.5.
        hop_s: From one window to the next in seconds, above 0, at most a window.
        top_hz: Highest frequency, 100 to 4000; sounds are resampled to twice that. Heart sounds and murmurs lie below
            600 Hz. Files that were recorded at less than twice this frequency have an empty upper part, which tells
            them from others: choose what all sites' files hold.
        range_db: How far below the segment's loudest point the scale reaches, in decibels, 20 to 120.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["heart_sound"] = "heart_sound"
    image_size: int = Field(default=96, ge=32, le=1024)
    seconds: float = Field(default=5.0, ge=1, le=60)
    window_s: float = Field(default=0.1, ge=0.02, le=0.5)
    hop_s: float = Field(default=0.05, gt=0, le=0.5)
    top_hz: int = Field(default=1000, ge=100, le=4000)
    range_db: float = Field(default=80.0, ge=20, le=120)

    @model_validator(mode="after")
    def _windows_touch(self) -> Self:
        if self.hop_s > self.window_s or round(self.hop_s * 2 * self.top_hz) < 1:
            raise ValueError(f"hop_s is {self.hop_s}: give a sample at least and a window ({self.window_s} s) at most.")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        return 3, self.image_size, self.image_size

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal pixels."""
        record = {"pipeline": PIPELINE_VERSION, **self.model_dump()}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
