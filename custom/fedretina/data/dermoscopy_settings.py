"""What is done to each dermoscopic picture once, before anything random."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# Raised whenever the pixels that a pipeline gives change, so that old caches are seen as stale.
PIPELINE_VERSION = 1


class DermoscopySettings(BaseModel):
    """Settings of the deterministic transforms of dermoscopic pictures.

    Attributes:
        modality: "dermoscopy", which tells these settings from those of other modalities.
        image_size: Side S of the square image in pixels, 32 to 1024; 200 is what FLamby's networks see.
        constancy: Divide the colour of the light out, as FLamby does (shades of grey); lamps differ between clinics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["dermoscopy"] = "dermoscopy"
    image_size: int = Field(default=200, ge=32, le=1024)
    constancy: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        return 3, self.image_size, self.image_size

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal pixels."""
        record = {"pipeline": PIPELINE_VERSION, **self.model_dump()}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
