"""What a model says of one eye in one study: the unit of an answer in kind; and their files."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, get_args
from uuid import NAMESPACE_OID, UUID, uuid5

import numpy as np

from fedretina.data.dicom_file import warnings_held_back
from fedretina.data.eyes import Eye
from fedretina.dicom.codes import grade_words
from fedretina.errors import DataError, StateError, require_package
from fedretina.prediction.photographs import DicomPicture, picture_of
from fedretina.prediction.predictor import Answering, ImageRow
from fedretina.prediction.worklist import Patient, gate_stopped
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import write_bytes, write_json
from fedretina.uncertainty.promise import chance_of_disease
from fedretina.uncertainty.referral import Referral, ReferralReason

_log = logging.getLogger(__name__)

FOLDER = "dicom"
UTF_8 = "ISO_IR 192"
"""Specific Character Set of every answer, whatever that of its source is."""
_OURS = re.compile(r"[0-9]{4,}(-left|-right)?-(report\.dcm|page\.dcm|fhir\.json)")
TYPE_2 = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyDate", "StudyTime", "StudyID", "AccessionNumber", "ReferringPhysicianName"),
)
"""What the modules Patient and General Study ask to be there, and allow to be empty (PS3.3, C.7.1.1 and C.7.2.1)."""


class AnsweringModel(NamedTuple):
    """What every answer says of the model that gave it.

    Attributes:
        row: The method, by the name of its row.
        version: Of fedretina, when the model was made.
        digest: Of the model's tensors, 64 hex digits.
        notice: That it is research software.
        synthetic: Whether it learned from drawn images.
        scheme: The site's grades.
        ordered: Whether one grade is worse than another, see `ImageSettings.ordered`.
    """

    row: str
    version: str
    digest: str
    notice: str
    synthetic: bool
    scheme: GradingScheme
    ordered: bool

    @classmethod
    def of(cls, predictor: Answering) -> AnsweringModel:
        """Read it off a model's card."""
        card = predictor.card
        return cls(
            str(card.get("row", "unknown")),
            str(card.get("fedretina", "unknown")),
            predictor.operating.model_digest,
            str(card["notice"]),
            bool(card["synthetic"]),
            predictor.scheme,
            predictor.ordered,
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """What stands on every answer."""
        drawn = "The model learned from drawn images: what it says of real ones means nothing."
        return (self.notice, drawn) if self.synthetic else (self.notice,)


class AnsweredPicture(NamedTuple):
    """One picture of a DICOM file and its answer.

    Attributes:
        row: The answer.
        source: The picture.
        instance: What the file says beside its pixels, a pydicom dataset.
    """

    row: ImageRow
    source: DicomPicture
    instance: Any

    @property
    def counts(self) -> bool:
        """Whether there is a grade that the gate lets count."""
        return self.row.grade is not None and not self.row.fault

    @property
    def referral(self) -> Referral:
        """Whether a doctor must see it, and why: the gate's reason alone where that stopped it."""
        found = self.row.referral
        return Referral(True, found.reasons[-1:]) if gate_stopped(self.row) else found

    @property
    def frames(self) -> int:
        """Pictures in its file."""
        return max(1, int(self.instance.get("NumberOfFrames") or 1))


class EyeAnswer(NamedTuple):
    """What is said of one eye in one study.

    Attributes:
        study: Study Instance UID.
        eye: "" where it is not known.
        pictures: One or more.
        referral: Referred if any picture is, with all their reasons.
    """

    study: str
    eye: Eye
    pictures: tuple[AnsweredPicture, ...]
    referral: Referral

    def uuid(self, model: AnsweringModel, what: str) -> UUID:
        """The name of a part of this answer: the same for the same pictures and model, whenever it is made."""
        sources = sorted(f"{one.instance.SOPInstanceUID}#{one.source.frame.number}" for one in self.pictures)
        return uuid5(NAMESPACE_OID, "\n".join(["fedretina", what, model.digest, self.study, self.eye, *sources]))

    def uid(self, model: AnsweringModel, what: str) -> str:
        """The same as a DICOM UID (PS3.5, B.2: 2.25 and the UUID as a whole number)."""
        return f"2.25.{self.uuid(model, what).int}"

    def chance(self, scheme: GradingScheme) -> float | None:
        """The largest chance of a referable grade among its pictures; None where none counts or the site names none."""
        found = [one.row.probabilities for one in self.pictures if one.counts and one.row.probabilities is not None]
        if not found or not scheme.referable_classes:
            return None
        return float(chance_of_disease(np.stack(found), scheme).max())

    def worst(self, model: AnsweringModel) -> tuple[int, ...]:
        """The worst classes among its pictures, see `GradingScheme.worst`; empty where no answer counts."""
        grades = [one.row.grade for one in self.pictures if one.row.grade is not None and one.counts]
        return model.scheme.worst(grades, model.ordered)

    def summary(self, model: AnsweringModel) -> list[str]:
        """The answer in sentences."""
        names = ", ".join(grade_words(grade, model.scheme) for grade in self.worst(model))
        found = [f"Grade: {names}." if names else "No picture of this eye has an answer that counts."]
        if self.referral.refer:
            found.append(f"A doctor must see it: {', '.join(self.referral.reasons)}.")
        else:
            found.append("Nothing here asks for a doctor.")
        return found


class Written(NamedTuple):
    """What was written.

    Attributes:
        answers: How many eyes have an answer in kind.
        without: DICOM pictures without one, by their names in the list: their files name no study or instance, cannot
            be read, have a Patient ID of unknown letters, or hold what no report of their study may say.
    """

    answers: int
    without: tuple[str, ...]


def eye_answers(
    patients: Sequence[Patient], pictures: Mapping[str, DicomPicture]
) -> tuple[tuple[EyeAnswer, ...], list[str]]:
    """Group the answers to DICOM pictures by study and eye, in the order of the work list.

    Args:
        patients: The work list; photographs that stand in no DICOM file are passed over.
        pictures: Those that do, by their names.

    Returns:
        The groups, and the pictures that belong to none (see `Written.without`).
    """
    read: dict[Path, Any] = {}
    groups: dict[tuple[str, str, Eye], list[AnsweredPicture]] = {}
    without: list[str] = []
    for patient in patients:
        for row, eye in patient.photographs:
            source = pictures.get(row.file)
            if source is None:
                continue
            path = source.frame.path
            if source.header is not None and path not in read:
                read[path] = _said_by(path)
            instance = read.get(path)
            if instance is None or not (instance.get("StudyInstanceUID") and instance.get("SOPInstanceUID")):
                without.append(row.file)
                continue
            # Two patients under one study UID, as a bad export has them, must not share a report.
            whose = "" if source.header is None else source.header.patient
            key = (whose, str(instance.StudyInstanceUID), eye)
            groups.setdefault(key, []).append(AnsweredPicture(row, source, instance))
    found = [EyeAnswer(study, eye, tuple(some), _joined(some)) for (_, study, eye), some in groups.items()]
    return tuple(found), without


def _said_by(path: Path) -> Any:
    """What a file says beside its pixels, a pydicom dataset whose texts are decoded and will be written as UTF-8.

    Elements that cannot be read are left out, as by cameras those that they do not know. None where the Patient ID has
    letters of which the file does not say what they are: in another set they would be another patient's.
    """
    from pydicom import dcmread

    with warnings_held_back():
        found = dcmread(path, stop_before_pixels=True)
        for tag in list(found.keys()):
            try:
                for item in found[tag].value or () if found[tag].VR == "SQ" else ():
                    item.decode()
            except Exception:  # noqa: BLE001 - whatever a damaged element makes pydicom raise
                del found[tag]
        patient, is_told = str(found.get("PatientID") or ""), bool(found.get("SpecificCharacterSet"))
        if not patient.isascii() and ("\ufffd" in patient or not is_told):
            return None
        found.SpecificCharacterSet = UTF_8
        for name in TYPE_2:
            if name not in found:
                setattr(found, name, None)
    return found


def write_answers(
    folder: Path, patients: Sequence[Patient], pictures: Mapping[str, DicomPicture], model: AnsweringModel
) -> Written:
    """Write, for each eye of each study, a structured report, a page, and a FHIR bundle.

    Their names are numbers, since a patient's name belongs into no name of a file. Files of an older list are removed.
    An eye of which a header holds what no report may say is without an answer, and costs the others none.

    Args:
        folder: Where they go; it is made, readable by its owner alone.
        patients: The work list.
        pictures: Which of its photographs stand in DICOM files.
        model: What gave the answers.

    Raises:
        SettingsError: highdicom is not installed.
        StateError: The disk is full or the folder not writable.
    """
    from fedretina.dicom.fhir import bundle
    from fedretina.dicom.page import encapsulated_page
    from fedretina.dicom.structured_report import structured_report

    require_highdicom()
    clear_answers(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StateError(f"{folder} cannot be made ({error.strerror}): make room, or mend its rights.") from error
    answers, without = eye_answers(patients, pictures)
    number = 0
    for answer in answers:
        try:
            with warnings_held_back():
                report, page = _file(structured_report(answer, model)), _file(encapsulated_page(answer, model))
            record = bundle(answer, model)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Its kind and its place alone: its words may quote a header.
            _log.warning("an eye is not answered in kind: %s at %s", type(error).__name__, _place(error))
            without += [one.row.file for one in answer.pictures]
            continue
        number += 1
        name = "-".join(filter(None, (f"{number:04d}", answer.eye)))
        write_bytes(folder / f"{name}-report.dcm", report)
        write_bytes(folder / f"{name}-page.dcm", page)
        write_json(folder / f"{name}-fhir.json", record)
    return Written(number, tuple(without))


def clear_answers(folder: Path) -> None:
    """Remove the answers in kind of an older list; nothing else in the folder is touched.

    Raises:
        StateError: One cannot be removed.
    """
    try:
        for path in folder.iterdir() if folder.is_dir() else ():
            if _OURS.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise StateError(f"{folder} cannot be cleared ({error.strerror}): mend its rights.") from error


def require_highdicom() -> None:
    """Check that answers in kind can be written here.

    Raises:
        SettingsError: highdicom is not installed.
    """
    require_package(
        "highdicom",
        'answers as DICOM need highdicom, which is not installed: run `pip install "highdicom>=0.27,<1"`.',
    )


def pixels_of(picture: AnsweredPicture) -> Any:
    """The picture as it was taken, uint8 [H, W, 3]; None where it cannot be read."""
    try:
        return picture_of(picture.source.frame)
    except DataError:
        return None


def _place(error: Exception) -> str:
    """The last line of this folder's files that an error came through, such as "page.py:120"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).parent == Path(__file__).parent]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _joined(pictures: Sequence[AnsweredPicture]) -> Referral:
    found = {reason for one in pictures for reason in one.referral.reasons}
    return Referral(bool(found), tuple(reason for reason in get_args(ReferralReason) if reason in found))


def _file(dataset: Any) -> bytes:
    held = BytesIO()
    dataset.save_as(held, enforce_file_format=True)
    return held.getvalue()
