"""Faults of a manifest's rows, all of them, where `read_manifest` stops at the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from fedretina.data.check_findings import Findings
from fedretina.data.check_source import Row
from fedretina.data.manifest import SPLITS, require_inside
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme

NO_LABEL = "no label"  # what images without one are called beside the grades
RARE = 5  # images of a grade in test below which its figures say little


class Image(NamedTuple):
    """A listed image.

    Attributes:
        place: Where its row stands, in words.
        file: Relative to the image root, in plain form.
        label: The class; None where the label is refused or there is none.
        patient: May be empty.
        split: "train", "val" or "test"; None where the split is refused.
        unlabelled: Whether it is of train and has no label, and so counts for pre-training alone.
    """

    place: str
    file: str
    label: int | None
    patient: str
    split: str | None
    unlabelled: bool = False


def check_rows(rows: Sequence[Row], scheme: GradingScheme | None, findings: Findings) -> list[Image]:
    """Check what can be checked without a file, and give each listed image once.

    An image whose label, patient or split is refused is given all the same, so that its file is checked too.
    """
    images: dict[str, Image] = {}
    rows_of: dict[str, list[str]] = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        name = f"{row.place}: {row.file!r}" if row.place != row.file else row.file
        label, split = _label(row.label, scheme), row.split if row.split in SPLITS else None
        unlabelled = not row.label and split == "train"
        if unlabelled:
            refused["label_none"].append(name)
        elif label is None:
            refused["label_outside_scheme"].append(f"{name}: label {row.label!r}")
        if split is None:
            refused["split_unknown"].append(f"{name}: split {row.split!r}")
        if not row.patient:
            refused["patient_empty"].append(name)
        try:
            file = require_inside(row.file)
        except DataError:
            refused["file_name_refused"].append(name)
            continue
        rows_of[file].append(row.place)
        images.setdefault(file, Image(row.place, file, label, row.patient, split, unlabelled))
    twice = [f"{file!r}: {', '.join(places)}" for file, places in rows_of.items() if len(places) > 1]
    refused["file_listed_twice"] = twice
    for code, where in refused.items():
        findings.add(code, where)
    listed = list(images.values())
    _check_patients(rows, listed, findings)
    return listed


def check_counts(images: Sequence[Image], scheme: GradingScheme | None, findings: Findings) -> dict[str, list[int]]:
    """Check that each split and grade has images among those that can be used; returns images a grade and split.

    A site without a scheme only pre-trains: it needs an image in train and nothing more.
    """
    if scheme is None:
        findings.add("split_empty", [] if any(image.unlabelled for image in images) else ["train"])
        return {split: [] for split in SPLITS}
    counts = {split: [0] * scheme.num_classes for split in SPLITS}
    for image in images:
        if image.split is not None and image.label is not None:
            counts[image.split][image.label] += 1
    filled = [split for split in SPLITS if any(counts[split])]
    findings.add("split_empty", [split for split in SPLITS if split not in filled])
    present = [grade for grade, count in zip(scheme.grades, counts["train"], strict=True) if count]
    findings.add("one_grade_in_train", present if len(present) == 1 else [])
    missing = [
        f"no {grade!r} in {split}"
        for split in filled
        for grade, count in zip(scheme.grades, counts[split], strict=True)
        if not count
    ]
    findings.add("grade_missing", missing)
    rare = [
        f"{count} {grade!r} in test"
        for grade, count in zip(scheme.grades, counts["test"], strict=True)
        if 0 < count < RARE
    ]
    findings.add("grade_rare_in_test", rare)
    findings.add("referable_not_set", [] if scheme.referable else ["the grading scheme"])
    return counts


def _label(raw: str, scheme: GradingScheme | None) -> int | None:
    try:
        return None if scheme is None else scheme.index(raw)
    except DataError:
        return None


def _check_patients(rows: Sequence[Row], images: Sequence[Image], findings: Findings) -> None:
    homes: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row.patient and row.split in SPLITS:
            homes[row.patient].setdefault(row.split, row.place)
    torn = [
        f"{patient!r}: {', '.join(f'{split} ({place})' for split, place in home.items())}"
        for patient, home in homes.items()
        if len(home) > 1
    ]
    findings.add("patient_in_two_splits", torn)

    spellings: dict[str, list[str]] = defaultdict(list)
    for patient in homes:
        spellings["".join(patient.casefold().split())].append(patient)
    doubtful = [
        ", ".join(f"{patient!r} in {'/'.join(homes[patient])}" for patient in names)
        for names in spellings.values()
        if len({split for patient in names for split in homes[patient]}) > 1 and len(names) > 1
    ]
    findings.add("patient_spelled_twice", doubtful)
    alone = len(homes) == len(images) > 1
    findings.add("patients_unknown", [f"{len(images)} images, {len(homes)} patients"] if alone else [])
