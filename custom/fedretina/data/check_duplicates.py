"""Photographs that a site has more than once: equal pixels, and copies that were changed on the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedretina.data.check_findings import Findings
from fedretina.data.check_rows import Image
from fedretina.settings.images import Modality
from fedretina.settings.scheme import GradingScheme

# Correlation of fine structure from which two images count as one photograph. On 8,801 images of four public sets
# (11.6 million pairs) the largest of two different photographs is 0.90, and eight pairs above 0.96 are copies; copies
# saved again as JPEG at quality 50, halved or cut by 2 % on each side reach 0.92 in 95 % of the cases or more. On
# 2,859 OCT scans of two sets, scans of different healthy eyes reach 0.95; 54 pairs are above 0.96, and the twenty of
# them that were looked at are copies or neighbours in one volume.
ALIKE: Mapping[Modality, float] = MappingProxyType({"fundus": 0.92, "oct": 0.96, "dermoscopy": 0.96})
MOST_PAIRS = 10_000  # more are a site of one photograph, and would fill the memory
_ROWS, _COLUMNS = 1024, 8192  # of the block of correlations that is in memory


def check_duplicates(
    images: Sequence[Image],
    digests: Sequence[str],
    details: Sequence[NDArray[np.float16]],
    scheme: GradingScheme | None,
    findings: Findings,
    modality: Modality = "fundus",
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
    if modality not in ALIKE:
        return  # pictures of signals are alike by nature: only the same values tell a copy
    pairs = islice(similar_pairs(stacked, ALIKE[modality]), MOST_PAIRS)
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
