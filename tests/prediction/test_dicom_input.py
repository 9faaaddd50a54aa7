"""`fedretina predict` on folders of DICOM files that are written here from phantoms."""

from __future__ import annotations

import csv
import json
import re
import warnings

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from fedretina.cli import main
from fedretina.data.decode import decode_image
from fedretina.errors import SettingsError
from fedretina.prediction.eyes import by_header, by_name
from fedretina.prediction.photographs import find_photographs
from fedretina.prediction.predictor import Predictor
from final_model import write_final

pytest.importorskip("pydicom", reason="the extra dicom is not installed")

from dicom_writing import write_dicom


def call(*words):
    return CliRunner().invoke(main, ["predict", *(str(word) for word in words), "--device", "cpu"])


def lines(path):
    with open(path, newline="", encoding="utf-8") as handle:
        return {line["file"]: line for line in csv.DictReader(handle)}


@pytest.fixture
def pixels(hospital):
    return [decode_image(hospital.images / file) for file in hospital.files[:4]]


@pytest.fixture
def folder(pixels, tmp_path):
    """A patient with both eyes in 8 and 16 bits, one with an eye in 12 of 16 bits, and a photograph that is none."""
    root = tmp_path / "in"
    write_dicom(root / "study" / "IM0001", pixels[0], "MRN0001", "R")
    write_dicom(root / "study" / "IM0002", pixels[1].astype(np.uint16) * 257, "MRN0001", "L")
    twelve = (pixels[2].astype(np.uint32) * 4095 // 255).astype(np.uint16)
    write_dicom(root / "c.dcm", twelve, "MRN0002", "L", bits=12)
    cv2.imwrite(str(root / "30_left.png"), pixels[3][..., ::-1])
    return root


def test_photographs_of_8_and_16_bits_are_answered_as_the_same_pixels_in_a_png_are(hospital, folder, pixels, tmp_path):
    out = tmp_path / "out"
    result = call(folder, "--model", hospital.final, "--out", out)
    assert result.exit_code == 0, result.output
    assert "4 photographs of 3 patients." in result.output
    assert "3 photographs were joined into patients by the Patient ID of their DICOM files." in result.output
    found = lines(out / "images.csv")
    own = Predictor.load(hospital.final, "cpu").pictures(pixels)
    for name, said in zip(("study/IM0001", "study/IM0002", "c.dcm", "30_left.png"), own, strict=True):
        shown = [float(value) for key, value in found[name].items() if key.startswith("p_")]
        # 12 bits are not a multiple of 8, so a level may be rounded to its neighbour.
        assert shown == pytest.approx(said.probabilities.tolist(), abs=0.02 if name == "c.dcm" else 0)
    assert {(row["patient"], row["eye"]) for row in found.values()} == {
        ("MRN0001", "left"),
        ("MRN0001", "right"),
        ("MRN0002", "left"),
        ("30", "left"),
    }
    page = (out / "worklist.html").read_text(encoding="utf-8")
    assert "Phantom^" not in page
    copies = dict(re.findall(r'data-file="([^"]*)"[^>]*data-full="([^"]*)"', page))
    for name, expected in zip(("study/IM0001", "study/IM0002"), pixels, strict=False):
        assert np.array_equal(decode_image(out / copies[name]), expected)
        assert b"MRN0001" not in (out / copies[name]).read_bytes()


def test_volumes_are_answered_frame_by_frame(tiny, phantoms, tmp_path):
    experiment = tiny(row="fedee", images={"modality": "oct"})
    data = phantoms(experiment, "site-1")["site-1"]
    write_final(tmp_path / "final", experiment, data)
    scans = data.split("test").images[:3, 0].numpy()
    root, out = tmp_path / "in", tmp_path / "out"
    shared = {"SharedFunctionalGroupsSequence": [in_each("R")], "ImageLaterality": None}
    write_dicom(root / "volume", scans, "MRN0001", oct_scan=True, **shared)
    write_dicom(root / "one.dcm", scans[0].astype(np.uint16) * 257, "MRN0001", oct_scan=True)
    write_dicom(root / "locator.dcm", scans[0])
    result = call(root, "--model", tmp_path / "final", "--out", out)
    assert result.exit_code == 0, result.output
    assert "no DICOM pictures of modality OPT: 1 OP." in result.output
    found = lines(out / "images.csv")
    assert set(found) == {"one.dcm", "volume#1", "volume#2", "volume#3"}
    own = Predictor.load(tmp_path / "final", "cpu").pictures([np.repeat(scan[..., None], 3, 2) for scan in scans])
    for name, said in zip(("volume#1", "volume#2", "volume#3"), own, strict=True):
        assert float(found[name]["u"]) == pytest.approx(said.uncertainty, abs=1e-6)
        assert (found[name]["patient"], found[name]["eye"]) == ("MRN0001", "right")
    assert float(found["one.dcm"]["u"]) == pytest.approx(float(found["volume#1"]["u"]), abs=1e-6)
    assert found["one.dcm"]["eye"] == "left"
    listed = tmp_path / "patients.csv"
    listed.write_text("file,patient,eye\nvolume,A,OS\none.dcm,B,OD\n")
    assert call(root, "--model", tmp_path / "final", "--out", out, "--replace", "--patients", listed).exit_code == 0
    assert {(row["patient"], row["eye"]) for row in lines(out / "images.csv").values()} == {
        ("A", "left"),
        ("B", "right"),
    }


def in_each(eye):
    from pydicom.dataset import Dataset

    group, anatomy = Dataset(), Dataset()
    anatomy.FrameLaterality = eye
    group.FrameAnatomySequence = [anatomy]
    return group


def test_what_cannot_be_read_is_referred_and_what_is_no_picture_is_counted(hospital, pixels, tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    write_dicom(root / "sound", pixels[0])
    write_dicom(root / "cut.dcm", pixels[0], "MRN0003", PixelData=pixels[0].tobytes()[:100])
    (root / "empty.dcm").write_bytes(b"")
    write_dicom(root / "report", pixels[0], Modality="SR")
    write_dicom(root / "pdf", pixels[0], Rows=None)
    write_dicom(root / "odd", pixels[0], Modality="DOE_JANE")
    write_dicom(root / "DICOMDIR", pixels[0])
    result = call(root, "--model", hospital.final, "--out", out, "--json")
    record = json.loads(result.stdout)
    assert (record["photographs"], record["without_answer"]) == (3, 2)
    assert record["left_out"] == {}
    assert record["left_out_dicom"] == {"OP without a picture": 1, "SR": 1, "no modality": 1}
    found = lines(out / "images.csv")
    assert {row["refer"] for name, row in found.items() if name != "sound"} == {"yes"}
    assert found["cut.dcm"]["patient"] == "MRN0003"
    assert found["empty.dcm"]["patient"] == "empty.dcm"
    assert "cannot be read as DICOM" in found["empty.dcm"]["fault"]
    assert str(tmp_path) not in found["cut.dcm"]["fault"]


def test_patients_are_those_of_the_headers(pixels, tmp_path):
    write_dicom(tmp_path / "a.dcm", pixels[0], "10", "L", IssuerOfPatientID="ONE")
    write_dicom(tmp_path / "b.dcm", pixels[0], "10", "R", IssuerOfPatientID="TWO")
    write_dicom(tmp_path / "c.dcm", pixels[0], "", "B")
    write_dicom(tmp_path / "d.dcm", pixels[0], "11", "L")
    for name in ("11_left.png", "11_right.png", "12_left.png"):
        (tmp_path / name).write_bytes(b"")
    found = find_photographs(tmp_path, dicom="OP")
    owners = dict(zip(found.files, by_header(found.files, found.dicom).owners, strict=True))
    assert owners["a.dcm"] == ("10 (ONE)", "left")
    assert owners["b.dcm"] == ("10 (TWO)", "right")
    assert owners["c.dcm"] == ("c.dcm", "")
    assert owners["d.dcm"] == ("11", "left")
    assert owners["11_left.png"] == ("11_left.png", "left")  # another 11, for all that is known
    assert owners["12_left.png"] == ("12", "left")
    plain = ("10_left.png", "10_right.png")
    assert by_header(plain, {}) == by_name(plain)


def test_warnings_of_pydicom_show_no_header(hospital, pixels, tmp_path, caplog):
    import pydicom

    odd = write_dicom(tmp_path / "in" / "a", pixels[0], "MRN0004", SpecificCharacterSet="Doe")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")

        def told():
            found = "Doe" in caplog.text, "Doe" in "".join(str(one.message) for one in shown)
            caplog.clear()
            shown.clear()
            return found

        told()
        assert pydicom.dcmread(odd).PatientName
        assert told() == (True, True)
        result = call(tmp_path / "in", "--model", hospital.final, "--out", tmp_path / "out")
        assert result.exit_code == 0
        assert told() == (False, False)
        assert "Doe" not in result.output + result.stderr


def test_without_pydicom(hospital, pixels, tmp_path, monkeypatch):
    write_dicom(tmp_path / "a", pixels[0])
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(SettingsError, match="pip install"):
        Predictor.load(hospital.final, "cpu").find(tmp_path)
