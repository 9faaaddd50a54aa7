"""What a run takes: the kinds of data, what is done to each sample once, and what is drawn anew each time."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from fedretina.errors import SettingsError
from fedretina.settings.choice import Choice

_OF_PICTURES = frozenset(("flip", "rotate_degrees", "brightness", "contrast"))


class ImageSettings(Choice):
    """What a run takes: a kind of data, with the settings of what is done to each sample once.

    A kind of data has two halves: its settings, a class below this one that gives it its name, and a file in
    `data.modalities` with what does the work, below `@modality(ITS_SETTINGS)`. A package of somebody else's brings
    both in a module that it names as an entry point of the group `fedretina.parts`.

    Attributes:
        pipeline: Raised whenever the values that its transforms give change, so that old caches are seen as stale.
        words: What its samples are called in a sentence.
        healthy: What no grade of its samples proves, in a sentence.
        ordered: Whether what its samples show comes in grades, one worse than another, and not in kinds.
        signal: Whether its files are WAV files and no pictures.
        augments: The random transforms that make sense.
        dicom: Modality (0008,0060) of DICOM files that hold its samples; empty where none do.
        modality: What a job and a site file call it.
    """

    key: ClassVar[str] = "modality"
    default: ClassVar[str | None] = "fundus"
    pipeline: ClassVar[int] = 1
    words: ClassVar[str]
    healthy: ClassVar[str] = "a healthy person"
    ordered: ClassVar[bool] = False
    signal: ClassVar[bool] = False
    augments: ClassVar[frozenset[str]] = _OF_PICTURES
    dicom: ClassVar[str] = ""
    modality: str

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""

    def digest(self) -> str:
        """SHA-256 of the settings and the pipeline's version: equal digests give equal values."""
        record = {"pipeline": self.pipeline, **self.model_dump()}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def modality_settings(name: str) -> type[ImageSettings]:
    """The settings' class of a modality; other packages are asked only for a name that the product does not have.

    Raises:
        SettingsError: There is none of that name.
    """
    return ImageSettings.named(name, "modality")


def image_settings(modality: str, side: int | None = None) -> ImageSettings:
    """The settings of a modality as they are by default, with square pictures of a side where it has some.

    Args:
        modality: Which.
        side: Side of the square picture, pixels; None for the modality's own. Windows of activity have none.

    Raises:
        SettingsError: There is no such modality.
    """
    kind = modality_settings(modality)
    sized: dict[str, Any] = {"image_size": side} if side is not None and "image_size" in kind.model_fields else {}
    return kind(**sized)


def has_order(settings: Mapping[str, Any]) -> bool:
    """Whether the classes of a run come in grades, see `ImageSettings.ordered`; settings of old name no modality.

    Args:
        settings: As the ends of the run agreed on them. Of a modality that is not installed here no order is claimed.
    """
    kind = modality_of(settings)
    return kind is not None and kind.ordered


def samples_words(settings: Mapping[str, Any]) -> str:
    """What the samples of a run are called in a sentence, see `ImageSettings.words`; "images" where nobody knows.

    Args:
        settings: As for `has_order`.
    """
    kind = modality_of(settings)
    return "images" if kind is None else kind.words


def modality_of(settings: Mapping[str, Any]) -> type[ImageSettings] | None:
    """The modality of a run; None where it is not installed here.

    Args:
        settings: As for `has_order`.
    """
    try:
        return modality_settings(settings.get("images", {}).get("modality", ImageSettings.default))
    except SettingsError:
        return None


class SquareSettings(ImageSettings):
    """What the settings have in common of what a network sees as a square picture.

    Attributes:
        image_size: Side S of the square image in pixels, 32 to 1024.
    """

    image_size: int = Field(default=256, ge=32, le=1024)

    @property
    def shape(self) -> tuple[int, int, int]:
        """See `ImageSettings.shape`."""
        return 3, self.image_size, self.image_size


class FundusSettings(SquareSettings):
    """Fundus photographs.

    Attributes:
        modality: "fundus".
        crop: Crop to the bright field of view and pad it to a square.
        enhance: "clahe" (contrast-limited equalisation of lightness), "ben_graham" (local average
            subtracted), or "none".
    """

    words: ClassVar[str] = "fundus photographs"
    healthy: ClassVar[str] = "a healthy eye"
    ordered: ClassVar[bool] = True
    augments: ClassVar[frozenset[str]] = _OF_PICTURES | {"flip_vertical", "quarter_turns"}
    dicom: ClassVar[str] = "OP"

    modality: Literal["fundus"] = "fundus"
    crop: bool = True
    enhance: Literal["none", "clahe", "ben_graham"] = "none"

    def digest(self) -> str:
        """See `ImageSettings.digest`."""
        # The modality stays out: it is always the same, and caches from before it was named stay valid.
        record = {"pipeline": self.pipeline, **self.model_dump(exclude={"modality"})}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class OctSettings(SquareSettings):
    """OCT B-scans.

    Attributes:
        modality: "oct".
        mask_borders: Paint the white margins that a scanner leaves around a moved or turned scan with the scan's own
            dark level, and cut off its outermost hundredth; the margins could tell the site or the class.
    """

    words: ClassVar[str] = "OCT scans"
    healthy: ClassVar[str] = "a healthy eye"
    dicom: ClassVar[str] = "OPT"

    modality: Literal["oct"] = "oct"
    mask_borders: bool = True


