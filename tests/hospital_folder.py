"""The folder of docs/for_hospitals.md: synthetic photographs, a folder a grade, with three faults and without."""

from pathlib import Path

import numpy as np

from fedretina.data.decode import decode_image
from fedretina.data.phantoms.canvas import write_png
from fedretina.data.phantoms.draw import phantom_images
from fedretina.data.phantoms.hospital import phantom_hospital


def write_photographs(folder: Path) -> None:
    """Write 97 images of 256 pixels, GRADE/P0001_left.png and so on."""
    hospital = phantom_hospital("site-1", 60)
    seed = (1, "docs", "for_hospitals")
    patients: dict[str, str] = {}
    for at, split in enumerate(("train", "val", "test")):
        cases = hospital.cases(at, (*seed, split))
        for case, image in zip(cases, phantom_images(hospital, cases, 256, (*seed, split)), strict=True):
            name = patients.setdefault(case.patient_name(split), f"P{len(patients) + 1:04d}")
            path = folder / hospital.scheme.grades[case.label] / f"{name}_{'left' if case.left else 'right'}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_png(path, image.numpy().transpose(1, 2, 0))


def put_faults(folder: Path) -> None:
    """A copy under another grade, a file that was cut off, and an image with red and blue exchanged."""
    first, second, third = sorted((folder / "no_dr").iterdir())[:3]
    (folder / "moderate" / "P9001_left.png").write_bytes(first.read_bytes())
    second.write_bytes(second.read_bytes()[:20000])
    write_png(third, np.ascontiguousarray(decode_image(third)[..., ::-1]))


def mend(folder: Path) -> None:
    """Take the copy out and write the other two anew."""
    (folder / "moderate" / "P9001_left.png").unlink()
    write_photographs(folder)
