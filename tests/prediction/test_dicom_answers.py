"""`fedretina predict --dicom`: reports, pages and FHIR bundles of DICOM pictures, read back and checked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedretina.cli import main
from fedretina.data.decode import decode_image
from fedretina.data.dicom_file import DicomFrame, read_header, warnings_held_back
from fedretina.dicom import page as page_of
from fedretina.dicom.codes import CONCEPTS, DESIGNATOR, REASONS, loinc_answer
from fedretina.dicom.eye_answers import TYPE_2, AnsweringModel, eye_answers, write_answers
from fedretina.dicom.fhir import bundle
from fedretina.dicom.page import encapsulated_page
from fedretina.dicom.structured_report import concept, structured_report
from fedretina.errors import StateError
from fedretina.prediction.eyes import Owner
from fedretina.prediction.photographs import DicomPicture
from fedretina.prediction.predictor import ImageRow, Predictor
from fedretina.prediction.worklist import work_list
from fedretina.settings.scheme import in_words, preset
from fedretina.uncertainty.referral import Referral, ReferralReason, refer

pytest.importorskip("highdicom", reason="the extra dicom is not installed")

from highdicom.sr.utils import find_content_items
from pydicom import dcmread
from pydicom.sr.codedict import codes

from dicom_writing import write_dicom

pytestmark = pytest.mark.slow


def call(*words):
    return CliRunner().invoke(main, ["predict", *(str(word) for word in words), "--device", "cpu", "--dicom"])


@pytest.fixture(scope="module")
def answered(hospital, gated, tmp_path_factory):
    """A patient with two photographs of the right eye and one of the left in a study; a patient whose photograph is
    black, one whose file is damaged, and one whose photograph names no study.
    """
    root = tmp_path_factory.mktemp("in")
    pixels = [decode_image(hospital.images / file) for file in hospital.files[:4]]
    write_dicom(root / "a" / "IM1", pixels[0], "MRN0001", "R")
    write_dicom(root / "a" / "IM2", pixels[1].astype(np.uint16) * 257, "MRN0001", "R")
    write_dicom(root / "a" / "IM3", pixels[2], "MRN0001", "L", IssuerOfPatientID="CLINIC")
    write_dicom(root / "black", np.zeros_like(pixels[0]), "MRN0002", "L")
    write_dicom(root / "cut", pixels[3], "MRN0003", "L", PixelData=pixels[3].tobytes()[:100])
    write_dicom(root / "nameless", pixels[3], "MRN0004", "L", StudyInstanceUID="")
    out = tmp_path_factory.mktemp("out")
    result = call(root, "--model", gated, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return root, out, json.loads(result.stdout)


@pytest.fixture(scope="module")
def answered_bare(hospital, gated, tmp_path_factory):
    """Report, page and bundle of a photograph whose header has nothing of what it may leave empty."""
    root, out = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("bare_out")
    write_dicom(root / "IM1", decode_image(hospital.images / hospital.files[0]), **dict.fromkeys(TYPE_2))
    result = call(root, "--model", gated, "--out", out)
    assert result.exit_code == 0, result.output
    (report,), (page,), (bundle,) = (sorted(out.glob(f"dicom/*{kind}")) for kind in ("report.dcm", "page.dcm", "json"))
    verified(report, page)
    return dcmread(report), dcmread(page), json.loads(bundle.read_text())


def verified(*files):
    """Whether dciodvfy, where it is installed, finds no error."""
    for path in files if shutil.which("dciodvfy") else ():
        told = subprocess.run(["dciodvfy", path], capture_output=True, text=True, check=False)
        assert "Error" not in told.stdout + told.stderr, f"{path.name}\n{told.stderr}"


def reports(out):
    return {path.name.removesuffix("-report.dcm"): dcmread(path) for path in sorted(out.glob("dicom/*-report.dcm"))}


def by_patient(out, patient, eye):
    (found,) = (
        (name, report)
        for name, report in reports(out).items()
        if report.PatientID == patient and name.endswith(f"-{eye}")
    )
    return found


def groups(report):
    """The measurement groups of a report, each as what it says by the meaning of its concepts."""
    found = []
    for item in find_content_items(report, name=codes.DCM.MeasurementGroup, recursive=True):
        said = {}
        for one in item.ContentSequence:
            name = one.ConceptNameCodeSequence[0].CodeMeaning
            if one.ValueType == "CODE":
                value = one.ConceptCodeSequence[0].CodeMeaning
            elif one.ValueType == "NUM":
                value = float(one.MeasuredValueSequence[0].NumericValue)
            elif one.ValueType == "TEXT":
                value = one.TextValue
            else:
                value = one.ValueType
            said.setdefault(name, []).append(value)
        found.append(said)
    return found


def test_each_eye_of_each_study_has_a_report_a_page_and_a_bundle(answered):
    _, out, record = answered
    assert record["dicom"] == {"answers": 4, "without": 1, "folder": str(out / "dicom")}
    names = sorted(path.name for path in (out / "dicom").iterdir())
    kinds = ("fhir.json", "page.dcm", "report.dcm")
    assert len(names) == 12
    assert {name.split("-", 2)[2] for name in names} == set(kinds)
    assert not any("MRN" in name for name in names)
    assert (out / "dicom").stat().st_mode & 0o077 == 0


def test_a_report_says_what_the_list_says(answered, gated):
    root, out, _ = answered
    name, report = by_patient(out, "MRN0001", "right")
    predictor = Predictor.load(gated, "cpu")
    own = list(predictor.predict(root, ["a/IM1", "a/IM2"], predictor.find(root).frames))
    source = dcmread(root / "a" / "IM1", stop_before_pixels=True)
    assert (report.StudyInstanceUID, report.PatientName) == (source.StudyInstanceUID, source.PatientName)
    assert (report.CompletionFlag, report.PreliminaryFlag, report.VerificationFlag) == (
        "PARTIAL",
        "PRELIMINARY",
        "UNVERIFIED",
    )
    eye, *pictures = groups(report)
    assert len(pictures) == 2
    grades = [in_words(grade) for grade in predictor.scheme.grades]
    for said, row in zip(pictures, own, strict=True):
        if row.fault:  # the gate stopped it
            assert not {CONCEPTS["GRADE"], CONCEPTS["PROBABILITY"], CONCEPTS["DOUBT"]} & set(said)
            continue
        assert said[CONCEPTS["GRADE"]] == [grades[row.grade]]
        assert said[CONCEPTS["PROBABILITY"]] == pytest.approx(row.probabilities.tolist(), abs=1e-8)
        assert said[CONCEPTS["DOUBT"]] == [pytest.approx(row.uncertainty, abs=1e-8)]
        assert said[CONCEPTS["REFER"]] == ["Yes" if row.referral.refer else "No"]
        assert said.get(CONCEPTS["REASON"], []) == list(row.referral.reasons)
        assert said.get(CONCEPTS["GRADES"], []) == ([row.grades] if row.grades else [])
    assert eye[CONCEPTS["GRADE"]] == [grades[max(row.grade for row in own)]]
    ill = list(predictor.scheme.referable_classes)
    chance = max(float(row.probabilities[ill].sum()) for row in own)
    assert eye[CONCEPTS["CHANCE"]] == [pytest.approx(chance, abs=1e-8)]
    assert "not a medical device" in eye[CONCEPTS["NOTICE"]][0]
    digest = AnsweringModel.of(predictor).digest
    assert f"model sha256 {digest}" in eye["Algorithm Parameters"]
    observer = find_content_items(report, name=codes.DCM.DeviceObserverSerialNumber, recursive=True)
    assert [item.TextValue for item in observer] == [digest]
    sides = find_content_items(report, name=codes.SCT.Laterality, recursive=True)
    assert {item.ConceptCodeSequence[0].CodeMeaning for item in sides} == {"Right"}
    bundle = json.loads((out / "dicom" / f"{name}-fhir.json").read_text())
    said = {one["resource"]["resourceType"]: one["resource"] for one in bundle["entry"]}
    assert said["RiskAssessment"]["prediction"][0]["probabilityDecimal"] == pytest.approx(chance, abs=1e-6)
    assert said["DiagnosticReport"]["imagingStudy"][0]["identifier"]["value"] == f"urn:oid:{source.StudyInstanceUID}"
    assert said["DiagnosticReport"]["status"] == said["RiskAssessment"]["status"] == "preliminary"
    assert "Phantom" not in json.dumps(bundle)
    known = loinc_answer(max(row.grade for row in own), predictor.scheme)
    (graded,) = [
        item.ConceptCodeSequence[0]
        for item in find_content_items(report, name=concept("GRADE"), recursive=True)
        if item.ValueType == "CODE"
    ][:1]
    _, coded = said["Observation"]["valueCodeableConcept"]["coding"]
    assert coded == {"system": "http://loinc.org", "code": known.code, "display": known.words}
    (beside,) = graded.EquivalentCodeSequence
    assert (beside.CodeValue, beside.CodingSchemeDesignator, beside.CodeMeaning) == (known.code, "LN", known.words)


@pytest.mark.parametrize("patient", ["MRN0002", "MRN0003"])
def test_what_was_stopped_or_cannot_be_read_has_no_grade_in_any_form(answered, patient):
    _, out, _ = answered
    name, report = by_patient(out, patient, "left")
    eye, picture = groups(report)
    for said in (eye, picture):
        assert not {CONCEPTS[code] for code in ("GRADE", "GRADES", "PROBABILITY", "DOUBT", "CHANCE")} & set(said)
        assert said[CONCEPTS["REFER"]] == ["Yes"]
        assert said[CONCEPTS["REASON"]]
        assert not {"referable grade", "doubtful", "chance of disease"} & set(said[CONCEPTS["REASON"]])
    assert picture["Comment"][0]
    bundle = json.loads((out / "dicom" / f"{name}-fhir.json").read_text())
    kinds = [one["resource"]["resourceType"] for one in bundle["entry"]]
    assert kinds == ["Device", "DiagnosticReport"]
    assert "A doctor must see it" in bundle["entry"][1]["resource"]["conclusion"]


def test_the_same_answer_is_the_same_instance(answered, gated, tmp_path):
    root, out, _ = answered
    assert call(root, "--model", gated, "--out", tmp_path / "again").exit_code == 0
    first, again = reports(out), reports(tmp_path / "again")
    uids = [report.SOPInstanceUID for report in first.values()]
    assert uids == [report.SOPInstanceUID for report in again.values()]
    pages = [dcmread(path).SOPInstanceUID for path in sorted(out.glob("dicom/*-page.dcm"))]
    assert len({*uids, *pages}) == 8
    assert all(uid.startswith("2.25.") and len(uid) <= 64 for uid in (*uids, *pages))


def test_grades_of_another_scale_have_no_code_of_loinc():
    assert loinc_answer(4, preset("icdr5")).code == "LA18648-8"
    assert [loinc_answer(at, preset("icdr5_ungradable")) is None for at in (0, 4, 5)] == [False, False, True]
    assert loinc_answer(0, preset("normal_3stages")) is None


def test_what_a_header_may_leave_empty_may_be_left_out(answered_bare):
    report, page, bundle = answered_bare
    for name in TYPE_2:
        assert not report[name].value
        assert not page[name].value
    (subject,) = {json.dumps(one["resource"]["subject"]) for one in bundle["entry"][1:]}
    assert json.loads(subject) == {"display": "not named by the picture"}


def test_names_come_out_in_the_letters_of_their_source(hospital, gated, tmp_path, monkeypatch):
    pixels = decode_image(hospital.images / hospital.files[0])
    named = {
        "GB18030": ("病人1", "王^小东"),
        "ISO_IR 144": ("MRN0002", "Люксембург"),
        "ISO_IR 100": ("MRN0003", "Müller^Jürgen"),
        ("", "ISO 2022 IR 87"): ("MRN0004", "Yamada^Tarou=山田^太郎=やまだ^たろう"),
    }
    for at, (letters, (patient, name)) in enumerate(named.items()):
        tags = {"SpecificCharacterSet": letters if isinstance(letters, str) else list(letters), "PatientName": name}
        write_dicom(tmp_path / "in" / f"{at}", pixels, patient, **tags)
    untold = write_dicom(tmp_path / "in" / "untold", pixels, "MRN05")
    untold.write_bytes(untold.read_bytes().replace(b"\x06\x00MRN05 ", b"\x06\x00" + "病人".encode("gbk") + b"05"))
    texts = []

    def save(figure, *words, **more):
        texts.append("\n".join(text.get_text() for text in figure.texts))
        saved(figure, *words, **more)

    saved = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", save)
    result = call(tmp_path / "in", "--model", gated, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)["dicom"]
    assert (record["answers"], record["without"]) == (4, 1)
    for kind in ("report", "page"):
        files = sorted((tmp_path / "out").glob(f"dicom/*-{kind}.dcm"))
        verified(*files)
        found = [dcmread(path) for path in files]
        assert {one.SpecificCharacterSet for one in found} == {"ISO_IR 192"}
        assert {(one.PatientID, str(one.PatientName)) for one in found} == set(named.values())
    heads = [text.split("Patient ID ")[1].split(", study of")[0] for text in texts]
    assert sorted(heads) == ["MRN0002", "MRN0003", "MRN0004", "in letters that this page cannot draw"]


def test_a_header_that_no_report_may_say_costs_its_own_eye_alone_and_not_the_list(hospital, gated, tmp_path, caplog):
    pixels = decode_image(hospital.images / hospital.files[0])
    write_dicom(tmp_path / "in" / "sound", pixels, "MRN0001")
    with warnings_held_back():
        write_dicom(tmp_path / "in" / "odd", pixels, "MRN0002", PatientSex="male")
        write_dicom(tmp_path / "in" / "number", pixels, "MRN0003", SeriesDescription="7", AcquisitionNumber=5)
    damaged = (tmp_path / "in" / "number").read_bytes()
    (tmp_path / "in" / "number").write_bytes(
        damaged.replace(b"\x20\x00\x12\x00IS\x02\x005 ", b"\x20\x00\x12\x00IS\x02\x00x ")
    )
    result = call(tmp_path / "in", "--model", gated, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "1 DICOM picture not answered in kind" in result.output
    said = [record.getMessage() for record in caplog.records if "not answered in kind" in record.getMessage()]
    assert [re.sub("[0-9]+", "N", line) for line in said] == [
        "an eye is not answered in kind: ValueError at structured_report.py:N"
    ]
    assert "male" not in caplog.text
    assert sorted(report.PatientID for report in reports(tmp_path / "out").values()) == ["MRN0001", "MRN0003"]
    assert len(list((tmp_path / "out" / "dicom").iterdir())) == 6
    assert "MRN0002" in (tmp_path / "out" / "images.csv").read_text()
    assert (tmp_path / "out" / "worklist.html").exists()
    # A later list without answers in kind leaves none of an earlier patient's.
    shutil.rmtree(tmp_path / "in")
    write_dicom(tmp_path / "in" / "other", pixels, "MRN0009")
    (tmp_path / "out" / "dicom" / "of_the_hospital.dcm").touch()
    words = ["predict", str(tmp_path / "in"), "--model", str(gated), "--out", str(tmp_path / "out"), "--replace"]
    assert CliRunner().invoke(main, [*words, "--device", "cpu"]).exit_code == 0
    assert [path.name for path in (tmp_path / "out" / "dicom").iterdir()] == ["of_the_hospital.dcm"]


def test_a_disk_without_room_for_the_answers_is_no_fault_of_the_pictures(gated, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for name in ("mkdir", "iterdir", "unlink"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0001-left-page.dcm").touch()
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, full)
            with pytest.raises(StateError, match="No space left"):
                write_answers(tmp_path / name, [], {}, AnsweringModel.of(Predictor.load(gated, "cpu")))


def test_a_page_says_which_letters_it_lacks():
    assert page_of._drawn("病人1\nЩ ü ?") == "??1\nЩ ü ?"


def test_two_patients_under_one_study_share_no_report(hospital, gated, tmp_path):
    pixels = decode_image(hospital.images / hospital.files[0])
    one = write_dicom(tmp_path / "in" / "a.dcm", pixels, "MRN0001")
    write_dicom(tmp_path / "in" / "b.dcm", pixels, "MRN0002", StudyInstanceUID=dcmread(one).StudyInstanceUID)
    assert call(tmp_path / "in", "--model", gated, "--out", tmp_path / "out").exit_code == 0
    assert sorted(report.PatientID for report in reports(tmp_path / "out").values()) == ["MRN0001", "MRN0002"]


def test_a_page_is_a_pdf_of_the_study(answered):
    _, out, _ = answered
    name, report = by_patient(out, "MRN0001", "left")
    page = dcmread(out / "dicom" / f"{name}-page.dcm")
    assert page.EncapsulatedDocument.startswith(b"%PDF")
    assert page.EncapsulatedDocumentLength <= len(page.EncapsulatedDocument)
    assert (page.StudyInstanceUID, page.PatientID) == (report.StudyInstanceUID, "MRN0001")
    assert page.IssuerOfPatientID == "CLINIC"
    (source,) = page.SourceInstanceSequence
    (evidence,) = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
    assert source.ReferencedSOPInstanceUID == evidence.ReferencedSOPSequence[0].ReferencedSOPInstanceUID


def test_an_eye_with_two_kinds_of_disease_has_both(hospital, tmp_path):
    """Classes of scans have no order: neither hides the other."""
    scheme, rows, pictures = preset("octdl7"), [], {}
    for at, name in enumerate(("normal", "vid", "dme")):
        path = write_dicom(tmp_path / f"IM{at}", decode_image(hospital.images / hospital.files[at]), "MRN0001", "R")
        grade = scheme.grades.index(name)
        rows.append(ImageRow(path.name, grade, np.full(7, 1 / 7), 0.3, refer(grade, 0.3, 0.5, scheme), ""))
        pictures[path.name] = DicomPicture(path.name, DicomFrame(path, 1), read_header(path))
    listed = work_list(rows, [Owner("MRN0001", "right")] * 3, scheme, ordered=False)
    (answer,), _ = eye_answers(listed, pictures)
    model = AnsweringModel("feduaa", "0.2.0", "a" * 64, "Research.", False, scheme, False)
    assert answer.summary(model)[0] == "Grade: DME, vid."
    seen = [one["resource"] for one in bundle(answer, model)["entry"]]
    graded = [one["valueCodeableConcept"]["text"] for one in seen if one["resourceType"] == "Observation"]
    assert graded == ["DME", "vid"]
    (told,) = [one for one in seen if one["resourceType"] == "DiagnosticReport"]
    assert len({one["reference"] for one in told["result"]}) == 2
    eye, *each = groups(structured_report(answer, model))
    assert eye[CONCEPTS["GRADE"]] == ["DME", "vid"]
    assert [one[CONCEPTS["GRADE"]] for one in each] == [["normal"], ["vid"], ["DME"]]


@pytest.mark.parametrize(
    ("chance", "words"), [(0.0, "below 0.01"), (0.004, "below 0.01"), (0.5, "0.50"), (0.9999, "above 0.99")]
)
def test_no_chance_on_a_page_is_certain(chance, words):
    assert page_of.chance_words(chance) == words


def test_no_line_of_a_page_leaves_the_paper_whatever_the_reasons(hospital, tmp_path, monkeypatch):
    why = get_args(ReferralReason)  # all that the pictures of an eye may have together
    path = write_dicom(tmp_path / "IM1", decode_image(hospital.images / hospital.files[0]), "MRN0001", "R")
    picture = DicomPicture("IM1", DicomFrame(path, 1), read_header(path))
    row = ImageRow("IM1", 1, np.array([0.1, 0.6, 0.1, 0.1, 0.1]), 0.3, Referral(True, why), "")
    (answer,), _ = eye_answers(work_list([row], [Owner("MRN0001", "right")], preset("icdr5")), {"IM1": picture})
    found, save = [], Figure.savefig

    def measured(figure, *given, **named):
        drawn = FigureCanvasAgg(figure).get_renderer()
        found.extend(one.get_window_extent(drawn).transformed(figure.transFigure.inverted()) for one in figure.texts)
        save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", measured)
    encapsulated_page(answer, AnsweringModel("feduaa", "0.2.0", "a" * 64, "Research.", False, preset("icdr5"), True))
    assert max(one.x1 for one in found) < 0.95
    assert found[2].y0 > 0.78  # what is said of the eye ends above its pictures


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy (Debian's dicom3tools) is not installed")
def test_dciodvfy_finds_no_error(answered):
    _, out, _ = answered
    files = sorted(out.glob("dicom/*.dcm"))
    assert len(files) == 8
    verified(*files)


def test_bundles_are_fhir_r4(answered):
    fhir = pytest.importorskip("fhir.resources.R4B.bundle", reason="fhir.resources is not installed")
    _, out, _ = answered
    for path in out.glob("dicom/*-fhir.json"):
        text = path.read_text()
        assert json.loads(fhir.Bundle.model_validate_json(text).model_dump_json(exclude_none=True))
        bundle = json.loads(text)
        names = [one["fullUrl"] for one in bundle["entry"]]
        assert len(set(names)) == len(names)
        for one in bundle["entry"]:
            for asked in ("device", "performer"):
                reference = one["resource"].get(asked, {})
                if isinstance(reference, dict) and "reference" in reference:
                    assert reference["reference"] in names


def test_the_page_of_the_docs_lists_every_code():
    page = (Path(__file__).resolve().parents[2] / "docs" / "dicom.md").read_text(encoding="utf-8")
    assert DESIGNATOR in page
    for code, words in (CONCEPTS | REASONS).items():
        assert f"| `{code}` | {words} |" in page


def test_without_highdicom_it_says_what_to_install_before_anything_is_answered(hospital, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "highdicom", None)
    result = call(hospital.images, "--model", hospital.final, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert 'pip install "highdicom>=0.27,<1"' in result.output
    assert not (tmp_path / "out").exists()
