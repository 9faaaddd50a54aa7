"""DICOM photographs, written here with pydicom: what is read of their pixels and headers, and what is refused."""

import io
import logging
import os
import subprocess
import sys
import warnings
from threading import Event, Thread

import numpy as np
import pytest
from PIL import Image

from fedretina.data.dicom_file import (
    NoPhotographError,
    dicom_files,
    read_frame,
    read_header,
    read_photograph,
    warnings_held_back,
)
from fedretina.errors import DataError, SettingsError

pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")

from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.pixels import convert_color_space  # noqa: E402
from pydicom.uid import (  # noqa: E402
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLSLossless,
)

from dicom_writing import ramp, write_as  # noqa: E402


def compressed(pixels, kind, **words):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **words)
    return encapsulate([stream.getvalue()])


def test_rgb_comes_as_it_is(tmp_path):
    found = read_photograph(write_as(tmp_path / "a", PatientID=" MRN1 "))
    np.testing.assert_array_equal(found.pixels, ramp())
    assert found.pixels.flags.c_contiguous
    assert (found.patient, found.laterality, found.burned_in, found.grey) == ("MRN1", "unknown", "unknown", False)


def test_ybr_is_turned_into_rgb(tmp_path):
    pixels = convert_color_space(ramp(), "RGB", "YBR_FULL")
    found = read_photograph(write_as(tmp_path / "a", pixels, "YBR_FULL"))
    assert np.abs(found.pixels.astype(int) - ramp()).max() <= 2


def test_planes_one_after_the_other(tmp_path):
    data = np.ascontiguousarray(ramp().transpose(2, 0, 1)).tobytes()
    found = read_photograph(write_as(tmp_path / "a", data=data, PlanarConfiguration=1))
    np.testing.assert_array_equal(found.pixels, ramp())


@pytest.mark.parametrize(
    ("photometric", "syntax", "kind", "worst"),
    [("YBR_FULL_422", JPEGBaseline8Bit, "JPEG", 6), ("YBR_RCT", JPEG2000Lossless, "JPEG2000", 0)],
)
def test_compressed_colours(tmp_path, photometric, syntax, kind, worst):
    words = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {}
    found = read_photograph(write_as(tmp_path / "a", ramp(), photometric, syntax, compressed(ramp(), kind, **words)))
    assert np.abs(found.pixels.astype(int) - ramp()).max() <= worst


