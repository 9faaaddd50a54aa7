"""A folder of ophthalmic DICOM photographs with a table of labels, turned into PNG files without a header."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedretina.data.dicom_file import DicomPhotograph, NoPhotographError, dicom_files, instance_uid, read_photograph
from fedretina.data.patient_keys import SALT, keyed, site_salt
from fedretina.data.readers.scheme_of import scheme_of
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.tables import read_table
from fedretina.data.readers.written import own_folder, write_file, write_png
from fedretina.errors import DataError, SettingsError
from fedretina.settings.columns import Column
from fedretina.settings.scheme import whole_label

IMAGES = "images"
PHOTOGRAPHS = "photographs.csv"
_DAMAGED = "the file is damaged, or compressed in a way that cannot be undone here"


class _Kept(NamedTuple):
    """A photograph that was written: its new name and what the site's staff may want to know of it."""

    name: str
    laterality: str
    burned_in: str
    grey: bool


def survey(
    root: Path, settings: ImportSettings, out: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> Survey:
    """Read all labelled photographs below a folder and write each as OUT/images/KEY.png.

    The key is a keyed hash of the SOP Instance UID, with the site's salt; the import makes one of the Patient ID. So
    nothing of a header reaches the manifest or the images, and whoever has the salt can find a photograph again. The
    issuer of a Patient ID is not looked at: two patients taken for one do no harm to a split, one taken for two would.
    The pixels are not searched for text; files that say that some is burnt in, or do not say that none is, are
    counted in a warning and marked in photographs.csv.

    Args:
        root: Files of any name and depth; those that are no DICOM are passed over.
        settings: `labels`, a table with a column file (path relative to `root`) or sop_instance_uid, and a column
            label, which may be missing where `unlabelled` is "train"; `scheme`, `grades` and `ungradable` as in
            `scheme_of`; `salt`; `bad_files`.
        out: Where images and photographs.csv go; the salt too by default.
        tell: Called with how many files are done, and of how many.

    Raises:
        DataError: There is no photograph, the table is damaged, labelled photographs are missing, a file is damaged, or
            the salt cannot be used.
        SettingsError: No table is named, or pydicom is not installed.
    """
    if settings.labels is None and settings.unlabelled == "skip":
        raise SettingsError(
            "DICOM photographs need a table of labels (--labels): a CSV with a column file or sop_instance_uid, and a "
            "column label."
        )
    paths = list(dicom_files(root))
    if not paths:
        raise DataError(f"{root} holds no DICOM file: unpack the photographs again, or mend the path.")
    by_uid, labels = (False, {}) if settings.labels is None else _labels(settings.labels)
    names, left_out = _names(root, paths, by_uid, settings)
    left_out += _check_all_there(labels, set(names.values()), settings)
    salt = site_salt(settings.salt or out / SALT)

    found: list[Photograph] = []
    kept: dict[str, _Kept] = {}
    own_folder(out / IMAGES)
    for done, (path, name) in enumerate(names.items()):
        tell(done, len(names))
        where = path.relative_to(root).as_posix()
        if name not in labels and settings.unlabelled == "skip":
            left_out.append(LeftOut(where, "the table has no label for it"))
            continue
        try:
            photograph = read_photograph(path)
        except NoPhotographError as error:
            left_out.append(LeftOut(where, error.reason))
            continue
        except DataError:
            if settings.bad_files == "refuse":
                raise
            left_out.append(LeftOut(where, _DAMAGED))
            continue
        key = keyed(salt, "image", photograph.instance)
        reason = _unusable(photograph, key, kept)
        if reason:
            left_out.append(LeftOut(where, reason))
            continue
        write_png(out / IMAGES / f"{key}.png", photograph.pixels)
        kept[key] = _Kept(f"{key}.png", photograph.laterality, photograph.burned_in, photograph.grey)
        beside: dict[Column, str] = {"eye": photograph.laterality if photograph.laterality in ("left", "right") else ""}
        found.append(Photograph(f"{key}.png", labels.get(name, ""), photograph.patient, beside=beside))
    if not found:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in Counter(row.reason for row in left_out).items())
        raise DataError(f"none of the {len(paths)} DICOM files under {root} can be imported ({reasons}).")
    # Names are hashes, so their order tells nothing of the order in which patients came.
    found.sort()
    _write_list(out / PHOTOGRAPHS, sorted(kept.values()))
    scheme = scheme_of({photograph.label for photograph in found}, settings, "fundus")
    return Survey(tuple(found), scheme, tuple(left_out), _warnings(kept), out / IMAGES)


