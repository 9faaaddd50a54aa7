"""The data of one site: its splits as tensors, and what holds for them wherever they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from fedretina.data.manifest import PRETRAIN, SPLITS
from fedretina.data.scheme import GradingScheme
from fedretina.data.scheme_presets import PRESETS
from fedretina.errors import DataError
from fedretina.exchange.min_count import MIN_COUNT


class Split(NamedTuple):
    """One split.

    Attributes:
        images: uint8 [N, 3, H, W]: RGB, three equal channels of an OCT scan or a spectrogram, or the three axes of a
            sensor with H 1; may be a map of the cache's file, so it must not be written to.
        labels: int64 [N], the class; -1 throughout for "pretrain".
        patients: Patient of each image.
        files: Name of each image at the site; like the patient it never leaves.
    """

    images: torch.Tensor
    labels: torch.Tensor
    patients: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class SiteData:
    """A site's data; nothing of a split is read before it is asked for.

    Attributes:
        name: The site.
        grading: Its grades; None where it only pre-trains and has told none.
        counts: Images a split: the labelled ones of "train", "val" and "test", and in "pretrain" all of train, labelled
            or not.
        synthetic: Whether there are phantoms among the images, drawn here or read from files that say so.
        bad_files: How many images could not be read and were left out.
        fingerprint: SHA-256 over pixels, labels and splits: equal for equal data, whatever the order of rows.
        min_count: Fewest patients behind any count or figure of answers that leaves the site.
        listed: SHA-256 over the manifest's files, labels, patients and splits, those of files that cannot be read
            among them; "" where nothing is listed, for phantoms.
        changes: What becomes of a run whose site comes with another list later; see `SiteDataSettings`.
    """

    name: str
    grading: GradingScheme | None
    counts: Mapping[str, int]
    synthetic: bool
    bad_files: int
    fingerprint: str
    _read: Callable[[str], Split]
    min_count: int = MIN_COUNT
    listed: str = ""
    changes: Literal["refuse", "accept"] = "refuse"

    @property
    def scheme(self) -> GradingScheme:
        """The site's grades.

        Raises:
            DataError: It has told none.
        """
        if self.grading is None:
            raise scheme_not_set(self.name)
        return self.grading

    @property
    def graded(self) -> dict[str, int]:
        """Labelled images of train, val and test."""
        return {split: self.counts[split] for split in SPLITS}

    def may_be_told(self, name: str) -> bool:
        """Whether figures of a split may leave the site: at least `min_count` patients stand behind them."""
        return len(set(self.split(name).patients)) >= self.min_count

    def split(self, name: str) -> Split:
        """Read "train", "val" or "test", or "pretrain", whose labels are all -1.

        Raises:
            DataError: There is no such split.
        """
        if name not in self.counts:
            raise DataError(f"there is no split {name!r}: use one of {[*SPLITS, PRETRAIN]}.")
        return self._read(name)


def require_splits(site: str, labels: Mapping[str, Sequence[int]], bad_files: int, needs_labels: bool = True) -> None:
    """Refuse data that a job could not use.

    Args:
        site: Name of the site.
        labels: Class of each image by split, those to pre-train on among them where no labels are needed.
        bad_files: How many images could not be read.
        needs_labels: See `load_site_data`.

    Raises:
        DataError: A split that the job needs is empty, or train has one class only.
    """
    left_out = f" ({bad_files} images could not be read)" if bad_files else ""
    if not needs_labels:
        if not labels[PRETRAIN]:
            raise DataError(
                f"{site} has no image in train to pre-train on{left_out}: list some, with labels or without."
            )
        return
    for split in SPLITS:
        if not labels[split]:
            raise DataError(
                f"{site} has no labelled image in {split}{left_out}: each of train, val and test needs some."
            )
    if len(set(labels["train"])) == 1:
        raise DataError(
            f"all {len(labels['train'])} training images of {site} have one grade{left_out}: "
            "a network cannot learn to tell grades apart; add images of another grade."
        )


def fingerprint(scheme: GradingScheme | None, lines: Sequence[str]) -> str:
    """SHA-256 over a site's grades and what decides its pixels, labels and splits.

    Args:
        scheme: The grades; None where the site has told none.
        lines: What decides the rest, in an order that does not depend on the manifest's.
    """
    text = "\n".join(["" if scheme is None else scheme.model_dump_json(), *lines])
    return hashlib.sha256(text.encode()).hexdigest()


def scheme_not_set(site: str) -> DataError:
    """What is said where a site has told no grades and a job needs them."""
    return DataError(f"the grading scheme of {site} is not set: name one of {', '.join(PRESETS)}, or list the grades.")
