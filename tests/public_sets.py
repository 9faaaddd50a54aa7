"""Writes small trees in the layouts of the public sets; the images are empty files unless `picture` draws them."""

from pathlib import Path

import cv2
import numpy as np

CORRECTED = ("20051020_63045_0100_PP", "20051020_64007_0100_PP", "20051020_63936_0100_PP", "20060523_48477_0100_PP")


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def picture(path, number, side=24):
    """Draw an image of its own for each number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    assert cv2.imwrite(str(path), pixels)


def table(path, *rows, separator=","):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(str(cell) for cell in row) + "\n" for row in rows), encoding="utf-8")


def aptos(root, grades, draw=touch):
    table(root / "train.csv", ("id_code", "diagnosis"), *((f"i{k:03}", grade) for k, grade in enumerate(grades)))
    for k in range(len(grades)):
        path = root / "train_images" / f"i{k:03}.png"
        draw(path) if draw is touch else draw(path, k)


def idrid(root, train, test):
    part = root / "B. Disease Grading"
    header = "Image name,Retinopathy grade,Risk of macular edema "
    for folder, labels, grades, tail in (
        ("a. Training Set", "a. IDRiD_Disease Grading_Training Labels.csv", train, ",,,,"),
        ("b. Testing Set", "b. IDRiD_Disease Grading_Testing Labels.csv", test, ""),
    ):
        (part / "2. Groundtruths").mkdir(parents=True, exist_ok=True)
        rows = "".join(f"IDRiD_{k:03},{grade},0{tail}\n" for k, grade in enumerate(grades))
        (part / "2. Groundtruths" / labels).write_text(f"{header}{tail}\n{rows}{tail and ',,,,,,'}\n")
        for k in range(len(grades)):
            touch(part / "1. Original Images" / folder / f"IDRiD_{k:03}.jpg")
    return part


def eyepacs(root, grades, folder="train", labels="trainLabels.csv", first=1, draw=touch):
    """`grades` holds (left, right) of each patient, who are numbered 1, 2, ..., 10, 11, ... ."""
    rows = [
        (f"{number}_{side}", grade)
        for number, eyes in enumerate(grades, start=first)
        for side, grade in zip(("left", "right"), eyes, strict=True)
    ]
    table(root / labels, ("image", "level"), *rows)
    for k, (name, _) in enumerate(rows):
        path = root / folder / f"{name}.jpeg"
        draw(path) if draw is touch else draw(path, k)


def ddr(root, **parts):
    """Parts train, valid and test, each a list of grades."""
    for part, grades in parts.items():
        names = [f"007-{k:04}-{part}.jpg" for k in range(len(grades))]
        lines = [f"{name} {grade}\n" for name, grade in zip(names, grades, strict=True)]
        (root / "DR_grading").mkdir(parents=True, exist_ok=True)
        (root / "DR_grading" / f"{part}.txt").write_text("".join(lines))
        for name in names:
            touch(root / "DR_grading" / part / name)


def messidor1(root, base, grades, folder=None):
    """One base: `grades` is name to grade; the table lies in the set's folder, as CSV."""
    table(
        root / f"Annotation_Base{base}.csv",
        ("Image name", "Ophthalmologic department", "Retinopathy grade", "Risk of macular edema "),
        *((f"{name}.tif", "CHU de St Etienne", grade, 0) for name, grade in grades.items()),
    )
    for name in grades:
        touch(root / (folder or f"Base{base}") / f"{name}.tif")


def messidor2(root, grades, pairs=()):
    """`grades` is file name to (grade, gradable)."""
    table(
        root / "messidor_data.csv",
        ("image_id", "adjudicated_dr_grade", "adjudicated_dme", "adjudicated_gradable"),
        *((name, grade, 0, gradable) for name, (grade, gradable) in grades.items()),
    )
    if pairs:
        table(root / "messidor-2.csv", ("left", "right"), *pairs, separator=";")
    for name in grades:
        touch(root / "IMAGES" / name)


ODIR_HEADER = ("ID", "Patient Age", "Patient Sex", "Left-Fundus", "Right-Fundus")
ODIR_KEYWORDS = ("Left-Diagnostic Keywords", "Right-Diagnostic Keywords", "N", "D")


def odir_rows(eyes):
    """Rows of the per-patient table; `eyes` is ID to the keywords of (left, right)."""
    return [
        (number, 60, "Male", f"{number}_left.jpg", f"{number}_right.jpg", left, right, 0, 0)
        for number, (left, right) in eyes.items()
    ]


def odir(root, eyes, name="ODIR-5K_Training_Annotations(Updated)_V2.csv", images="Training Images"):
    table(root / name, (*ODIR_HEADER, *ODIR_KEYWORDS), *odir_rows(eyes))
    for number in eyes:
        for side in ("left", "right"):
            touch(root / images / f"{number}_{side}.jpg")


def odir_kaggle(root, eyes, files):
    """Kaggle's copy: a row per image, for the files that its author kept."""
    by_id = {str(row[0]): row for row in odir_rows(eyes)}
    rows = [(*by_id[file.split("_")[0]], file) for file in files]
    table(root / "full_df.csv", (*ODIR_HEADER, *ODIR_KEYWORDS, "filename"), *rows)
    for file in files:
        touch(root / "preprocessed_images" / file)


def class_folders(root: Path, counts, draw=touch):
    """`counts` is folder to number of images, called pFxK_J.jpg: patient K of the folder that is named F-th, eye J."""
    number = 0
    for at, (folder, count) in enumerate(counts.items()):
        for k in range(count):
            path = root / folder / f"p{at}x{k // 2}_{k % 2}.jpg"
            draw(path) if draw is touch else draw(path.with_suffix(".png"), number)
            number += 1
