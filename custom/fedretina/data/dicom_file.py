"""Ophthalmic DICOM files: which files are some, what their headers say, and their pixels as RGB of 8 bits."""

from __future__ import annotations

import logging
import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError, require_package

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
    zlib.error,
)
_GREYS = ("MONOCHROME1", "MONOCHROME2")
_QUOTING = ("pydicom", "highdicom")  # loggers whose lines may hold values of a header
_JP2 = b"\x00\x00\x00\x0cjP  "
_BOX_BYTES = 8  # of a box without content: its length and its kind
_PIXEL_HEAD_BYTES = 12  # tag, kind and length of the pixels where the kind is written, as it is with JPEG 2000


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


class DicomHeader(NamedTuple):
    """What a file says beside its pixels. It names a patient, so it stays where answers are made.

    Attributes:
        modality: Such as OP, an ophthalmic photograph, or OPT, an optical coherence tomography; "" where it has none.
        patient: Patient ID, with its issuer in brackets where there is one; "" where it has none.
        laterality: The eye.
        frames: Pictures in the file; 0 where it holds none, as a report does.
    """

    modality: str
    patient: str
    laterality: Laterality
    frames: int


class DicomFrame(NamedTuple):
    """One picture of a DICOM file.

    Attributes:
        path: The file.
        number: Of the frame, from 1.
    """

    path: Path
    number: int

    def pixels(self) -> NDArray[np.uint8]:
        """The picture; see `read_frame`."""
        return read_frame(self.path, self.number)


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
            if begins_as_dicom(path):
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
        laterality = _laterality(header)
    return DicomPhotograph(
        _pixels(path, header, photometric, 0),
        instance,
        patient,
        laterality,
        burned_in,  # type: ignore[arg-type]
        photometric in _GREYS,
    )


def read_header(path: Path) -> DicomHeader:
    """Read what a file says beside its pixels.

    Raises:
        DataError: The file is damaged.
        SettingsError: pydicom is not installed.
    """
    _require_pydicom()
    with _named(path, "cannot be read as DICOM", "export it again"):
        header = _header(path, stop_before_pixels=True)
        patient, issuer = _text(header, "PatientID"), _text(header, "IssuerOfPatientID")
        return DicomHeader(
            modality=_text(header, "Modality"),
            patient=f"{patient} ({issuer})" if patient and issuer else patient,
            laterality=_laterality(header),
            frames=_frames(header) if header.get("Rows") else 0,
        )


def read_frame(path: Path, number: int) -> NDArray[np.uint8]:
    """One picture of a file, uint8 [H, W, 3] in RGB, as `read_photograph` turns it into that.

    No other frame is decoded, so that a volume of many scans takes the memory of one.

    Args:
        path: The file.
        number: Of the frame, from 1.

    Raises:
        NoPhotographError: Its pixels are of another kind than these.
        DataError: The file is damaged, or its compression cannot be undone here.
        SettingsError: pydicom is not installed.
    """
    _require_pydicom()
    with _named(path, "cannot be read as DICOM", "export it again"):
        header = _header(path, stop_before_pixels=True)
        photometric = _text(header, "PhotometricInterpretation")
        _check_pixels(path, header, photometric)
    return _pixels(path, header, photometric, number - 1, path)


def head_of(path: Path) -> bytes:
    """All of a file that stands before its pixels, a DICOM file itself; the whole of a deflated one.

    Raises:
        DataError: The file is damaged.
        SettingsError: pydicom is not installed.
    """
    _require_pydicom()
    with _named(path, "cannot be read as DICOM", "export it again"), open(path, "rb") as handle:
        _header(handle, stop_before_pixels=True)
        size = handle.tell()
        handle.seek(0)
        return handle.read(size)


def _laterality(header: Any) -> Laterality:
    """The eye: of the image, else of the series, else of what all its frames share."""
    found = _text(header, "ImageLaterality") or _text(header, "Laterality")
    for shared in () if found else header.get("SharedFunctionalGroupsSequence") or ():
        for anatomy in shared.get("FrameAnatomySequence") or ():
            found = _text(anatomy, "FrameLaterality")
    return _LATERALITY.get(found, "unknown")


def _frames(header: Any) -> int:
    return max(1, int(header.get("NumberOfFrames") or 1))


def _check_kind(path: Path, header: Any, photometric: str) -> None:
    modality, frames = _text(header, "Modality"), _frames(header)
    if modality != "OP":
        raise NoPhotographError(path, f"its modality is {modality or 'not given'}, expected OP")
    if frames != 1:
        raise NoPhotographError(path, f"it has {frames} frames, expected one")
    _check_pixels(path, header, photometric)


