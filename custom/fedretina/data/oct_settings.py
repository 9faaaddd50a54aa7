"""What is done to each OCT scan once, before anything random."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# Raised whenever the pixels that a pipeline gives change, so that old caches are seen as stale.
PIPELINE_VERSION = 1


class OctSettings(BaseModel):
    """Settings of the deterministic transforms of OCT B-scans.

    Attributes:
        modality: "oct", which tells these settings from those of fundus photographs.
        image_size: Side S of the square image in pixels, 32 to 1024.
        mask_borders: Paint the white margins that a scanner leaves around a moved or turned scan with the scan's own
            dark level, and cut off its outermost hundredth; the margins could tell the site or the class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["oct"] = "oct"
    image_size: int = Field(default=256, ge=32, le=1024)
    mask_borders: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        return 3, self.image_size, self.image_size

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal pixels."""
        record = {"pipeline": PIPELINE_VERSION, **self.model_dump()}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
