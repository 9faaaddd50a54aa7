"""A folder of ophthalmic DICOM photographs with a table of labels, turned into PNG files without a header."""

from __future__ import annotations

import csv
import io
import os
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    The key is a keyed hash of the SOP Instance UID, as the patient is one of the Patient ID, with the site's salt; so
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
        patient = keyed(salt, "patient", photograph.patient)
        found.append(Photograph(f"{key}.png", labels.get(name, ""), patient, beside=beside))
    if not found:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in Counter(row.reason for row in left_out).items())
        raise DataError(f"none of the {len(paths)} DICOM files under {root} can be imported ({reasons}).")
    # Names are hashes, so their order tells nothing of the order in which patients came.
    found.sort()
    _write_list(out / PHOTOGRAPHS, sorted(kept.values()))
    scheme = scheme_of({photograph.label for photograph in found}, settings)
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


Laterality = Literal["left", "right", "both", "unknown"]
_LATERALITY: dict[str, Laterality] = {"L": "left", "R": "right", "B": "both"}
_COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
_GREYS = ("MONOCHROME1", "MONOCHROME2")


class DicomPhotograph(NamedTuple):
    """What is taken from a file; nothing of it but the pixels may be stored as it stands.

    Attributes:
        pixels: uint8 [H, W, 3], RGB.
        instance: SOP Instance UID, the photograph's own name.
        patient: Patient ID, "" where the file has none.
        laterality: The eye.
        burned_in: Whether text may be burnt into the pixels: "yes", "no", or "unknown" where the file does not say.
        grey: Whether the file is monochrome, as angiograms and red-free photographs are.
    """

    pixels: NDArray[np.uint8]
    instance: str
    patient: str
    laterality: Laterality
    burned_in: Literal["yes", "no", "unknown"]
    grey: bool


class NoPhotographError(DataError):
    """The file is sound DICOM but no single ophthalmic photograph; `reason` says what it is and names no file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is no ophthalmic photograph: {reason}.")
        self.reason = reason


def dicom_files(root: Path) -> Iterator[Path]:
    """All files below a folder that begin as DICOM files do, whatever they are called, in the order of their paths.

    Raises:
        DataError: The folder cannot be read.
    """
    if not root.is_dir():
        raise DataError(f"{root} is no folder: unpack the photographs again, or mend the path.")
    for place, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(place) / name
            if name.upper() != "DICOMDIR" and _begins_as_dicom(path):
                yield path


def instance_uid(path: Path) -> str:
    """The SOP Instance UID of a file, read without its pixels; "" where it has none.

    Raises:
        DataError: The file is damaged.
        SettingsError: pydicom is not installed.
    """
    _require_pydicom()
    with _named(path, "cannot be read as DICOM", "export it again"):
        return _text(_header(path, stop_before_pixels=True), "SOPInstanceUID")


def read_photograph(path: Path) -> DicomPhotograph:
    """Read one photograph of modality OP (ophthalmic photography, 8 or 16 bits).

    Colours are turned into RGB, MONOCHROME1 is turned so that bright is bright, and deeper pixels are scaled from the
    range of their stored bits to 8. Laterality is that of the image (0020,0062), else of the series (0020,0060).

    Raises:
        NoPhotographError: Another modality, several frames, or pixels of another kind than these.
        DataError: The file is damaged, or its compression cannot be undone here.
        SettingsError: pydicom is not installed.
    """
    _require_pydicom()
    # pydicom decodes an element when it is asked for, so a damaged one shows late.
    with _named(path, "cannot be read as DICOM", "export it again"):
        header = _header(path, stop_before_pixels=False)
        photometric = _text(header, "PhotometricInterpretation")
        _check_kind(path, header, photometric)
        burned_in = {"YES": "yes", "NO": "no"}.get(_text(header, "BurnedInAnnotation"), "unknown")
        instance, patient = _text(header, "SOPInstanceUID"), _text(header, "PatientID")
        laterality = _text(header, "ImageLaterality") or _text(header, "Laterality")
    return DicomPhotograph(
        _pixels(path, header, photometric),
        instance,
        patient,
        _LATERALITY.get(laterality, "unknown"),
        burned_in,  # type: ignore[arg-type]
        photometric in _GREYS,
    )


def _check_kind(path: Path, header: Any, photometric: str) -> None:
    modality = _text(header, "Modality")
    frames = int(header.get("NumberOfFrames") or 1)
    if modality != "OP":
        raise NoPhotographError(path, f"its modality is {modality or 'not given'}, expected OP")
    if frames != 1:
        raise NoPhotographError(path, f"it has {frames} frames, expected one")
    if photometric not in (*_COLOURS, *_GREYS):
        kinds = [*_COLOURS, *_GREYS]
        raise NoPhotographError(path, f"its pixels are {photometric or 'not described'}, expected {kinds}")
    if int(header.get("PixelRepresentation") or 0) != 0:
        raise NoPhotographError(path, "its pixels have a sign")


def _pixels(path: Path, header: Any, photometric: str) -> NDArray[np.uint8]:
    from pydicom.pixels import pixel_array

    with _named(path, "has pixels that cannot be read", "export it again without compression or as JPEG baseline"):
        pixels = np.asarray(pixel_array(header))
        top = (1 << int(header.BitsStored)) - 1
    grey = photometric in _GREYS
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.shape[2:] != (() if grey else (3,)):
        raise NoPhotographError(path, f"its pixels are {pixels.dtype} {list(pixels.shape)}, expected 8 or 16 bits")
    wide = np.minimum(pixels.astype(np.uint32), top)
    if photometric == "MONOCHROME1":
        wide = top - wide
    eight = ((wide * 255 + top // 2) // top).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(eight[..., None], 3, axis=2) if grey else eight)


def _require_pydicom() -> None:
    try:
        import_module("pydicom")
    except ImportError as error:
        raise SettingsError(
            'DICOM photographs need pydicom, which is not installed: run `pip install "pydicom>=3"`.'
        ) from error


def _header(path: Path, stop_before_pixels: bool) -> Any:
    from pydicom import dcmread

    return dcmread(path, stop_before_pixels=stop_before_pixels)


@contextmanager
def _named(path: Path, fault: str, mend: str) -> Iterator[None]:
    """Turn what pydicom raises on damaged files into a sentence that names the file.

    Its warnings quote values of the header, so they are not shown.
    """
    from pydicom.errors import BytesLengthException, InvalidDicomError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (*_DAMAGE, BytesLengthException, InvalidDicomError) as error:
        # pydicom says in many lines which plugins were looked for; the first names the compression.
        first = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{path} {fault} ({first}): {mend}.") from error


def _text(header: Any, name: str) -> str:
    return str(header.get(name) or "").strip()


def _begins_as_dicom(path: Path) -> bool:
    try:
        with open(path, "rb") as handle:
            return handle.read(132)[128:] == b"DICM"
    except OSError:
        return False


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
