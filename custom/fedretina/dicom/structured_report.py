"""A structured report of one eye: TID 1500, measurements and qualitative evaluations, preliminary and unverified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedretina.dicom.codes import CONCEPTS, DESIGNATOR, REASONS, grade_code, grade_words, loinc_answer
from fedretina.dicom.eye_answers import AnsweredPicture, AnsweringModel, EyeAnswer
from fedretina.uncertainty.referral import Referral

_SERIES_NUMBER = 9001
_OCT = "OPT"


def structured_report(answer: EyeAnswer, model: AnsweringModel) -> Any:
    """Make the report (DICOM PS3.16, TID 1500) as a Comprehensive SR of highdicom.

    It holds one group for the eye (grade, chance of referable disease, referral with its reasons) and one for each
    picture (grade, set of grades, probability of each grade, doubt, referral with its reasons). A picture that the
    gate stopped, or that cannot be read, has no grade and no number, only why. Completion flag PARTIAL, preliminary,
    unverified: a doctor has not seen it.

    Args:
        answer: What is said of the eye.
        model: What said it; its digest and version stand as the observing device and as the algorithm.
    """
    from highdicom.sr import (
        ComprehensiveSR,
        DeviceObserverIdentifyingAttributes,
        MeasurementReport,
        ObservationContext,
        ObserverContext,
    )
    from pydicom.sr.codedict import codes

    device = DeviceObserverIdentifyingAttributes(
        uid=answer.uid(model, "device"),
        name="fedretina",
        manufacturer_name="fedretina",
        model_name=model.row,
        serial_number=model.digest,
    )
    instances = list({one.instance.SOPInstanceUID: one.instance for one in answer.pictures}.values())
    scans = instances[0].get("Modality") == _OCT
    report = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=ObserverContext(codes.DCM.Device, device)),
        procedure_reported=codes.DCM.OphthalmicTomography if scans else codes.DCM.OphthalmicPhotography,
        imaging_measurements=[_eye(answer, model), *(_picture(one, answer, model) for one in answer.pictures)],
        title=codes.DCM.ImagingMeasurementReport,
        referenced_images=instances,
    )
    return ComprehensiveSR(
        evidence=instances,
        content=report[0],
        series_instance_uid=answer.uid(model, "series of reports"),
        series_number=_SERIES_NUMBER,
        sop_instance_uid=answer.uid(model, "report"),
        instance_number=1,
        manufacturer="fedretina",
        series_description="Answers of a model, preliminary",
    )


def concept(code: str, words: str | None = None) -> Any:
    """One of our own concepts as highdicom takes it."""
    from highdicom.sr import CodedConcept

    return CodedConcept(code, DESIGNATOR, words or CONCEPTS[code])


def _group(
    kind: str,
    answer: EyeAnswer,
    model: AnsweringModel,
    name: str,
    pictures: Sequence[AnsweredPicture],
    measured: Sequence[Any],
    evaluated: Sequence[Any],
    texts: Sequence[tuple[Any, str]],
) -> Any:
    """A group of measurements (TID 1501) with its source pictures; texts are added to it one by one."""
    from highdicom.sr import (
        AlgorithmIdentification,
        FindingSite,
        MeasurementsAndQualitativeEvaluations,
        RelationshipTypeValues,
        SourceImageForMeasurementGroup,
        TextContentItem,
        TrackingIdentifier,
    )
    from pydicom.sr.codedict import codes

    side = {"left": codes.SCT.Left, "right": codes.SCT.Right}.get(answer.eye)
    group = MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(answer.uid(model, name), name),
        finding_type=concept(kind),
        algorithm_id=AlgorithmIdentification(
            name=f"fedretina {model.row}",
            version=model.version,
            parameters=[f"model sha256 {model.digest}", *model.notices],
        ),
        finding_sites=[FindingSite(codes.SCT.Eye, laterality=side)],
        measurements=list(measured),
        qualitative_evaluations=list(evaluated),
        source_images=[
            SourceImageForMeasurementGroup(
                one.instance.SOPClassUID,
                one.instance.SOPInstanceUID,
                [one.source.frame.number] if one.frames > 1 else None,
            )
            for one in pictures
        ],
    )
    group[0].ContentSequence.extend(
        TextContentItem(name=of, value=text, relationship_type=RelationshipTypeValues.CONTAINS) for of, text in texts
    )
    return group


def _eye(answer: EyeAnswer, model: AnsweringModel) -> Any:
    evaluated, measured = _referral(answer.referral), []
    chance = answer.chance(model.scheme)
    evaluated = [_grade(grade, model) for grade in answer.worst(model)] + evaluated
    if chance is not None:
        measured.append(_number("CHANCE", chance))
    notices = [(concept("NOTICE"), notice) for notice in model.notices]
    return _group("EYE", answer, model, "the eye", answer.pictures, measured, evaluated, notices)


def _picture(one: AnsweredPicture, answer: EyeAnswer, model: AnsweringModel) -> Any:
    from pydicom.sr.codedict import codes

    row, evaluated = one.row, _referral(one.referral)
    measured: list[Any] = []
    texts: list[tuple[Any, str]] = []
    if one.counts:
        assert row.grade is not None
        assert row.probabilities is not None
        assert row.uncertainty is not None
        evaluated.insert(0, _grade(row.grade, model))
        for grade, probability in enumerate(row.probabilities.tolist()):
            about = concept(grade_code(grade), grade_words(grade, model.scheme))
            measured.append(_number("PROBABILITY", probability, about))
        measured.append(_number("DOUBT", row.uncertainty))
        if row.grades:
            texts.append((concept("GRADES"), row.grades))
    elif row.fault:
        texts.append((codes.DCM.Comment, row.fault))
    name = f"{one.instance.SOPInstanceUID}#{one.source.frame.number}"
    return _group("PICTURE", answer, model, name, [one], measured, evaluated, texts)


def _grade(grade: int, model: AnsweringModel) -> Any:
    from highdicom.sr import CodedConcept, QualitativeEvaluation

    coded, known = concept(grade_code(grade), grade_words(grade, model.scheme)), loinc_answer(grade, model.scheme)
    if known is not None:
        coded.EquivalentCodeSequence = [CodedConcept(known.code, "LN", known.words)]
    return QualitativeEvaluation(concept("GRADE"), coded)


def _referral(referral: Referral) -> list[Any]:
    from highdicom.sr import QualitativeEvaluation
    from pydicom.sr.codedict import codes

    code_of = {reason: code for code, reason in REASONS.items()}
    return [
        QualitativeEvaluation(concept("REFER"), codes.SCT.Yes if referral.refer else codes.SCT.No),
        *(QualitativeEvaluation(concept("REASON"), concept(code_of[why], why)) for why in referral.reasons),
    ]


def _number(code: str, value: float, about: Any = None) -> Any:
    from highdicom.sr import Measurement
    from pydicom.sr.codedict import codes

    # A decimal string has 16 characters.
    found = Measurement(concept(code), round(value, 9), codes.UCUM.NoUnits)
    if about is not None:
        from highdicom.sr import CodeContentItem, RelationshipTypeValues

        item = CodeContentItem(concept("GRADE"), about, RelationshipTypeValues.HAS_CONCEPT_MOD)
        found[0].ContentSequence = [*(found[0].get("ContentSequence") or ()), item]
    return found
