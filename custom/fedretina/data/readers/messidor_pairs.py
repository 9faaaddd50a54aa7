"""The pairs of Messidor-2: which two images are the eyes of one examination."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.tables import read_table

PAIRS = "messidor-2.csv"


def read_pairs(root: Path) -> dict[str, str]:
    """Read `messidor-2.csv` (left;right) where it is there.

    Names are compared without their ending and their case, because Messidor's own images are TIFF files and those
    of Messidor-2 are not. An examination is taken as a patient; the set does not say whether one came twice.

    Returns:
        Name in lower case without its ending, to the patient, named after the left image. Empty without the file.

    Raises:
        DataError: The file is damaged.
    """
    path = root / PAIRS
    if not path.is_file():
        return {}
    patients: dict[str, str] = {}
    for row in read_table(path, ["left", "right"]):
        eyes = [Path(row.cells[side]).stem for side in ("left", "right")]
        known = sorted({patients[eye.lower()] for eye in eyes if eye.lower() in patients})
        patient = known[0] if known else eyes[0]
        # An image in two pairs joins them.
        for name, other in list(patients.items()):
            if other in known:
                patients[name] = patient
        patients.update({eye.lower(): patient for eye in eyes})
    return patients


def unpaired(total: int, alone: int) -> tuple[str, ...]:
    """What to say of images that stand in no pair."""
    if not alone:
        return ()
    if alone == total:
        return (
            f"there is no {PAIRS}, which pairs the eyes of a patient: each image is its own, so two eyes of a patient "
            "may fall into different splits.",
        )
    return (f"{alone} of {total} images stand in no pair of {PAIRS}: each of them is its own patient.",)
