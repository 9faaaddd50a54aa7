"""DICOM files of phantoms, as cameras and OCT devices write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

OP_8 = "1.2.840.10008.5.1.4.1.1.77.1.5.1"
OP_16 = "1.2.840.10008.5.1.4.1.1.77.1.5.2"
OCT = "1.2.840.10008.5.1.4.1.1.77.1.5.4"


def uid(*words: object) -> str:
    """A UID that is the same for the same words."""
    return str(generate_uid(entropy_srcs=["fedretina tests", *map(str, words)]))


def write_dicom(
    path: Path,
    pixels: np.ndarray,
    patient: str = "MRN0001",
    eye: str = "L",
    study: str = "one",
    bits: int | None = None,
    oct_scan: bool = False,
    **tags: object,
) -> Path:
    """Write a file.

    Args:
        path: Where.
        pixels: uint8 or uint16, [H, W, 3] in colour, [H, W] in grey or [N, H, W] of a volume.
        patient: Patient ID.
        eye: "L", "R" or "".
        study: Names the study.
        bits: That are stored, by default all.
        oct_scan: Whether it is an OCT and no photograph.
        tags: Attributes besides; None takes one away.
    """
    wide = pixels.dtype.itemsize * 8
    colour = pixels.ndim == 3 and pixels.shape[2] == 3
    frames = pixels.shape[0] if pixels.ndim == 3 and not colour else 1
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds.SOPClassUID = OCT if oct_scan else OP_8 if wide == 8 else OP_16
    ds.SOPInstanceUID = uid("instance", patient, study, path.name)
    ds.file_meta.MediaStorageSOPClassUID = ds.SOPClassUID
    ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID
    ds.Modality = "OPT" if oct_scan else "OP"
    ds.PatientID, ds.PatientName = patient, f"Phantom^{patient}"
    ds.PatientBirthDate, ds.PatientSex = "19560102", "F"
    ds.StudyInstanceUID, ds.SeriesInstanceUID = uid("study", patient, study), uid("series", patient, study, eye)
    ds.StudyDate, ds.StudyTime, ds.StudyID, ds.AccessionNumber = "20260105", "101500", "1", f"A-{study}"
    ds.ReferringPhysicianName, ds.Manufacturer = "", "Phantom"
    ds.SeriesNumber, ds.InstanceNumber = 1, 1
    ds.ImageLaterality = eye
    ds.Rows, ds.Columns = pixels.shape[:2] if colour or pixels.ndim == 2 else pixels.shape[1:]
    ds.SamplesPerPixel = 3 if colour else 1
    if colour:
        ds.PlanarConfiguration = 0
    ds.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    ds.NumberOfFrames = frames
    ds.BitsAllocated, ds.BitsStored = wide, bits or wide
    ds.HighBit, ds.PixelRepresentation = ds.BitsStored - 1, 0
    ds.PixelData = pixels.tobytes()
    return _saved(ds, path, tags)


def _saved(ds, path, tags):
    """Write a file with some tags set anew; one of None is left out."""
    for name, value in tags.items():
        if value is None:
            delattr(ds, name)
        else:
            setattr(ds, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)
    return path


def ramp(shift: int = 0) -> np.ndarray:
    """A smooth picture whose three channels differ."""
    y, x = np.mgrid[0:32, 0:40]
    return np.stack([x * 6, y * 7, np.full_like(x, 40 + shift)], axis=-1).astype(np.uint8)


def write_as(path, pixels=None, photometric="RGB", syntax=ExplicitVRLittleEndian, data=None, stored=None, **tags):
    """Write a photograph, `ramp` by default, with any pixel data and tags, sound or not; a tag of None is left out."""
    pixels = ramp() if pixels is None else pixels
    bits = pixels.dtype.itemsize * 8
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = syntax
    ds.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    ds.SOPClassUID = OP_8
    ds.SOPInstanceUID = "1.2.3." + ".".join(str(ord(letter)) for letter in path.name)
    ds.Modality = "OP"
    ds.PatientID = "MRN0001"
    ds.PatientName = "Doe^Jane"
    ds.Rows, ds.Columns = pixels.shape[:2]
    ds.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    if pixels.ndim == 3:
        ds.PlanarConfiguration = 0
    ds.PhotometricInterpretation = photometric
    ds.BitsAllocated = bits
    ds.BitsStored = stored or bits
    ds.HighBit = ds.BitsStored - 1
    ds.PixelRepresentation = 0
    ds.PixelData = pixels.tobytes() if data is None else data
    return _saved(ds, path, tags)
