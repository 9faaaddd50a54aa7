"""The page of `fedretina data check`: findings with the images that they speak of, counts, and the contact sheet."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedretina.data.check.contact_sheet import EACH, Shown, stored_thumbnail
from fedretina.data.check.rows import NO_LABEL
from fedretina.data.check.rules import Finding
from fedretina.errors import DataError
from fedretina.plurals import counted
from fedretina.report.page_templates import templates
from fedretina.report.text import NOTICE, STAYS

if TYPE_CHECKING:
    from fedretina.data.check.report import CheckReport

SYNTHETIC = "SYNTHETIC IMAGES (phantom hospital): drawn by a program, no patient is shown."
PICTURED = 6  # cases of a finding whose images are shown
FEW = 5
SIZES_TOLD = 8
_QUALITY = 82


def data_check_page(report: CheckReport, chosen: Sequence[Sequence[Shown]], root: Path) -> str:
    """Render the page, which loads nothing from anywhere.

    Args:
        report: What the check found.
        chosen: The images of each grade, from `choose_images`; empty when no image was opened.
        root: Image root.

    Returns:
        HTML. It shows patients' images and names their files.
    """
    template = templates().get_template("data_check.html.j2")
    page = template.render(
        report=report,
        notice=NOTICE,
        stays=STAYS,
        synthetic=SYNTHETIC,
        summary=summary(report),
        findings=[_finding(finding, report, root) for finding in report.findings],
        counts=count_rows(report),
        sizes=_sizes(report),
        grades=[_grade(at, row, report) for at, row in enumerate(chosen)],
        each=EACH,
        few=FEW,
    )
    return page + "\n"


def summary(report: CheckReport) -> str:
    """How many images and findings there are, in a sentence."""
    found = ", ".join(
        counted(count, word)
        for word in ("error", "warning", "note")
        if (count := sum(finding.severity == word for finding in report.findings))
    )
    opened = " No image was opened." if report.quick else ""
    return (
        f"{counted(report.listed, 'image')} listed, {len(report.images)} can be used, {len(report.grades)} grades. "
        f"{found or 'Nothing'} found.{opened}"
    )


def count_rows(report: CheckReport) -> list[list[str]]:
    """The table of counts: a row per grade with train, val, test and their sum, then images and patients per split."""
    splits = list(report.counts)
    rows: list[tuple[str, list[int]]] = [
        (grade, [report.counts[split][at] for split in splits]) for at, grade in enumerate(report.grades)
    ]
    if report.unlabelled:
        rows.append((NO_LABEL, [report.unlabelled if split == "train" else 0 for split in splits]))
    rows.append(("images", [sum(cells[at] for _, cells in rows) for at in range(len(splits))]))
    rows.append(("patients", [report.patients[split] for split in splits]))
    return [[name, *(str(cell) for cell in [*cells, sum(cells)])] for name, cells in rows]


def _finding(finding: Finding, report: CheckReport, root: Path) -> dict[str, Any]:
    images = {image.file: image for image in report.images}
    groups = []
    for files in finding.files[:PICTURED]:
        group = []
        for file in files[:FEW]:
            try:
                picture = data_uri(stored_thumbnail(root / file, modality=report.modality))
            except DataError:
                continue
            image = images.get(file)
            grade = "" if image is None or image.label is None else report.grades[image.label]
            words = ", ".join(word for word in (grade, (image and image.split) or "") if word)
            group.append({"file": file, "image": picture, "words": words})
        if group:
            groups.append(group)
    return {
        "code": finding.code,
        "severity": finding.severity,
        "count": finding.count,
        "meaning": finding.meaning,
        "where": list(finding.where),
        "mend": finding.mend,
        "groups": groups,
    }


def _grade(at: int, row: Sequence[Shown], report: CheckReport) -> dict[str, Any]:
    return {
        "name": report.rows[at],
        "counts": ", ".join(f"{split} {counts[at]}" for split, counts in report.counts.items() if at < len(counts))
        or f"train {report.unlabelled}",
        "images": [
            {"file": one.file, "split": one.split, "stored": data_uri(one.stored), "seen": data_uri(one.seen)}
            for one in row
        ],
    }


def _sizes(report: CheckReport) -> list[tuple[str, int, float]]:
    rows = [(f"{width} x {height}", count) for (width, height), count in report.sizes[:SIZES_TOLD]]
    rest = report.sizes[SIZES_TOLD:]
    if rest:
        rows.append((f"{len(rest)} other sizes", sum(count for _, count in rest)))
    largest = max((count for _, count in rows), default=1)
    return [(words, count, count / largest) for words, count in rows]


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """An image, uint8 [h, w, 3], RGB, as a JPEG in a data URI."""
    import cv2

    data = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1]
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode('ascii')}"
