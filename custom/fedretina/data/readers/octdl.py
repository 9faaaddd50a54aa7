"""OCTDL (Kulyabin et al. 2024) as its archive unpacks: OCTDL_labels.csv and a folder per disease."""

from __future__ import annotations

from pathlib import Path

from fedretina.data.readers.image_folder import ImageFolder, unlisted
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import read_table
from fedretina.errors import DataError

_DISEASES = ("NO", "AMD", "DME", "ERM", "RVO", "VID", "RAO")


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Read all scans; raw labels are the diseases, NO for none. The table names the patients.

    Args:
        root: The folder that holds OCTDL_labels.csv.
        settings: None of them counts here.
        out: Not used.

    Raises:
        DataError: The table is missing or damaged, or names a disease that the set does not have.
    """
    table = root / "OCTDL_labels.csv"
    folders = {disease: ImageFolder(root, [f"OCTDL/{disease}", disease]) for disease in _DISEASES}
    found = []
    for row in read_table(table, ["file_name", "disease", "patient_id"]):
        disease = row.cells["disease"].upper()
        if disease not in folders:
            raise DataError(
                f"{table}, row {row.number}: the disease is {row.cells['disease']!r}, but the set has "
                f"{list(_DISEASES)}: unpack the set again, or mend the row."
            )
        name = row.cells["file_name"]
        suffix = "" if Path(name).suffix else ".jpg"
        found.append(Photograph(folders[disease].find(name, suffix), disease, row.cells["patient_id"]))
    return Survey(tuple(found), "octdl7", warnings=unlisted(*folders.values()))


SET = PublicSet(
    name="octdl",
    survey_of=survey,
    title="OCTDL",
    layout="`OCTDL_labels.csv` (file_name, disease, patient_id), `OCTDL/DISEASE/NAME.jpg`",
    grades="octdl7",
    patients="patient_id",
    splits=ALL_BY_SEED,
    rules="none",
    modality="oct",
)
