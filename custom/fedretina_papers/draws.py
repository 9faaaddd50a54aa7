"""Draws of what sites have labelled: whole patients, nested, and the same for every row of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedretina.data.site_data import SiteData, Split
from fedretina.seeds import derive_seed


def some(split: Split, wanted: int, seed: int) -> Split:
    """So many images of a split, whole patients in the order of a draw: a smaller choice lies within a larger one.

    Args:
        split: The images.
        wanted: Images, 1 or more; the patient with whom the number is reached is taken whole.
        seed: Of the draw.
    """
    held: dict[str, list[int]] = {}
    for at, patient in enumerate(split.patients):
        held.setdefault(patient, []).append(at)
    chosen: list[int] = []
    for patient in sorted(held, key=lambda one: (derive_seed(seed, one), one)):
        if len(chosen) >= wanted:
            break
        chosen += held[patient]
    return rows_of(split, sorted(chosen))


def rows_of(split: Split, rows: Sequence[int]) -> Split:
    """Some images of a split.

    Args:
        split: The images.
        rows: Their places in it.
    """
    at = list(rows)
    patients, files = (tuple(names[row] for row in at) for names in (split.patients, split.files))
    digests = tuple(split.digests[row] for row in at) if split.digests else ()
    return Split(split.images[at], split.labels[at], patients, files, digests)


def drawn(data: SiteData, budget: int, draw: int, limit: Mapping[Any, int], min_count: int = 1) -> SiteData:
    """A site that has labelled so many of its training images, and a quarter as many, 10 or more, to validate on.

    Args:
        data: All that it has.
        budget: Training images.
        draw: Number of the draw.
        limit: At most so many images of "val" and "test".
        min_count: Fewest patients of a grade that is in the sums. 1: every grade; images of public sets need not be
            kept back.
    """
    most = min(max(10, budget // 4), limit.get("val", budget))
    taken = {
        "train": some(data.split("train"), budget, derive_seed(data.name, "train", draw)),
        "val": some(data.split("val"), most, derive_seed(data.name, "val", draw)),
        "test": data.split("test"),
    }
    if "test" in limit:  # of every draw the same
        taken["test"] = some(taken["test"], limit["test"], derive_seed(data.name, "test"))
    counts = {name: len(one.labels) for name, one in taken.items()}
    return replace(data, _read=taken.__getitem__, counts=counts, min_count=min_count)
