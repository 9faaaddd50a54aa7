"""A page of one eye for people: an encapsulated PDF in the study of its pictures."""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from textwrap import wrap
from typing import Any

from fedretina.dicom.codes import grade_words
from fedretina.dicom.eye_answers import TYPE_2, UTF_8, AnsweredPicture, AnsweringModel, EyeAnswer, pixels_of
from fedretina.dicom.structured_report import concept

_ENCAPSULATED_PDF = "1.2.840.10008.5.1.4.1.1.104.1"
_SERIES_NUMBER = 9002
_TITLE = "Answer of a model, preliminary"
_SHOWN = 6  # pictures on the page
_SIDE = 320
_LINE = 80  # characters of the answer's size that the paper is wide enough for
_LACKING = "Letters that this page cannot draw stand as ?; the structured report has them."


def encapsulated_page(answer: EyeAnswer, model: AnsweringModel) -> Any:
    """Make the page as an Encapsulated PDF instance (DICOM PS3.3, A.45.1), a pydicom dataset.

    Args:
        answer: What is said of the eye.
        model: What said it.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    first = answer.pictures[0].instance
    page, now = Dataset(), datetime.now()  # local time, as DICOM's dates and times are
    page.SpecificCharacterSet = UTF_8
    page.SOPClassUID, page.SOPInstanceUID = _ENCAPSULATED_PDF, answer.uid(model, "page")
    for name in ("StudyInstanceUID", *TYPE_2):
        setattr(page, name, first.get(name))
    if first.get("IssuerOfPatientID") is not None:
        page.IssuerOfPatientID = first.IssuerOfPatientID
    page.Modality, page.SeriesInstanceUID = "DOC", answer.uid(model, "series of pages")
    page.SeriesNumber, page.InstanceNumber = _SERIES_NUMBER, 1
    page.SeriesDescription = _TITLE
    if answer.eye:
        page.Laterality = answer.eye[0].upper()
    page.Manufacturer, page.ConversionType = "fedretina", "SYN"
    page.ManufacturerModelName, page.SoftwareVersions = model.row, model.version
    page.ContentDate, page.ContentTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")
    page.AcquisitionDateTime = ""
    page.BurnedInAnnotation, page.DocumentTitle = "YES", _TITLE
    page.ConceptNameCodeSequence = [concept("EYE")]
    page.VerificationFlag = "UNVERIFIED"
    sources = {one.instance.SOPInstanceUID: one.instance for one in answer.pictures}
    page.SourceInstanceSequence = [_reference(one) for one in sources.values()]
    page.MIMETypeOfEncapsulatedDocument = "application/pdf"
    document = _pdf(answer, model)
    page.EncapsulatedDocumentLength = len(document)
    page.EncapsulatedDocument = document + b"\0" * (len(document) % 2)
    page.file_meta = FileMetaDataset()
    page.file_meta.MediaStorageSOPClassUID, page.file_meta.MediaStorageSOPInstanceUID = (
        page.SOPClassUID,
        page.SOPInstanceUID,
    )
    page.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return page


def _reference(instance: Any) -> Any:
    from pydicom.dataset import Dataset

    found = Dataset()
    found.ReferencedSOPClassUID, found.ReferencedSOPInstanceUID = instance.SOPClassUID, instance.SOPInstanceUID
    return found


def _pdf(answer: EyeAnswer, model: AnsweringModel) -> bytes:
    """The page itself: whose eye, what is said of it and of each picture, what the model is."""
    from matplotlib.figure import Figure

    first = answer.pictures[0].instance
    figure = Figure(figsize=(8.27, 11.69))  # A4
    head = f"{answer.eye.capitalize()} eye" if answer.eye else "Eye not known"
    patient = str(first.get("PatientID") or "not given")
    if _drawn(patient) != patient:  # half of a name may be another's
        patient = "in letters that this page cannot draw"
    whose = f"Patient ID {patient}, study of {first.get('StudyDate') or 'no date'}"
    figure.text(0.08, 0.95, _TITLE, size=15, weight="bold")
    figure.text(0.08, 0.925, f"{head}. {whose}. No doctor has seen this answer.", size=10)
    lines = [line for one in answer.summary(model) for line in wrap(one, _LINE)]
    chance = answer.chance(model.scheme)
    if chance is not None:
        lines.append(f"Chance of referable disease: {chance_words(chance)} (largest of its pictures).")
    figure.text(0.08, 0.895, "\n".join(lines), size=12, va="top", linespacing=1.5)
    for at, one in enumerate(answer.pictures[:_SHOWN]):
        left, top = (0.08, 0.54)[at % 2], 0.78 - 0.21 * (at // 2)
        _draw(figure, one, model, left, top)
    more = len(answer.pictures) - _SHOWN
    foot = [f"{more} more pictures are in the structured report."] if more > 0 else []
    foot += [line for notice in model.notices for line in wrap(notice, 100)]
    for text in figure.texts:
        drawn = _drawn(text.get_text())
        if drawn != text.get_text() and _LACKING not in foot:
            foot.append(_LACKING)
        text.set_text(drawn)
    foot.append(f"fedretina {model.version}, {model.row}, model sha256 {model.digest}")
    figure.text(0.08, 0.04, "\n".join(foot), size=8, va="bottom", linespacing=1.4)
    held = BytesIO()
    figure.savefig(held, format="pdf", metadata={"CreationDate": None, "Title": _TITLE})
    return held.getvalue()


def chance_words(chance: float) -> str:
    """A chance with two places; never 0 or 1, since no answer is certain."""
    return "below 0.01" if chance < 0.005 else "above 0.99" if chance > 0.99 else f"{chance:.2f}"


def _drawn(text: str) -> str:
    """A text with ? for each letter that the page's font would draw as a box."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    return "".join(letter if letter == "\n" or ord(letter) in known else "?" for letter in text)


def _draw(figure: Any, one: AnsweredPicture, model: AnsweringModel, left: float, top: float) -> None:
    import cv2

    pixels = pixels_of(one)
    if pixels is not None:
        scale = min(1.0, _SIDE / max(pixels.shape[:2]))
        size = max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale))
        axes = figure.add_axes((left, top - 0.15, 0.2, 0.15))
        axes.imshow(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))
        axes.axis("off")
    row = one.row
    words = [f"frame {one.source.frame.number} of {one.frames}"] if one.frames > 1 else []
    if one.counts:
        assert row.grade is not None
        words += [grade_words(row.grade, model.scheme), f"doubt {row.uncertainty:.2f}"]
        words += [f"set: {row.grades}"] if row.grades else []
    words += ["refer:" if one.referral.refer else "no referral", *one.referral.reasons]
    words += wrap(row.fault, 30) if row.fault else []
    figure.text(left + 0.21, top - 0.005, "\n".join(words), size=8, va="top")
