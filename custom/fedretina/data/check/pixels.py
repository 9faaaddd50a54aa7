"""What the pixels of a site's images tell: measurements, odd images, and photographs that it has twice."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from fedretina.data.check.limits import BLANK, BLUE, BRIGHT, BURNT, COLOURED, DARK, GREY
from fedretina.data.check.rows import Image
from fedretina.data.check.rules import Findings
from fedretina.data.decode import eight_bits, read_pixels
from fedretina.data.modalities import Pixels, modality_named
from fedretina.data.modalities.fundus import FieldOfViewCrop
from fedretina.errors import DataError
from fedretina.settings.images import modality_settings
from fedretina.settings.scheme import GradingScheme

_IN_FLIGHT = 4  # images a worker, so that large photographs do not fill the memory
_COLOUR_SIDE = 64
_DETAIL_SIDE, _DETAIL_GRID = 128, 24
_FINE, _COARSE, _CONTRAST = 2.5, 6.0, 12.0  # standard deviations of Gaussians, pixels of _DETAIL_SIDE


class PixelFacts(NamedTuple):
    """What one image measures.

    Attributes:
        width: Of the decoded image, pixels.
        height: Of the decoded image, pixels.
        retina: Width and height of the field of view; None where no dark border was found.
        digest: SHA-256 of the decoded pixels and their shape.
        colour: Mean red, green and blue of the retina, 0 to 255.
        spread: Standard deviation of the retina's luminance.
        chroma: Mean distance of a pixel's most deviant channel from its grey.
        burnt: Share of the retina where all channels are at least 245.
        detail: float16 [D], a unit vector of the retina's fine structure, or zeros where there is none; see `_detail`.
        peak: Largest stored value of an image of 16 bits, 0 to 65535; None of one of 8 bits.
    """

    width: int
    height: int
    retina: tuple[int, int] | None
    digest: str
    colour: tuple[float, float, float]
    spread: float
    chroma: float
    burnt: float
    detail: NDArray[np.float16]
    peak: int | None = None

    @property
    def luminance(self) -> float:
        """Mean luminance of the retina, 0 to 255."""
        red, green, blue = self.colour
        return 0.299 * red + 0.587 * green + 0.114 * blue


def measure(stored: Pixels | NDArray[np.uint16]) -> PixelFacts:
    """Measure an image, uint8 or uint16 [H, W, 3], RGB; all but the peak as decoding makes it, 8 bits."""
    image = eight_bits(stored)
    height, width = image.shape[:2]
    box = FieldOfViewCrop().box(image)
    crop = image if box is None else image[box[0] : box[1], box[2] : box[3]]
    small = cv2.resize(crop, (_COLOUR_SIDE, _COLOUR_SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    retina = small[_disc(_COLOUR_SIDE, 0.9)]
    red, green, blue = (float(value) for value in retina.mean(axis=0))
    return PixelFacts(
        width,
        height,
        None if box is None else (box[3] - box[2], box[1] - box[0]),
        hashlib.sha256(f"{height} {width} ".encode() + np.ascontiguousarray(image).data).hexdigest(),
        (red, green, blue),
        float(np.std(retina @ np.array([0.299, 0.587, 0.114], np.float32))),
        float(np.mean(np.max(np.abs(retina - retina.mean(axis=1, keepdims=True)), axis=1))),
        float(np.mean(np.min(retina, axis=1) >= 245)),
        _detail(crop),
        int(np.max(stored)) if stored.dtype == np.uint16 else None,
    )


def measure_files(
    root: Path,
    files: Sequence[str],
    workers: int,
    done: Callable[[], None],
    decode: Callable[[str | Path], Pixels | NDArray[np.uint16]] = read_pixels,
) -> Iterator[PixelFacts | DataError]:
    """Decode each file once and measure it, in the order given; a file that cannot be read gives its error.

    Args:
        root: Image root.
        files: Names relative to it.
        workers: Threads; OpenCV lets the interpreter's lock go. 0 takes one a core, at most 8.
        done: Called after each image.
        decode: What reads a file, to uint8 or uint16 [H, W, 3].
    """

    def one(file: str) -> PixelFacts | DataError:
        try:
            return measure(decode(root / file))
        except DataError as error:
            return error

    threads = workers or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for begin in range(0, len(files), threads * _IN_FLIGHT):
            for facts in pool.map(one, files[begin : begin + threads * _IN_FLIGHT]):
                done()
                yield facts


def _detail(crop: Pixels) -> NDArray[np.float16]:
    """Vessels, disc and lesions as a unit vector whose product with another is their correlation.

    A difference hash of fundus photographs compares little but the lighting, which all images of a camera share: on
    four public sets 64 bits within a distance of 2 call one pair in 80 to 300 duplicates. So the green channel is
    band-passed and divided by its local contrast first, inside the retina alone, since the rim of the disc is the same
    in all images. Equal after a change of size, aspect, brightness or compression.
    """
    small = cv2.resize(crop, (_DETAIL_SIDE, _DETAIL_SIDE), interpolation=cv2.INTER_AREA)
    bright = cv2.medianBlur(small.max(axis=2), 5).astype(np.float32)
    inside = _disc(_DETAIL_SIDE, 0.86) & (bright > 0.25 * np.percentile(bright, 95))
    mask = cv2.erode(inside.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(np.float32)

    def smooth(values: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
        weight: NDArray[np.float32] = cv2.GaussianBlur(mask, (0, 0), sigma) + np.float32(1e-3)
        blurred: NDArray[np.float32] = cv2.GaussianBlur(values * mask, (0, 0), sigma)
        return blurred / weight

    green = small[..., 1].astype(np.float32)
    band = (smooth(green, _FINE) - smooth(green, _COARSE)) * mask
    flat = band / (np.sqrt(smooth(band * band, _CONTRAST)) + np.float32(0.5))
    grid = cv2.resize(flat, (_DETAIL_GRID, _DETAIL_GRID), interpolation=cv2.INTER_AREA)[_disc(_DETAIL_GRID, 0.9)]
    length = float(np.linalg.norm(grid))
    # A blank or nearly black image has only rounding left; it is like no other.
    unit: NDArray[np.float32] = grid / length if length > 0.05 * len(grid) ** 0.5 else np.zeros_like(grid)
    return unit.astype(np.float16)


@cache
def _disc(side: int, share: float) -> NDArray[np.bool_]:
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    disc: NDArray[np.bool_] = y**2 + x**2 < (share * side / 2) ** 2
    return disc


_OF_PHOTOGRAPHS = frozenset(("no_field_of_view", "image_grey", "channels_swapped", "image_overexposed"))
_OF_SIGNALS = frozenset(("image_blank",))  # size, shape and colours are the transforms' own
ODD = 4.0  # times the median
SHALLOW = 1 << 14  # of 65536 levels: what 14 bits fill
SMALL = 0.9  # times the side that the network takes; the retina's box is known to a few pixels only


def check_images(
    images: Sequence[Image],
    facts: Sequence[PixelFacts],
    image_size: int,
    findings: Findings,
    modality: str = "fundus",
) -> None:
    """Find images that are odd; one whose depth is wrong, and then one with one colour, is called nothing else.

    Args:
        images: Images whose pixels were read.
        facts: What each measures.
        image_size: Side of the square that the network takes, pixels.
        findings: Where they are noted.
        modality: OCT scans are grey, wide, have no disc and often a white border, so nothing of that is odd; nor is
            a dermoscopic picture without a disc, pale or bluish. Of a signal only that it is flat is told.
    """
    if not images:
        return
    look, signal = modality_named(modality).look, modality_settings(modality).signal
    dim = _check_depth(images, facts, findings)
    shown = [fact for fact in facts if fact.spread >= BLANK] or list(facts)
    median = statistics.median(max(fact.width, fact.height) for fact in shown)

    def note(code: str, odd: Callable[[PixelFacts], bool], words: Callable[[PixelFacts], str]) -> None:
        if (not look.retina and code in _OF_PHOTOGRAPHS) or (signal and code not in _OF_SIGNALS):
            return
        found = [
            (image.file, fact)
            for image, fact in zip(images, facts, strict=True)
            if image.file not in dim and (code == "image_blank" or fact.spread >= BLANK) and odd(fact)
        ]
        findings.add(code, [f"{file} ({words(fact)})" for file, fact in found], [(file,) for file, _ in found])

    shows = _retina if look.retina else _whole
    note("image_small", lambda fact: max(shows(fact)) < SMALL * image_size, lambda fact: _size(shows(fact)))
    note(
        "size_odd",
        lambda fact: not median / ODD <= max(fact.width, fact.height) <= median * ODD,
        lambda fact: _size((fact.width, fact.height)),
    )
    note(
        "aspect_odd",
        lambda fact: max(_aspect(_whole(fact)), _aspect(shows(fact))) > look.longest,
        lambda fact: _size(_whole(fact)) + (f", retina {_size(shows(fact))}" if look.retina else ""),
    )
    note("no_field_of_view", lambda fact: fact.retina is None, lambda fact: _size((fact.width, fact.height)))
    note("image_blank", lambda fact: fact.spread < BLANK, lambda fact: f"grey levels vary by {fact.spread:.1f}")
    note("image_grey", lambda fact: fact.chroma < GREY, lambda fact: f"colours vary by {fact.chroma:.1f}")
    note(
        "image_coloured",
        lambda fact: look.grey and fact.chroma >= COLOURED,
        lambda fact: f"colours vary by {fact.chroma:.1f}",
    )
    note(
        "channels_swapped",
        lambda fact: fact.chroma >= GREY and fact.colour[2] > BLUE * fact.colour[0],
        lambda fact: f"red {fact.colour[0]:.0f}, blue {fact.colour[2]:.0f}",
    )
    note("image_dark", lambda fact: fact.luminance < DARK, lambda fact: f"brightness {fact.luminance:.0f} of 255")
    note(
        "image_overexposed",
        lambda fact: fact.luminance > BRIGHT or fact.burnt > BURNT,
        lambda fact: f"brightness {fact.luminance:.0f} of 255, white {fact.burnt:.0%}",
    )


def _check_depth(images: Sequence[Image], facts: Sequence[PixelFacts], findings: Findings) -> frozenset[str]:
    """Note the images of 16 bits that use a quarter of their range, where most do; one alone may just be dark.

    Returns:
        Their files.
    """
    deep = [(image.file, fact.peak) for image, fact in zip(images, facts, strict=True) if fact.peak]
    low = [(file, peak) for file, peak in deep if peak < SHALLOW]
    if len(low) <= len(deep) / 2:
        return frozenset()
    words = [f"{file} (largest value {peak} of 65535)" for file, peak in low]
    findings.add("bit_depth_odd", words, [(file,) for file, _ in low])
    return frozenset(file for file, _ in low)


def _retina(fact: PixelFacts) -> tuple[int, int]:
    return fact.retina or (fact.width, fact.height)


def _whole(fact: PixelFacts) -> tuple[int, int]:
    return fact.width, fact.height


def _aspect(size: tuple[int, int]) -> float:
    return max(size) / max(1, min(size))


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


MOST_PAIRS = 10_000  # more are a site of one photograph, and would fill the memory
_ROWS, _COLUMNS = 1024, 8192  # of the block of correlations that is in memory


def check_duplicates(
    images: Sequence[Image],
    digests: Sequence[str],
    details: Sequence[NDArray[np.float16]],
    scheme: GradingScheme | None,
    findings: Findings,
    modality: str = "fundus",
) -> None:
    """Find duplicates among images whose pixels were read.

    Args:
        images: The images.
        digests: Of the decoded pixels of each.
        details: The vector of fine structure of each, see `PixelFacts.detail`.
        scheme: Names of the grades.
        findings: Where they are noted.
        modality: Layers of two OCT scans are more alike than vessels of two eyes.
    """
    groups = _groups(digests)
    equal = [[images[at] for at in group] for group in groups if len(group) > 1]
    for code, found in (
        ("duplicate_with_other_label", [group for group in equal if _differ(group, "label")]),
        ("duplicate_across_splits", [group for group in equal if _differ(group, "split")]),
        ("duplicate_in_split", [group for group in equal if not _differ(group, "split")]),
    ):
        where = [_words(group, scheme) for group in found]
        findings.add(code, where, [[image.file for image in group] for group in found])

    # One image stands for all with the same pixels.
    first = [group[0] for group in groups]
    stacked = np.stack([details[at] for at in first]) if first else np.zeros((0, 1), np.float16)
    alike_from = modality_named(modality).look.alike
    if alike_from is None:
        return  # pictures of signals are alike by nature: only the same values tell a copy
    pairs = islice(similar_pairs(stacked, alike_from), MOST_PAIRS)
    near = [((images[first[a]], images[first[b]]), alike) for a, b, alike in pairs]
    told = [
        (pair, alike) for pair, alike in near if any(_differ(pair, field) for field in ("patient", "label", "split"))
    ]
    told.sort(key=lambda one: (-one[1], one[0][0].file, one[0][1].file))
    where = [f"{_words(pair, scheme)}, alike by {alike:.2f}" for pair, alike in told]
    findings.add("near_duplicate", where, [[image.file for image in pair] for pair, _ in told])


def similar_pairs(details: NDArray[np.float16], alike: float) -> Iterator[tuple[int, int, float]]:
    """Pairs (i, j, correlation) with i < j whose unit vectors [N, D] correlate by `alike` or more.

    All pairs are looked at, block by block: a matrix product of 90,000 images takes minutes less than decoding them.
    """
    for top in range(0, len(details), _ROWS):
        rows = details[top : top + _ROWS].astype(np.float32)
        for left in range(top, len(details), _COLUMNS):
            product = rows @ details[left : left + _COLUMNS].astype(np.float32).T
            for row, column in np.argwhere(product >= alike):
                if top + row < left + column:
                    yield int(top + row), int(left + column), float(product[row, column])


def _groups(digests: Sequence[str]) -> list[list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for at, digest in enumerate(digests):
        places[digest].append(at)
    return list(places.values())


def _differ(group: Sequence[Image], field: str) -> bool:
    values: set[Hashable] = {getattr(image, field) for image in group}
    return len(values - {None}) > 1


def _words(group: Sequence[Image], scheme: GradingScheme | None) -> str:
    grades = ["no grade" if image.label is None or scheme is None else scheme.grades[image.label] for image in group]
    return " = ".join(
        f"{image.file} ({grade}, {image.split or 'no split'})" for image, grade in zip(group, grades, strict=True)
    )
