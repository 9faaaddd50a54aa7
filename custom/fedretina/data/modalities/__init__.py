"""The kinds of data that a run can take, one file each: a class below `DataModality` with what does the work.

Its settings, which say what it is called and what can be done with it, stand in `settings.images`, where checks of a
run read them without numpy. This file has what all kinds share, and the steps that transforms of pictures have in
common, whatever they show: over uint8 arrays, run by MONAI's Compose.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedretina.data.decode import decode_image
from fedretina.data.phantoms.kind import PhantomKind
from fedretina.errors import DataError, SettingsError
from fedretina.parts import Register
from fedretina.settings.choice import Choice
from fedretina.settings.images import ImageSettings, image_settings, modality_settings

Pixels = NDArray[np.uint8]
Step = Callable[[Pixels], Pixels]


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


class DataModality(ABC):
    """What does the work for a kind of pictures, and for signals as far as they are treated alike.

    Attributes:
        phantoms: How synthetic ones are drawn; every modality has some, so that a rehearsal needs no patient.
        look: What the check expects of pictures.
    """

    phantoms: ClassVar[PhantomKind]
    look: ClassVar[Look] = Look()

    @staticmethod
    @abstractmethod
    def pipeline(settings: Any) -> Callable[[str | Path], Pixels]:
        """The deterministic transforms: path of a file to uint8, `settings.shape`.

        Args:
            settings: The modality's.

        Raises:
            DataError: When called on a file that cannot be read.
        """


class SignalModality(DataModality):
    """What does the work for a kind of signals, whose files are WAV files."""

    @staticmethod
    @abstractmethod
    def sample(samples: NDArray[np.float64], rate: int, settings: Any) -> Pixels:
        """What a network gets of a signal: uint8, `settings.shape`.

        Args:
            samples: float64 [n] or [n, channels], in the unit of the files.
            rate: Samples per second.
            settings: The modality's.
        """


def _fits(settings: type[Choice], part: type[DataModality]) -> None:
    """Refuse a modality whose phantoms are not of what its settings say that it takes."""
    kind = cast(type[ImageSettings], settings)
    has = (issubclass(part, SignalModality), part.phantoms.wave is not None, part.phantoms.picture is None)
    if has != (kind.signal,) * 3:
        needed = "signals: let it be a SignalModality, with phantoms that have `wave` and no `picture`"
        if not kind.signal:
            needed = "pictures: let it be no SignalModality, with phantoms that have `picture` and no `wave`"
        raise SettingsError(f"{kind.__name__} says that {part.__name__} takes {needed}; or mend its `signal`.")


modality: Register[type[DataModality]] = Register(__name__, _fits)
"""The modalities, by the class of their settings."""


def modality_named(name: str) -> type[DataModality]:
    """What does the work for a modality of a name.

    Raises:
        SettingsError: There is none of that name.
    """
    return modality.of(image_settings(name))


def image_pipeline(settings: ImageSettings) -> Callable[[str | Path], Pixels]:
    """The deterministic transforms of a modality: path of a file to uint8, `settings.shape`; imports MONAI for some.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    return modality.of(settings).pipeline(settings)


def decoder(name: str) -> Callable[[str | Path], Pixels]:
    """What shows a file of a modality to a person: pictures as stored, signals as a picture of what a network gets.

    Returns:
        Path of a file to uint8 [H, W, 3]; raises DataError where it cannot be read.
    """
    settings = image_settings(name)
    if not settings.signal:
        return decode_image
    pipeline = image_pipeline(settings)
    return lambda path: np.ascontiguousarray(pipeline(path).transpose(1, 2, 0))


def require_modality(own: str | None, asked: ImageSettings) -> None:
    """Refuse a job of another modality than a site's images are of.

    Args:
        own: What the site's images are; None where the site does not know, which refuses nothing.
        asked: The job's.

    Raises:
        SettingsError: They differ. It may leave the site, so it names nothing of it but the modality.
    """
    if own is not None and own != asked.modality:
        raise SettingsError(
            f"the job takes {asked.words} (images.modality {asked.modality!r}), and this site has "
            f"{modality_settings(own).words}: leave the site out of the job, or mend data.modality or data.scheme in "
            "its site file."
        )


class ResizeArea:
    """Resize to a square, uint8 [S, S, 3] or [S, S]: area averages when it shrinks, bilinear when it grows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Pixels) -> Pixels:
        """Return the resized image; the aspect of an image that is not square is lost."""
        return resized(image, self.size, self.size, max(image.shape[:2]) > self.size)


class ChannelsFirst:
    """uint8 [S, S, 3] to contiguous [3, S, S], as the cache stores it."""

    def __call__(self, image: Pixels) -> Pixels:
        """Return the transposed copy."""
        return np.ascontiguousarray(image.transpose(2, 0, 1))


def resized(image: Pixels, height: int, width: int, shrinks: bool) -> Pixels:
    """Resize by area averages where it shrinks, which keeps small lesions from aliasing, else bilinearly."""
    import cv2  # only images that are not in the cache need it

    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cast(Pixels, cv2.resize(image, (width, height), interpolation=method))


def padded_square(image: Pixels, level: int) -> Pixels:
    """The image [H, W] or [H, W, 3] in the middle of a square of one level; its side is the longer one's."""
    height, width = image.shape[:2]
    size = max(height, width)
    square = np.full((size, size, *image.shape[2:]), level, np.uint8)
    y, x = (size - height) // 2, (size - width) // 2
    square[y : y + height, x : x + width] = image
    return square


def picture_pipeline(steps: Sequence[Step]) -> Callable[[str | Path], Pixels]:
    """Load a picture and put it through the steps: path to what the last of them gives.

    The decoder is our own and not MONAI's LoadImage, so that every damaged file gives one kind of error and 16
    bits, alpha and orientation have one meaning.

    Args:
        steps: From uint8 [H, W, 3], RGB, on.

    Raises:
        DataError: When called on a file that cannot be read.
    """
    from monai.transforms import Compose  # takes seconds, and only images that are not in the cache need it

    compose = Compose(list(steps), log_stats=False)

    def run(path: str | Path | Pixels) -> Pixels:  # or a picture that is decoded already
        # Compose wraps every error and logs its input, so it sees pixels only, never the name of a file.
        pixels = path if isinstance(path, np.ndarray) else decode_image(path)
        try:
            return cast(Pixels, compose(pixels))
        except RuntimeError as error:
            named = "a picture" if isinstance(path, np.ndarray) else path
            raise DataError(f"{named} of shape {pixels.shape} cannot be transformed ({error}).") from error

    return run
