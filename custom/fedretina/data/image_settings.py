"""Image settings by modality, and the pipeline that each stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Tag

from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.oct_settings import OctSettings


def _modality(value: Any) -> str:
    """The modality of settings or of words for them; words that name none mean fundus photographs."""
    found = value.get("modality", "fundus") if isinstance(value, dict) else getattr(value, "modality", "fundus")
    return str(found)


ImageSettings = Annotated[
    Annotated[FundusSettings, Tag("fundus")] | Annotated[OctSettings, Tag("oct")],
    Discriminator(
        _modality,
        custom_error_type="modality_unknown",
        custom_error_message="modality must be 'fundus' or 'oct'",
    ),
]
"""Fundus photographs or OCT scans, told apart by `modality`."""


def image_pipeline(settings: ImageSettings) -> Callable[[str | Path], NDArray[np.uint8]]:
    """The deterministic transforms of a modality: path of a file to uint8 [3, S, S]; imports MONAI.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    if isinstance(settings, OctSettings):
        from fedretina.data.oct_transforms import oct_pipeline

        return oct_pipeline(settings)
    from fedretina.data.transforms import fundus_pipeline

    return fundus_pipeline(settings)
