"""Image settings by modality, and the pipeline that each stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.settings.images import (
    SIGNALS,
    ActivitySettings,
    DermoscopySettings,
    HeartSoundSettings,
    ImageSettings,
    Modality,
    OctSettings,
    image_settings,
)


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