class DermoscopySettings(SquareSettings):
    """Dermoscopic pictures of skin.

    Attributes:
        modality: "dermoscopy".
        image_size: Side S of the square image in pixels, 32 to 1024; 200 is what FLamby's networks see.
        constancy: Divide the colour of the light out, as FLamby does (shades of grey); lamps differ between clinics.
    """

    words: ClassVar[str] = "dermoscopic pictures of skin"
    healthy: ClassVar[str] = "healthy skin"
    augments: ClassVar[frozenset[str]] = _OF_PICTURES | {"flip_vertical", "quarter_turns"}

    modality: Literal["dermoscopy"] = "dermoscopy"
    image_size: int = Field(default=200, ge=32, le=1024)
    constancy: bool = True


class HeartSoundSettings(SquareSettings):
    """Heart sounds, which a network sees as spectrograms.

    FedEE's input is 101 x 99. It does not say how it is made; windows of 0.1 s, 0.05 s apart, give exactly that of
    5 s at the 2 kHz that the set is published in: 101 frequencies, 0 to 1000 Hz in steps of 10, at 99 times.

    Attributes:
        modality: "heart_sound".
        image_size: Side S of the square that the spectrogram is resampled to, 32 to 1024.
        seconds: Length of the segment that is taken from the beginning of a file, 1 to 60; what is missing is silence.
        window_s: Length of a window of the spectrogram in seconds, 0.02 to 0.5.
        hop_s: From one window to the next in seconds, above 0, at most a window.
        top_hz: Highest frequency, 100 to 4000; sounds are resampled to twice that. Heart sounds and murmurs lie below
            600 Hz. Files that were recorded at less than twice this frequency have an empty upper part, which tells
            them from others: choose what all sites' files hold.
        range_db: How far below the segment's loudest point the scale reaches, in decibels, 20 to 120.
    """

    words: ClassVar[str] = "recordings of hearts"
    healthy: ClassVar[str] = "a healthy heart"
    signal: ClassVar[bool] = True
    augments: ClassVar[frozenset[str]] = frozenset(("brightness", "contrast", "roll"))

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


class ActivitySettings(ImageSettings):
    """Windows of a three-axis accelerometer.

    A window is stored as bytes, like a picture: three channels, one row, `length` columns. So caches, digests, random
    transforms and networks treat it as any sample, and a window takes 3 kB instead of 12. With `reach` 30 a step is
    30 / 127.5 = 0.24 m/s2, six times the resolution of PAMAP2's sensor (13 bits over plus and minus 16 g). What
    rounding adds has a deviation of 0.07 m/s2; lying, sitting and standing differ in where gravity, 9.8 m/s2, points,
    and the other activities swing by several m/s2.

    The set itself could not be had when this was written: none of it has been tried on real windows.

    Attributes:
        modality: "activity".
        length: Samples of a window, 64 to 10,000; 1000 are 10 s at 100 Hz, as in FedEE.
        rate: Samples per second; files of another rate are refused.
        reach: Acceleration in m/s2, gravity included, that a byte reaches in each direction, 1 to 200; what lies
            beyond is clipped. 30 is 3 g; blows on a wrist are short and mean little.
    """

    words: ClassVar[str] = "windows of an accelerometer"
    signal: ClassVar[bool] = True
    augments: ClassVar[frozenset[str]] = frozenset(("roll", "gain"))

    modality: Literal["activity"] = "activity"
    length: int = Field(default=1000, ge=64, le=10_000)
    rate: int = Field(default=100, ge=1, le=10_000)
    reach: float = Field(default=30.0, ge=1, le=200)

    @property
    def shape(self) -> tuple[int, int, int]:
        """See `ImageSettings.shape`."""
        return 3, 1, self.length


_ORIENTATIONS = ("flip", "flip_vertical", "quarter_turns")


