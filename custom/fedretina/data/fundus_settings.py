"""What is done to each fundus photograph once, before anything random."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# Raised whenever the pixels that a pipeline gives change, so that old caches are seen as stale.
PIPELINE_VERSION = 1


class FundusSettings(BaseModel):
    """Settings of the deterministic transforms of fundus photographs.

    Attributes:
        modality: "fundus", which tells these settings from those of OCT scans.
        image_size: Side S of the square image in pixels, 32 to 1024.
        crop: Crop to the bright field of view and pad it to a square.
        enhance: "clahe" (contrast-limited equalisation of lightness), "ben_graham" (local average
            subtracted), or "none".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["fundus"] = "fundus"
    image_size: int = Field(default=256, ge=32, le=1024)
    crop: bool = True
    enhance: Literal["none", "clahe", "ben_graham"] = "none"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        return 3, self.image_size, self.image_size

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal pixels."""
        # The modality stays out: it is always the same, and caches from before it was named stay valid.
        record = {"pipeline": PIPELINE_VERSION, **self.model_dump(exclude={"modality"})}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
