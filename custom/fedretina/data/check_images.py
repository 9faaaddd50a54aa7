"""What is odd about images: their size, their shape, their colours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedretina.data.check_findings import Findings
from fedretina.data.check_rows import Image
from fedretina.settings.images import SIGNALS, Modality

if TYPE_CHECKING:
    from fedretina.data.check_pixels import PixelFacts

# Set on 8,801 images of four public sets, one of them with equalised colours, so that few of them are called odd:
# there luminance reaches from 19 to 208 (and one strip without a retina at 7), chroma from 4.8 (1.3), spread from 3.3,
# the burnt share to 0.14, blue to 1.21 times red.
DARK, BRIGHT, BURNT = 20.0, 200.0, 0.2
GREY, BLANK, BLUE = 3.0, 1.0, 1.25
COLOURED = 10.0  # chroma of an OCT scan; grey scans that were saved as colour JPEG stay below 2
_OF_PHOTOGRAPHS = frozenset(("no_field_of_view", "image_grey", "channels_swapped", "image_overexposed"))
_OF_SIGNALS = frozenset(("image_blank",))  # size, shape and colours are the transforms' own
LONG: Mapping[Modality, float] = MappingProxyType(
    {"fundus": 2.0, "oct": 4.0, "dermoscopy": 2.0}
)  # longer by shorter side
ODD = 4.0  # times the median
SHALLOW = 1 << 14  # of 65536 levels: what 14 bits fill
SMALL = 0.9  # times the side that the network takes; the retina's box is known to a few pixels only


def check_images(
    images: Sequence[Image],
    facts: Sequence[PixelFacts],
    image_size: int,
    findings: Findings,
    modality: Modality = "fundus",
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
    dim = _check_depth(images, facts, findings)
    shown = [fact for fact in facts if fact.spread >= BLANK] or list(facts)
    median = statistics.median(max(fact.width, fact.height) for fact in shown)

    def note(code: str, odd: Callable[[PixelFacts], bool], words: Callable[[PixelFacts], str]) -> None:
        if (modality != "fundus" and code in _OF_PHOTOGRAPHS) or (modality in SIGNALS and code not in _OF_SIGNALS):
            return
        found = [
            (image.file, fact)
            for image, fact in zip(images, facts, strict=True)
            if image.file not in dim and (code == "image_blank" or fact.spread >= BLANK) and odd(fact)
        ]
        findings.add(code, [f"{file} ({words(fact)})" for file, fact in found], [(file,) for file, _ in found])

    shows = _retina if modality == "fundus" else _whole
    note("image_small", lambda fact: max(shows(fact)) < SMALL * image_size, lambda fact: _size(shows(fact)))
    note(
        "size_odd",
        lambda fact: not median / ODD <= max(fact.width, fact.height) <= median * ODD,
        lambda fact: _size((fact.width, fact.height)),
    )
    note(
        "aspect_odd",
        lambda fact: max(_aspect(_whole(fact)), _aspect(shows(fact))) > LONG.get(modality, math.inf),
        lambda fact: _size(_whole(fact)) + (f", retina {_size(shows(fact))}" if modality == "fundus" else ""),
    )
    note("no_field_of_view", lambda fact: fact.retina is None, lambda fact: _size((fact.width, fact.height)))
    note("image_blank", lambda fact: fact.spread < BLANK, lambda fact: f"grey levels vary by {fact.spread:.1f}")
    note("image_grey", lambda fact: fact.chroma < GREY, lambda fact: f"colours vary by {fact.chroma:.1f}")
    note(
        "image_coloured",
        lambda fact: modality == "oct" and fact.chroma >= COLOURED,
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