class AugmentSettings(BaseModel):
    """Settings of the random transforms.

    The defaults are those of the FedUAA code: RandomHorizontalFlip and RandomRotation(30).

    Attributes:
        flip: Mirror left and right, half of the time.
        rotate_degrees: Rotate by an angle uniform in plus or minus this, 0 to 180.
        brightness: Multiply by a factor uniform in 1 plus or minus this, 0 to 0.9.
        contrast: Scale around the image's mean by a factor uniform in 1 plus or minus this, 0 to 0.9.
        flip_vertical: Mirror up and down, half of the time: for pictures without an up and a down, as of skin.
        quarter_turns: Turn by 0, 90, 180 or 270 degrees, each a quarter of the time; no pixel changes its value.
        roll: Turn time around by a share of its length uniform in plus or minus this, 0 to 0.5: what leaves at the end
            comes in at the beginning. For signals and spectrograms.
        gain: Scale around half of the range, the zero of an accelerometer, by a factor uniform in 1 plus or minus
            this, 0 to 0.9. For signals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flip: bool = True
    rotate_degrees: float = Field(default=30.0, ge=0, le=180)
    brightness: float = Field(default=0.0, ge=0, le=0.9)
    contrast: float = Field(default=0.0, ge=0, le=0.9)
    flip_vertical: bool = False
    quarter_turns: bool = False
    roll: float = Field(default=0.0, ge=0, le=0.5)
    gain: float = Field(default=0.0, ge=0, le=0.9)

    @model_serializer(mode="wrap")
    def _without_unused(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Settings of runs from before there were these fields stay as they were, and so their digests.
        settings: dict[str, Any] = plain(self)
        later = ("flip_vertical", "quarter_turns", "roll", "gain")
        return {name: value for name, value in settings.items() if value or name not in later}

    @property
    def endless(self) -> tuple[str, ...]:
        """The settings in use that give other pixels each time; flips and quarter turns give eight pictures at most."""
        return tuple(name for name, value in self if value and name not in _ORIENTATIONS)

    def unfit(self, images: type[ImageSettings] | ImageSettings) -> tuple[str, ...]:
        """The settings that are in use and make no sense for a modality, told by its settings.

        A mirrored spectrogram runs backwards in time or has its frequencies upside down, a turned one mixes the two;
        the layers of a retina have an order from top to bottom; and a picture has no time to roll.
        """
        return tuple(name for name, value in self if value and name not in images.augments)


class TwoViewSettings(BaseModel):
    """Settings of the random views.

    The OCT paper names none; these are MoCo v2's (Chen et al. 2020) less what grey scans lack, colour shifts, and
    with a small rotation and speckle. There is no flip upside down: the layers of a retina have an order.

    Attributes:
        crop_scale: Least and most area of the crop, shares of the image, above 0 to 1.
        crop_ratio: Least and most width of the crop over its height, 0.1 to 10, drawn evenly in the logarithm.
        flip: Mirror left and right, half of the time.
        rotate_degrees: Rotate by an angle uniform in plus or minus this, 0 to 180.
        brightness: Multiply by a factor uniform in 1 plus or minus this, 0 to 0.9.
        contrast: Scale around the whole image's mean by a factor uniform in 1 plus or minus this, 0 to 0.9.
        colour_probability: How often brightness and contrast change, 0 to 1.
        blur_probability: How often the view is blurred, 0 to 1.
        blur_sigma: Least and most standard deviation of the blur, above 0 to 16 pixels of an image of 224; an image
            of 64 pixels is blurred by 64 / 224 of it.
        speckle: Multiplicative noise, its standard deviation uniform between 0 and this, 0 to 0.5.
        speckle_probability: How often there is speckle, 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    crop_scale: tuple[float, float] = (0.2, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    rotate_degrees: float = 10.0
    brightness: float = 0.4
    contrast: float = 0.4
    colour_probability: float = 0.8
    blur_probability: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    speckle: float = 0.1
    speckle_probability: float = 0.5

    @field_validator("crop_scale")
    @classmethod
    def _check_scale(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] <= 1:
            raise ValueError(f"crop_scale is {value}: give the least and the most share of the area, above 0 to 1.")
        return value

    @field_validator("crop_ratio")
    @classmethod
    def _check_ratio(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0.1 <= value[0] <= value[1] <= 10:
            raise ValueError(f"crop_ratio is {value}: give the least and the most width over height, 0.1 to 10.")
        return value

    @field_validator("rotate_degrees")
    @classmethod
    def _check_angle(cls, value: float) -> float:
        if not 0 <= value <= 180:
            raise ValueError(f"rotate_degrees is {value}: give 0 to 180; OCT scans lie level, so 10 is much.")
        return value

    @field_validator("brightness", "contrast")
    @classmethod
    def _check_colour(cls, value: float) -> float:
        if not 0 <= value <= 0.9:
            raise ValueError(f"brightness or contrast is {value}: give 0 to 0.9, so that no view is black.")
        return value

    @field_validator("colour_probability", "blur_probability", "speckle_probability")
    @classmethod
    def _check_probability(cls, value: float) -> float:
        if not 0 <= value <= 1:
            raise ValueError(f"a probability of the views is {value}: give 0 to 1.")
        return value

    @field_validator("blur_sigma")
    @classmethod
    def _check_blur(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] <= 16:
            raise ValueError(
                f"blur_sigma is {value}: give the least and the most in pixels of an image of 224, above 0 to 16; "
                "blur_probability 0 turns the blur off."
            )
        return value

    @field_validator("speckle")
    @classmethod
    def _check_speckle(cls, value: float) -> float:
        if not 0 <= value <= 0.5:
            raise ValueError(f"speckle is {value}: give a standard deviation of 0 to 0.5, 0 for none.")
        return value