def _check_pixels(path: Path, header: Any, photometric: str) -> None:
    if photometric not in (*_COLOURS, *_GREYS):
        kinds = [*_COLOURS, *_GREYS]
        raise NoPhotographError(path, f"its pixels are {photometric or 'not described'}, expected {kinds}")
    if int(header.get("PixelRepresentation") or 0) != 0:
        raise NoPhotographError(path, "its pixels have a sign")


def _pixels(path: Path, header: Any, photometric: str, index: int, source: Path | None = None) -> NDArray[np.uint8]:
    from pydicom.pixels import pixel_array

    with _named(path, "has pixels that cannot be read", "export it again without compression or as JPEG baseline"):
        _check_boxes(header, index, source)
        pixels = np.asarray(pixel_array(header if source is None else source, index=index))
        top = (1 << int(header.BitsStored)) - 1
    grey = photometric in _GREYS
    if pixels.dtype not in (np.uint8, np.uint16) or pixels.shape[2:] != (() if grey else (3,)):
        raise NoPhotographError(path, f"its pixels are {pixels.dtype} {list(pixels.shape)}, expected 8 or 16 bits")
    wide = np.minimum(pixels.astype(np.uint32), top)
    if photometric == "MONOCHROME1":
        wide = top - wide
    eight = ((wide * 255 + top // 2) // top).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(eight[..., None], 3, axis=2) if grey else eight)


def _check_boxes(header: Any, index: int, source: Path | None) -> None:
    """Refuse a picture of JPEG 2000 in boxes (JP2) of which one says that it is shorter than its own head.

    pydicom 3.0 adds up their lengths until it comes to the picture, and would do so for ever.

    Raises:
        ValueError: There is such a box before the picture.
    """
    from pydicom.uid import JPEG2000TransferSyntaxes

    if header.file_meta.TransferSyntaxUID not in JPEG2000TransferSyntaxes:
        return
    frame = _compressed(header, index, source)
    at = 12 if frame.startswith(_JP2) else len(frame)
    while at < len(frame) and frame[at + 4 : at + _BOX_BYTES] != b"jp2c":
        length = int.from_bytes(frame[at : at + 4], "big")
        if length < _BOX_BYTES:
            raise ValueError(f"a box of JPEG 2000 of {length} bytes")
        at += length


def _compressed(header: Any, index: int, source: Path | None) -> bytes:
    """One frame as it stands in the file, found as `pixel_array` finds it."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import as_pixel_options

    def found(pixels: Any, described: Any) -> bytes:
        known = as_pixel_options(described)
        offsets = known.get("extended_offsets")
        return bytes(get_frame(pixels, index, number_of_frames=known["number_of_frames"], extended_offsets=offsets))

    if source is None:
        return found(header.PixelData, header)
    with open(source, "rb") as handle:
        described = _header(handle, stop_before_pixels=True)
        handle.seek(_PIXEL_HEAD_BYTES, os.SEEK_CUR)
        return found(handle, described)


def _require_pydicom() -> None:
    require_package(
        "pydicom", 'DICOM photographs need pydicom, which is not installed: run `pip install "pydicom>=3"`.'
    )


def _header(source: Path | BinaryIO, stop_before_pixels: bool) -> Any:
    from pydicom import dcmread

    return dcmread(source, stop_before_pixels=stop_before_pixels)


class _Silence:
    """Python keeps what is shown for all threads at once: the first that comes sets it, the last that goes resets it.

    No thread waits for another that decodes, be it for long or for ever.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                for logger in map(logging.getLogger, _QUOTING):
                    self._before.callback(logger.setLevel, logger.level)
                    logger.setLevel(logging.CRITICAL + 1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.close()


_SILENCE = _Silence()


def warnings_held_back() -> AbstractContextManager[None]:
    """Neither show nor log what pydicom and highdicom say: it quotes values of the header."""
    return _SILENCE


@contextmanager
def _named(path: Path, fault: str, mend: str) -> Iterator[None]:
    """Turn what pydicom raises on damaged files into a sentence that names the file.

    What it warns of is held back.
    """
    from pydicom.errors import BytesLengthException, InvalidDicomError

    try:
        with warnings_held_back():
            yield
    except (*_DAMAGE, BytesLengthException, InvalidDicomError) as error:
        # pydicom says in many lines which plugins were looked for; the first names the compression.
        first = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{path} {fault} ({first}): {mend}.") from error


def _text(header: Any, name: str) -> str:
    return str(header.get(name) or "").strip()


def begins_as_dicom(path: Path) -> bool:
    """Whether a file has the mark of DICOM files and is no DICOMDIR, the index of a medium; False where unreadable."""
    if path.name.upper() == "DICOMDIR":
        return False
    try:
        with open(path, "rb") as handle:
            return handle.read(132)[128:] == b"DICM"
    except OSError:
        return False