@pytest.mark.parametrize(("stored", "top"), [(8, 255), (12, 4095), (16, 65535)])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_grey_is_scaled_from_its_stored_bits(tmp_path, stored, top, photometric):
    values = np.array([0, top // 4, top // 2, top])
    pixels = np.tile(values, (4, 1)).astype(np.uint8 if stored == 8 else np.uint16)
    found = read_photograph(write_as(tmp_path / "a", pixels, photometric, stored=stored))
    expected = np.rint(values * 255 / top).astype(int)
    if photometric == "MONOCHROME1":
        expected = 255 - expected
    assert found.grey
    assert found.pixels.shape == (4, 4, 3)
    assert np.abs(found.pixels[0].astype(int) - expected[:, None]).max() <= 1
    assert np.abs(found.pixels[0, [0, -1], 0].astype(int) - expected[[0, -1]]).max() == 0


@pytest.mark.parametrize(
    ("tags", "laterality"),
    [
        ({"ImageLaterality": "L"}, "left"),
        ({"Laterality": "R"}, "right"),
        ({"ImageLaterality": "R", "Laterality": "L"}, "right"),
        ({"ImageLaterality": "", "Laterality": "L"}, "left"),
        ({"ImageLaterality": "B"}, "both"),
        ({"ImageLaterality": "U"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_laterality(tmp_path, tags, laterality):
    assert read_photograph(write_as(tmp_path / "a", **tags)).laterality == laterality


@pytest.mark.parametrize(("value", "found"), [("YES", "yes"), ("NO", "no"), ("", "unknown"), ("MAYBE", "unknown")])
def test_burned_in_annotation(tmp_path, value, found):
    assert read_photograph(write_as(tmp_path / "a", BurnedInAnnotation=value)).burned_in == found


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"Modality": "OPT"}, "its modality is OPT, expected OP"),
        ({"Modality": None}, "its modality is not given, expected OP"),
        ({"NumberOfFrames": 3}, "it has 3 frames, expected one"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "its pixels are PALETTE COLOR"),
        ({"PixelRepresentation": 1}, "its pixels have a sign"),
    ],
)
def test_what_is_no_photograph(tmp_path, tags, reason):
    with pytest.raises(NoPhotographError, match=reason) as error:
        read_photograph(write_as(tmp_path / "a.dcm", **tags))
    assert "a.dcm" not in error.value.reason


@pytest.mark.parametrize(
    "tags",
    [
        {"data": b"short!"},
        {"Rows": None},
        {"BitsStored": 0},
        {"syntax": JPEGLSLossless, "data": encapsulate([b"no JPEG"])},
        {"syntax": JPEGBaseline8Bit, "data": encapsulate([b"\xff\xd8 cut off"])},
    ],
)
def test_pixels_that_cannot_be_read(tmp_path, tags):
    with pytest.raises(DataError, match=r"a\.dcm has pixels that cannot be read .*export it again"):
        read_photograph(write_as(tmp_path / "a.dcm", **tags))


def in_boxes(length):
    """A picture of JPEG 2000 in a JP2 file, with a box before the picture that says it has so many bytes."""
    stream = io.BytesIO()
    Image.fromarray(ramp()).save(stream, "JPEG2000", no_jp2=False)
    data = stream.getvalue()
    assert data[4:8] == b"jP  "
    second = 12 + int.from_bytes(data[12:16], "big")
    return encapsulate([data[:second] + length.to_bytes(4, "big") + b"free" + data[second:]])


def test_a_box_of_no_length_in_jpeg_2000_ends_in_a_sentence(tmp_path):
    for length in (0, 1, 7):
        write_as(tmp_path / f"{length}.dcm", ramp(), "YBR_RCT", JPEG2000Lossless, in_boxes(length))
    code = (
        "import sys; from pathlib import Path\n"
        "from fedretina.data.dicom_file import read_frame, read_photograph\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    for read in (read_photograph, lambda path: read_frame(path, 1)):\n"
        "        try:\n"
        "            print(read(path))\n"
        "        except Exception as error:\n"
        "            print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # In a process of its own, which can be ended: pydicom alone would go round for ever.
    call = [sys.executable, "-c", code, str(tmp_path)]
    said = subprocess.run(call, capture_output=True, text=True, timeout=100, env=environment, check=True).stdout
    for line, length in zip(said.splitlines(), (0, 0, 1, 1, 7, 7), strict=True):
        fault = f"has pixels that cannot be read (a box of JPEG 2000 of {length} bytes)"
        assert line.startswith(f"DataError {tmp_path / str(length)}.dcm {fault}")


def test_sound_boxes_of_jpeg_2000_are_passed_over(tmp_path):
    path = write_as(tmp_path / "a", ramp(), "YBR_RCT", JPEG2000Lossless, in_boxes(8))
    np.testing.assert_array_equal(read_photograph(path).pixels, ramp())
    np.testing.assert_array_equal(read_frame(path, 1), ramp())


def test_the_frames_of_a_volume_in_jpeg_2000_are_each_looked_at(tmp_path):
    frames = []
    for shift in (0, 9):
        stream = io.BytesIO()
        Image.fromarray(ramp(shift)).save(stream, "JPEG2000", no_jp2=False)
        frames.append(stream.getvalue())
    broken = frames[1][:12] + bytes(4) + frames[1][16:]
    for has_table in (True, False):
        data = encapsulate([*frames, broken], has_bot=has_table)
        path = write_as(tmp_path / "a", ramp(), "YBR_RCT", JPEG2000Lossless, data, NumberOfFrames=3)
        np.testing.assert_array_equal(read_frame(path, 2), ramp(9))
        with pytest.raises(DataError, match="a box of JPEG 2000 of 0 bytes"):
            read_frame(path, 3)


def test_who_decodes_keeps_nobody_waiting_and_warnings_come_back_with_the_last(tmp_path):
    logger, filters = logging.getLogger("pydicom.pixels.decoders.base"), list(warnings.filters)
    spoke = logger.getEffectiveLevel()
    inside, go = Event(), Event()

    def decode():
        with warnings_held_back():
            inside.set()
            assert go.wait(60)

    other = Thread(target=decode)
    other.start()
    assert inside.wait(60)
    read_photograph(write_as(tmp_path / "a"))  # comes and goes meanwhile
    with warnings_held_back(), warnings_held_back():
        pass
    assert not logger.isEnabledFor(logging.CRITICAL)
    go.set()
    other.join(60)
    assert logger.getEffectiveLevel() == spoke
    assert warnings.filters == filters


@pytest.mark.parametrize("tag", [b"\x08\x00\x60\x00CS", b"\x10\x00\x20\x00LO", b"\x28\x00\x03\x01US"])
def test_elements_that_cannot_be_read(tmp_path, tag):
    path = write_as(tmp_path / "a.dcm")
    path.write_bytes(path.read_bytes().replace(tag, tag[:4] + b"Z?"))
    with pytest.raises(DataError, match=r"a\.dcm cannot be read as DICOM"):
        read_photograph(path)


def test_no_damage_escapes_as_anything_but_a_sentence(tmp_path):
    whole = write_as(tmp_path / "a.dcm").read_bytes()
    random = np.random.default_rng(1)
    outcomes = set()
    for _ in range(150):
        data = bytearray(whole)
        for at in random.integers(132, 700, random.integers(1, 6)):
            data[at] = random.integers(256)
        (tmp_path / "b.dcm").write_bytes(data)
        try:
            outcomes.add(read_photograph(tmp_path / "b.dcm").pixels.dtype.name)
        except DataError as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"uint8", "DataError", "NoPhotographError"}


def test_a_damaged_deflated_file_ends_in_a_sentence(tmp_path):
    path = write_as(tmp_path / "a.dcm", syntax=DeflatedExplicitVRLittleEndian)
    np.testing.assert_array_equal(read_photograph(path).pixels, ramp())
    path.write_bytes(path.read_bytes()[:-30])
    for read in (read_header, read_photograph, lambda path: read_frame(path, 1)):
        with pytest.raises(DataError, match=r"a\.dcm cannot be read as DICOM"):
            read(path)


def test_files_are_known_by_their_content(tmp_path):
    write_as(tmp_path / "b" / "IM1")
    write_as(tmp_path / "a.dcm")
    write_as(tmp_path / "DICOMDIR")
    (tmp_path / "notes.dcm").write_text("no DICOM")
    assert [path.name for path in dicom_files(tmp_path)] == ["a.dcm", "IM1"]


def test_without_pydicom(tmp_path, monkeypatch):
    path = write_as(tmp_path / "a.dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(SettingsError, match=r"pip install \"pydicom>=3\""):
        read_photograph(path)
