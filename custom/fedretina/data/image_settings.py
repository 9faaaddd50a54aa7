"""Image settings by modality, and the pipeline that each stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Tag

from fedretina.data.activity_settings import ActivitySettings
from fedretina.data.dermoscopy_settings import DermoscopySettings
from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.heart_sound_settings import HeartSoundSettings
from fedretina.data.modality import MODALITIES, SIGNALS, Modality
from fedretina.data.oct_settings import OctSettings


def _modality(value: Any) -> str:
    """The modality of settings or of words for them; words that name none mean fundus photographs."""
    found = value.get("modality", "fundus") if isinstance(value, dict) else getattr(value, "modality", "fundus")
    return str(found)


ImageSettings = Annotated[
    Annotated[FundusSettings, Tag("fundus")]
    | Annotated[OctSettings, Tag("oct")]
    | Annotated[DermoscopySettings, Tag("dermoscopy")]
    | Annotated[HeartSoundSettings, Tag("heart_sound")]
    | Annotated[ActivitySettings, Tag("activity")],
    Discriminator(
        _modality,
        custom_error_type="modality_unknown",
        custom_error_message=f"modality must be one of {', '.join(map(repr, MODALITIES))}",
    ),
]
"""Settings of what a run takes, told apart by `modality`. Each has `shape`, channels, height and width of a sample."""


def image_settings(modality: Modality, side: int | None = None) -> ImageSettings:
    """The settings of a modality as they are by default, with square pictures of a side where it has some.

    Args:
        modality: Which.
        side: Side of the square picture, pixels; None for the modality's own. Windows of activity have none.
    """
    size = {} if side is None else {"image_size": side}
    if modality == "fundus":
        return FundusSettings(**size)
    if modality == "oct":
        return OctSettings(**size)
    if modality == "dermoscopy":
        return DermoscopySettings(**size)
    return HeartSoundSettings(**size) if modality == "heart_sound" else ActivitySettings()


def image_pipeline(settings: ImageSettings) -> Callable[[str | Path], NDArray[np.uint8]]:
    """The deterministic transforms of a modality: path of a file to uint8, `settings.shape`; imports MONAI for some.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    if isinstance(settings, OctSettings):
        from fedretina.data.oct_transforms import oct_pipeline

        return oct_pipeline(settings)
    if isinstance(settings, DermoscopySettings):
        from fedretina.data.dermoscopy_transforms import dermoscopy_pipeline

        return dermoscopy_pipeline(settings)
    if isinstance(settings, HeartSoundSettings):
        from fedretina.data.heart_sound_transforms import heart_sound_pipeline

        return heart_sound_pipeline(settings)
    if isinstance(settings, ActivitySettings):
        from fedretina.data.activity_transforms import activity_pipeline

        return activity_pipeline(settings)
    from fedretina.data.fundus_transforms import fundus_pipeline

    return fundus_pipeline(settings)


def decoder(modality: Modality) -> Callable[[str | Path], NDArray[np.uint8]]:
    """What shows a file to a person: pictures as they are stored, signals as a picture of what a network gets.

    Returns:
        Path of a file to uint8 [H, W, 3]; raises DataError where it cannot be read.
    """
    if modality not in SIGNALS:
        from fedretina.data.decode import decode_image

        return decode_image
    pipeline = image_pipeline(image_settings(modality))
    return lambda path: np.ascontiguousarray(pipeline(path).transpose(1, 2, 0))