def _labels(path: Path) -> tuple[bool, dict[str, str]]:
    """Whether the table goes by SOP Instance UID, and the label of each name."""
    rows = read_table(path, ["label"], optional=["file", "sop_instance_uid|SOPInstanceUID"])
    if not rows[0].cells["file"] and not rows[0].cells["sop_instance_uid"]:
        raise DataError(f"{path} names no photograph: it needs a column file or sop_instance_uid.")
    by_uid = not rows[0].cells["file"]
    column = "sop_instance_uid" if by_uid else "file"
    labels: dict[str, str] = {}
    for row in rows:
        name, label = row.cells[column], whole_label(row.cells["label"])
        if not name:
            raise DataError(f"{path}, row {row.number}: {column} is empty: name each photograph the same way.")
        if labels.setdefault(name, label) != label:
            raise DataError(f"{path}, row {row.number}: {name} has the label {labels[name]!r} already: keep one.")
    return by_uid, labels


def _names(
    root: Path, paths: list[Path], by_uid: bool, settings: ImportSettings
) -> tuple[dict[Path, str], list[LeftOut]]:
    """What the table calls each file, and files that could not be asked."""
    names: dict[Path, str] = {}
    left_out = []
    for path in paths:
        where = path.relative_to(root).as_posix()
        try:
            names[path] = instance_uid(path) if by_uid else where
        except DataError:
            if settings.bad_files == "refuse":
                raise
            left_out.append(LeftOut(where, _DAMAGED))
    return names, left_out


def _check_all_there(labels: dict[str, str], names: set[str], settings: ImportSettings) -> list[LeftOut]:
    missing = [name for name in labels if name not in names]
    if missing and settings.bad_files == "refuse":
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DataError(
            f"{len(missing)} of {len(labels)} labelled photographs are missing: {', '.join(missing[:5])}{more}. Mend "
            "the table, or leave them out (--bad-files skip)."
        )
    return [LeftOut(name, "the image is missing") for name in missing]


def _unusable(photograph: DicomPhotograph, key: str, kept: dict[str, _Kept]) -> str:
    """Why a photograph is left out; empty when it is not."""
    if not photograph.instance:
        return "it has no SOP Instance UID"
    if not photograph.patient:
        return "it names no patient, so it cannot be kept on one side of a split"
    return "the same SOP Instance UID stands in another file" if key in kept else ""


def _warnings(kept: dict[str, _Kept]) -> tuple[str, ...]:
    burned = Counter(photograph.burned_in for photograph in kept.values())
    grey = sum(photograph.grey for photograph in kept.values())
    unknown = sum(photograph.laterality == "unknown" for photograph in kept.values())
    sentences = (
        (burned["yes"], "say that text is burnt into the picture: look at them before anything leaves the site."),
        (burned["unknown"], "do not say whether text is burnt into the picture: look at some of them."),
        (grey, "are monochrome, as angiograms and red-free photographs are: do they belong here?"),
        (unknown, "do not say which eye they show."),
    )
    return tuple(f"{count} of {len(kept)} photographs {words}" for count, words in sentences if count)


def _write_list(path: Path, rows: list[_Kept]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "laterality", "burned_in"])
    writer.writerows(row[:3] for row in rows)
    write_file(path, text.getvalue().encode())


SET = PublicSet(
    name="dicom",
    survey_of=survey,
    title="ophthalmic DICOM photographs",
    layout="any folder of DICOM files, and `--labels TABLE` (file or sop_instance_uid, label)",
    grades="from the labels, or `--grades`",
    patients="PatientID under a keyed hash",
    splits=ALL_BY_SEED,
    rules="modality OP and single frames only; written as PNG files with hashed names and no header",
    options=("labels", "grades", "ungradable", "unlabelled"),
    keyed=True,
    published=False,
)
