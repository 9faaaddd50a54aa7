"""Hospitals with images on disk, whose names for files, patients and grades are easy to find again."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import yaml

from fedretina.data.phantoms.draw import phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.settings.scheme import GradingScheme

GRADES = {"site-1": 5, "site-2": 4, "site-3": 5}
"""Number of grades of each hospital."""
SECRETS = ("tell-tale", "patient-of", "grade-called", "manifest", ".jpg")
"""Parts of every file's, patient's and grade's name."""


def write_hospital(folder: Path, grades: int, seed: int, **settings: object) -> None:
    """Write 40 phantom photographs as files, a manifest, and a site file with a grading scheme of its own."""
    (folder / "images").mkdir(parents=True)
    drawn = phantom_hospital("site-1", 40, GradingScheme(grades=tuple(str(grade) for grade in range(grades))), "fundus")
    cases = drawn.cases(0, (seed,))[:40]
    images, labels = phantom_images(drawn, cases, 64, (seed,)), [case.label for case in cases]
    lines = ["file,label,patient,split"]
    for number, (image, label) in enumerate(zip(images.numpy(), labels, strict=True)):
        name = f"tell-tale-{seed}-{number:02d}.jpg"
        cv2.imwrite(str(folder / "images" / name), np.ascontiguousarray(image.transpose(1, 2, 0)[..., ::-1]))
        split = "train" if number < 24 else "val" if number < 32 else "test"
        lines.append(f"{name},grade-called-{label},patient-of-{seed}-{number},{split}")
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    scheme = {"grades": [f"grade-called-{grade}" for grade in range(grades)]}
    data = {"manifest": "manifest.csv", "images": "images", "scheme": scheme}
    (folder / "site.yaml").write_text(yaml.safe_dump({"data": data, **settings}))
