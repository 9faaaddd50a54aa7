"""Readers of public data sets as they unpack; each turns a folder into labelled samples, mostly photographs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, Survey
from fedretina.errors import SettingsError
from fedretina.settings.images import Modality

__all__ = ["READERS", "ImportSettings", "LeftOut", "Photograph", "PublicSet", "Reader", "Survey", "reader"]


class PublicSet(NamedTuple):
    """What a reader expects and does, for lists and for the documentation.

    Attributes:
        title: The set.
        layout: The files that it expects.
        grades: The scheme that it proposes.
        patients: How it tells patients.
        splits: Which official splits it keeps.
        rules: What it decides where the set leaves it open.
        options: Settings of `ImportSettings` that only some readers know.
        official: Whether official parts are kept where the settings do not say.
        keyed: Whether patients always stand under a keyed hash.
        modality: What its images are; None where any may lie in such folders.
        converts: Whether it writes files anew, which takes its time: it tells how far it is.
    """

    title: str
    layout: str
    grades: str
    patients: str
    splits: str
    rules: str
    options: tuple[str, ...] = ()
    official: bool = True
    keyed: bool = False
    modality: Modality | None = "fundus"
    converts: bool = False


class Reader(Protocol):
    """Reads a public layout."""

    def __call__(self, root: Path, settings: ImportSettings, out: Path) -> Survey:
        """Return what the set holds.

        Args:
            root: The set's folder.
            settings: How it is imported; a reader looks at its own options only.
            out: Folder of the import, for readers that convert images.

        Raises:
            DataError: The layout is another, or its lists are damaged.
            SettingsError: An option cannot be used.
        """


class Converter(Protocol):
    """A reader that writes files anew and tells how far it is."""

    def __call__(self, root: Path, settings: ImportSettings, out: Path, tell: Callable[[int, int], None]) -> Survey:
        """Return what the set holds, as a `Reader`; `tell` is called with files done, and all."""


_EACH_IMAGE = "none named: each image is its own"
_BY_SEED = "none: all by seed"

READERS: Mapping[str, PublicSet] = MappingProxyType(
    {
        "aptos2019": PublicSet(
            "APTOS 2019 Blindness Detection",
            "`train.csv` (id_code, diagnosis), `train_images/ID.png`",
            "icdr5",
            _EACH_IMAGE,
            "none: the official test part has no public labels",
            "none",
        ),
        "class_folders": PublicSet(
            "a folder a class",
            "`GRADE/*.jpg`, or `train/GRADE/*.jpg`, `val/GRADE/*.jpg`, `test/GRADE/*.jpg`",
            "from the names of the folders, or `--grades`",
            "`--patient-pattern`, else each image is its own",
            "train, val, test where the folders have them",
            "folders are read with all below them; one called `unlabelled` holds images without a label "
            "(`--unlabelled train`)",
            ("grades", "ungradable", "patient_pattern", "unlabelled"),
            modality=None,
        ),
        "ddr": PublicSet(
            "DDR",
            "`DR_grading/train.txt`, `valid.txt`, `test.txt` (lines `NAME GRADE`), "
            "`DR_grading/train/NAME.jpg` and so on",
            "icdr5_ungradable (5 is ungradable)",
            _EACH_IMAGE,
            "train, valid, test",
            "none",
        ),
        "dicom": PublicSet(
            "ophthalmic DICOM photographs",
            "any folder of DICOM files, and `--labels TABLE` (file or sop_instance_uid, label)",
            "from the labels, or `--grades`",
            "PatientID under a keyed hash",
            _BY_SEED,
            "modality OP and single frames only; written as PNG files with hashed names and no header",
            ("labels", "grades", "ungradable", "unlabelled"),
            keyed=True,
            converts=True,
        ),
        "duke2014": PublicSet(
            "Duke, 45 OCT volumes (Srinivasan et al. 2014)",
            "`AMD1/TIFFs/8bitTIFFs/*.tif` to `NORMAL15/...`, in `Publication_Dataset/` or without",
            "duke3 (AMD is the dry form)",
            "the folder: a volume each",
            _BY_SEED,
            "each scan has its volume's label",
            modality="oct",
        ),
        "eyepacs": PublicSet(
            "EyePACS (Kaggle Diabetic Retinopathy Detection)",
            "`trainLabels.csv` (image, level), `train/ID_left.jpeg`; if there, `retinopathy_solution.csv` and `test/`, "
            "and EyeQ's `Label_EyeQ_train.csv` and `Label_EyeQ_test.csv`",
            "icdr5; icdr5_ungradable with EyeQ",
            "the ID: both eyes",
            "test, with `retinopathy_solution.csv`",
            "with EyeQ, quality 2 (reject) is ungradable whatever the grade",
        ),
        "idrid": PublicSet(
            "IDRiD, part B",
            "`B. Disease Grading/1. Original Images`, `2. Groundtruths` as the archive unpacks",
            "icdr5",
            _EACH_IMAGE,
            "test",
            "the same names stand for other images in train and test",
        ),
        "isic2019": PublicSet(
            "Fed-ISIC2019 (ISIC 2019 in FLamby's six centres)",
            "`train_test_split` (image, target, center, fold), `ISIC_2019_Training_Input/NAME.jpg`; for the lesions "
            "`ISIC_2019_Training_Metadata.csv` or `HAM10000_metadata`",
            "isic8",
            "lesion_id: the lesion; images without one are their own",
            "with `--official` only: the public fold has lesions on both sides, and train then gives them up, unless "
            "`--as-published`",
            "`--client 0` to `5` is one centre; val comes from train",
            ("client", "as_published"),
            official=False,
            modality="dermoscopy",
        ),
        "kermany": PublicSet(
            "Kermany et al. 2018, OCT2017 and later releases",
            "`OCT2017/train/CLASS/CLASS-PATIENT-NUMBER.jpeg`, `val/`, `test/`; also `CellData/OCT/`",
            "oct4; `--scheme oct3` merges DRUSEN and CNV",
            "the number in the name",
            "with `--official` only: train and test share patients, and train then gives theirs up",
            "a number that occurs in two classes is one patient",
            official=False,
            modality="oct",
        ),
        "messidor1": PublicSet(
            "Messidor",
            "12 tables `Annotation_BaseXY.xls` or `.csv` (Image name, Retinopathy grade), images in `BaseXY/`; "
            "if there, Messidor-2's `messidor-2.csv`",
            "normal_3stages (grades 0 to 3)",
            "pairs of `messidor-2.csv`, else each image is its own",
            _BY_SEED,
            "the owner's errata: four grades corrected, one of each of 13 duplicates of Base33 left out, both "
            "where their grades differ",
        ),
        "messidor2": PublicSet(
            "Messidor-2 with the adjudicated grades",
            "`messidor_data.csv` (image_id, adjudicated_dr_grade, adjudicated_gradable), `messidor-2.csv` "
            "(left;right), `IMAGES/`",
            "icdr5",
            "pairs of `messidor-2.csv`, else each image is its own",
            _BY_SEED,
            "images without an adjudicated grade are left out",
        ),
        "odir5k": PublicSet(
            "ODIR-5K",
            "`full_df.csv` and `preprocessed_images/`, or `ODIR-5K_Training_Annotations(Updated)_V2.xlsx` (or `.csv`) "
            "and `Training Images/`, or OIA-ODIR's three folders with `Annotation/` and `Images/`",
            "icdr5; `--scheme normal_3stages` merges 3 and 4",
            "ID: both eyes",
            "OIA-ODIR only: off-site is val, on-site is test",
            "the grade is read from the doctor's keywords of that eye; eyes without one are left out",
        ),
        "oct_volumes": PublicSet(
            "OCT volumes as scanners export them",
            "any folder of `.vol` and `.e2e` files (Heidelberg), and `--labels TABLE` "
            "(file; label, patient, scan where there are some)",
            "from the labels, or `--grades`",
            "the table, else the header of a `.vol` file; under a keyed hash",
            _BY_SEED,
            "each B-scan is written as a PNG file with a hashed name; it has its volume's label, or its own where the "
            "table says which scan",
            ("labels", "grades", "ungradable", "unlabelled"),
            keyed=True,
            modality="oct",
            converts=True,
        ),
        "octdl": PublicSet(
            "OCTDL",
            "`OCTDL_labels.csv` (file_name, disease, patient_id), `OCTDL/DISEASE/NAME.jpg`",
            "octdl7",
            "patient_id",
            _BY_SEED,
            "none",
            modality="oct",
        ),
        "octid": PublicSet(
            "OCTID",
            "`NORMAL1.jpeg`, `AMRD1.jpeg`, `CSR1.jpeg`, `DR1.jpeg`, `MH1.jpeg` and so on, in folders of any name",
            "octid",
            _EACH_IMAGE,
            _BY_SEED,
            "DR is retinopathy and stands for no class of Kermany's; other images are passed over",
            modality="oct",
        ),
        "pamap2": PublicSet(
            "PAMAP2 Physical Activity Monitoring",
            "`Protocol/subject101.dat` to `subject109.dat` (54 columns, 100 Hz)",
            "activity8",
            "half a minute of one activity; a subject is a site (`--client 101`)",
            "none: of each activity the first half-minutes are train, the next val, the last test, by `--fractions`",
            "windows of 10 s of the wrist's 16 g accelerometer that do not overlap, written as WAV files of three "
            "channels",
            ("client",),
            modality="activity",
        ),
        "physionet2016": PublicSet(
            "PhysioNet/CinC Challenge 2016, heart sounds",
            "`training-a/` to `training-f/` with `REFERENCE.csv` (recording, -1 or 1) and `a0001.wav`",
            "heart2",
            "the recording",
            _BY_SEED,
            "`--client a` to `f` is one database; the first 5 s of a recording, or all whole 5 s (`--segments all`), "
            "which are then written as WAV files",
            ("client", "segments"),
            modality="heart_sound",
            converts=True,
        ),
    }
)


def reader(name: str) -> Reader:
    """The reader of a public set by its name.

    Raises:
        SettingsError: There is no reader of that name.
    """
    if name not in READERS:
        raise SettingsError(f"there is no reader {name!r}: use one of {list(READERS)}, or write a manifest.")
    return cast(Reader, import_module(f"{__name__}.{name}").survey)


def converter(name: str) -> Converter:
    """The reader of a set whose entry says that it `converts`."""
    return cast(Converter, import_module(f"{__name__}.{name}").survey)
