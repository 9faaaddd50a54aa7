"""The contact sheet of a site: some images of each grade, as they are stored and as the network sees them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.check.rows import Image
from fedretina.data.modalities import decoder, image_pipeline
from fedretina.errors import DataError
from fedretina.seeds import derive_seed
from fedretina.settings.images import ImageSettings
from fedretina.settings.scheme import GradingScheme

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

EACH = 12
SIDE = 144
NOTICE = "Shows images of patients: it stays at this hospital."
SYNTHETIC = "SYNTHETIC IMAGES, drawn by a program: no patient is shown."
_GAP, _LABEL, _CAPTION, _TOP = 4, 196, 16, 76
_PAPER, _INK, _SOFT = (255, 255, 255), (17, 17, 17), (85, 85, 85)

Pixels = NDArray[np.uint8]


class Shown(NamedTuple):
    """An image on the sheet.

    Attributes:
        file: Its name at the site.
        split: Its split; empty where that is refused.
        stored: As it is stored, made smaller, uint8 [h, w, 3] with neither side over `SIDE`.
        seen: As the network sees it, uint8 [SIDE, SIDE, 3].
    """

    file: str
    split: str
    stored: Pixels
    seen: Pixels


def choose_images(
    images: Sequence[Image], scheme: GradingScheme | None, root: Path, settings: ImageSettings
) -> list[list[Shown]]:
    """Draw up to `EACH` images of each grade by a hash of their names, so that the same site gives the same sheet.

    Images that cannot be read are passed over. Those of train without a label make a last row, where there are some.
    """
    pipeline = image_pipeline(settings)
    rows = [[image for image in images if image.label == label] for label in range(scheme.num_classes if scheme else 0)]
    without = [image for image in images if image.unlabelled]
    chosen: list[list[Shown]] = []
    for of_a_kind in [*rows, without] if without else rows:
        drawn = sorted(
            of_a_kind,
            key=lambda image: (derive_seed("contact sheet", image.file), image.file),
        )
        row: list[Shown] = []
        for image in drawn:
            if len(row) == EACH:
                break
            try:
                seen = pipeline(root / image.file).transpose(1, 2, 0)
                row.append(
                    Shown(
                        image.file,
                        image.split or "",
                        stored_thumbnail(root / image.file, modality=settings.modality),
                        _square(seen),
                    )
                )
            except DataError:
                continue
        chosen.append(row)
    return chosen


def stored_thumbnail(path: Path, modality: str = "fundus") -> Pixels:
    """Decode an image, or draw a signal, and make it smaller, uint8 [h, w, 3] with the longer side at most `SIDE`.

    Raises:
        DataError: The file cannot be read.
    """
    import cv2

    pixels = decoder(modality)(path)
    height, width = pixels.shape[:2]
    share = min(1.0, SIDE / max(height, width))
    size = (max(1, round(width * share)), max(1, round(height * share)))
    small: Pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return small


def contact_sheet(
    site: str,
    chosen: Sequence[Sequence[Shown]],
    names: Sequence[str],
    counts: Mapping[str, Sequence[int]],
    image_size: int,
    synthetic: bool,
) -> bytes:
    """Draw the sheet: for each grade a row of stored images above the same images as the network sees them.

    Args:
        site: Name of the site.
        chosen: The images of each grade, from `choose_images`.
        names: What stands beside each row: the grades, and what images without one are called.
        counts: Images per grade, for each split.
        image_size: Side of the square that the network takes, pixels.
        synthetic: Whether the images are phantoms.

    Returns:
        A PNG file; the same images give the same bytes.
    """
    from PIL import Image as Picture
    from PIL import ImageDraw

    title, text, small = _font(20), _font(14), _font(10)
    columns = max(1, *(len(row) for row in chosen))
    high = 2 * SIDE + _GAP + _CAPTION
    size = (max(760, _LABEL + columns * (SIDE + _GAP)), _TOP + len(chosen) * (high + 2 * _GAP))
    sheet = Picture.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((8, 8), f"{site}: images by grade", fill=_INK, font=title)
    pen.text((8, 34), SYNTHETIC if synthetic else NOTICE, fill=_INK, font=text)
    says = f"Of each grade up to {EACH}, drawn by lot. Above as stored, below as the network sees it"
    pen.text((8, 54), f"{says} ({image_size} x {image_size} pixels).", fill=_SOFT, font=text)
    for at, row in enumerate(chosen):
        top = _TOP + at * (high + 2 * _GAP)
        pen.line((0, top - _GAP, size[0], top - _GAP), fill=_SOFT)
        pen.text((8, top), _fitting(pen, names[at], text, _LABEL - 16), fill=_INK, font=text)
        told = {split: numbers for split, numbers in counts.items() if at < len(numbers)}
        for line, (split, numbers) in enumerate(told.items(), 1):
            pen.text((8, top + 4 + 18 * line), f"{split}: {numbers[at]}", fill=_SOFT, font=text)
        for column, one in enumerate(row):
            left = _LABEL + column * (SIDE + _GAP)
            pen.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), fill=(224, 224, 224))
            height, width = one.stored.shape[:2]
            place = (left + (SIDE - width) // 2, top + (SIDE - height) // 2)
            sheet.paste(Picture.fromarray(one.stored), place)
            sheet.paste(Picture.fromarray(one.seen), (left, top + SIDE + _GAP))
            # The end of a file's name tells images apart.
            name = _fitting(pen, one.file[::-1], small, SIDE)[::-1]
            pen.text((left, top + 2 * SIDE + _GAP + 2), name, fill=_SOFT, font=small)
    file = io.BytesIO()
    sheet.save(file, format="PNG")
    return file.getvalue()


def _square(seen: Pixels) -> Pixels:
    import cv2

    # Nearest neighbours when it grows, so that a coarse image looks as coarse as it is.
    method = cv2.INTER_AREA if seen.shape[0] > SIDE else cv2.INTER_NEAREST
    square: Pixels = cv2.resize(seen, (SIDE, SIDE), interpolation=method)
    return square


def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu, which comes with matplotlib and has Latin, Greek and Cyrillic letters."""
    import matplotlib as mpl
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def _fitting(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """The text, cut off where it is wider than `width` pixels."""
    if pen.textlength(text, font=font) <= width:
        return text
    while text and pen.textlength(f"{text}…", font=font) > width:
        text = text[:-1]
    return f"{text}…"
