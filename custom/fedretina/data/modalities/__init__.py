"""The kinds of data that a run can take, one file each, called by the modality's name; it ends with its `MODALITY`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.kind import PhantomKind
from fedretina.errors import SettingsError
from fedretina.settings.images import SETTINGS_OF, SIGNALS, ImageSettings, Modality, image_settings


class Look(NamedTuple):
    """What the check of a site's data expects pictures of a modality to look like.

    Attributes:
        retina: Whether they are colour photographs of a retina on a dark border.
        grey: Whether colours in them are odd. Its pipeline then gives three equal channels, of which random views are
            drawn once.
        longest: Longer by shorter side from which a shape is odd.
        alike: Correlation of fine structure from which two of them count as one photograph, see
            `check.pixels.check_duplicates`; None where only equal pixels do.
    """

    retina: bool = False
    grey: bool = False
    longest: float = math.inf
    alike: float | None = None


_PLAIN = Look()


@dataclass(frozen=True)
class DataModality:
    """A kind of data; its settings class also says its name, its words, and which random transforms make sense.

    Attributes:
        settings: The class of its settings, a member of `ImageSettings`.
        pipeline: The deterministic transforms: from settings to a function that takes the path of a file to uint8,
            `settings.shape`, and raises DataError where the file cannot be read.
        phantoms: How synthetic ones are drawn.
        look: What the check expects of pictures.
        sample: Of a signal, what a network gets: (float64 samples, samples per second, settings) to uint8,
            `settings.shape`; None of pictures.
    """

    settings: type[Any]
    pipeline: Callable[[Any], Callable[[str | Path], NDArray[np.uint8]]]
    phantoms: PhantomKind
    look: Look = _PLAIN
    sample: Callable[[NDArray[np.float64], int, Any], NDArray[np.uint8]] | None = None


def modality_named(name: Modality) -> DataModality:
    """The modality of a name; its file is imported when it is first asked for."""
    found: DataModality = import_module(f"{__name__}.{name}").MODALITY
    return found


def image_pipeline(settings: ImageSettings) -> Callable[[str | Path], NDArray[np.uint8]]:
    """The deterministic transforms of a modality: path of a file to uint8, `settings.shape`; imports MONAI for some.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    return modality_named(settings.modality).pipeline(settings)


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


def require_modality(own: Modality | None, asked: str) -> None:
    """Refuse a job of another modality than a site's images are of.

    Args:
        own: What the site's images are; None where the site does not know, which refuses nothing.
        asked: The job's.

    Raises:
        SettingsError: They differ. It may leave the site, so it names nothing of it but the modality.
    """
    if own is not None and own != asked:
        words = {str(name): kind.words for name, kind in SETTINGS_OF.items()}
        raise SettingsError(
            f"the job takes {words.get(asked, asked)} (images.modality {asked!r}), and this site has {words[own]}: "
            "leave the site out of the job, or mend data.modality or data.scheme in its site file."
        )
