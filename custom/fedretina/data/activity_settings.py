"""What is done to each window of an accelerometer once, before anything random."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# Raised whenever the values that a pipeline gives change, so that old caches are seen as stale.
PIPELINE_VERSION = 1


class ActivitySettings(BaseModel):
    """Settings of windows of a three-axis accelerometer.

    A window is stored as bytes, like a picture: three channels, one row, `length` columns. So caches, digests, random
    transforms and networks treat it as any sample, and a window takes 3 kB instead of 12. With `reach` 30 a step is
    30 / 127.5 = 0.24 m/s2, six times the resolution of PAMAP2's sensor (13 bits over plus and minus 16 g). What
    rounding adds has a deviation of 0.07 m/s2; lying, sitting and standing differ in where gravity, 9.8 m/s2, points,
    and the other activities swing by several m/s2.

    The set itself could not be had when this was written: none of it has been tried on real windows.

    Attributes:
        modality: "activity", which tells these settings from those of other modalities.
        length: Samples of a window, 64 to 10,000; 1000 are 10 s at 100 Hz, as in FedEE.
        rate: Samples a second; files of another rate are refused.
        reach: Acceleration in m/s2, gravity included, that a byte reaches in each direction, 1 to 200; what lies
            beyond is clipped. 30 is 3 g; blows on a wrist are short and mean little.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["activity"] = "activity"
    length: int = Field(default=1000, ge=64, le=10_000)
    rate: int = Field(default=100, ge=1, le=10_000)
    reach: float = Field(default=30.0, ge=1, le=200)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        return 3, 1, self.length

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal values."""
        record = {"pipeline": PIPELINE_VERSION, **self.model_dump()}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
