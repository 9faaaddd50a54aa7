"""The answer for one eye as FHIR R4: a bundle with a diagnostic report, a risk assessment, and the device."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fedretina.dicom.codes import CONCEPTS, DESIGNATOR, grade_code, grade_words, loinc_answer
from fedretina.dicom.eye_answers import AnsweringModel, EyeAnswer

SYSTEM = f"urn:fedretina:{DESIGNATOR.lower()}"
"""The code system of our own concepts."""
_LOINC = "http://loinc.org"
_SCT = "http://snomed.info/sct"
_SIDES = {"left": ("7771000", "Left"), "right": ("24028007", "Right")}


def bundle(answer: EyeAnswer, model: AnsweringModel) -> dict[str, Any]:
    """Make the bundle, of type collection, as JSON.

    DiagnosticReport and RiskAssessment are preliminary. The patient is named by the identifier of the pictures' header
    and nothing else; the study by its UID. There is a RiskAssessment where a picture has an answer that counts and the
    site names referable grades; its probability is the largest of the pictures'.

    Args:
        answer: What is said of the eye.
        model: What said it.
    """
    first = answer.pictures[0].instance
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    subject = _subject(first)
    site = _site(answer)
    names = {what: f"urn:uuid:{answer.uuid(model, f'FHIR {what}')}" for what in ("device", "report", "risk")}
    entries: list[dict[str, Any]] = [{"fullUrl": names["device"], "resource": _device(model)}]
    chance = answer.chance(model.scheme)
    study = {"identifier": {"system": "urn:dicom:uid", "value": f"urn:oid:{answer.study}"}}
    common = {"status": "preliminary", "subject": subject}
    results = []
    for at, grade in enumerate(answer.worst(model)):
        # More than one where grades are kinds of disease of which none is worse than the other.
        name = f"urn:uuid:{answer.uuid(model, f'FHIR grade {at}' if at else 'FHIR grade')}"
        results.append({"reference": name})
        words, known = grade_words(grade, model.scheme), loinc_answer(grade, model.scheme)
        codings = [{"system": SYSTEM, "code": grade_code(grade), "display": words}]
        codings += [] if known is None else [{"system": _LOINC, "code": known.code, "display": known.words}]
        coded = {"coding": codings, "text": words}
        seen = {"resourceType": "Observation", **common, "code": _concept("GRADE"), "effectiveDateTime": now}
        seen |= {"bodySite": site, "device": {"reference": names["device"]}, "valueCodeableConcept": coded}
        entries.append({"fullUrl": name, "resource": seen})
    report = {
        "resourceType": "DiagnosticReport",
        "identifier": [{"system": "urn:dicom:uid", "value": f"urn:oid:{answer.uid(model, 'report')}"}],
        **common,
        "code": _concept("EYE"),
        "effectiveDateTime": now,
        "issued": now,
        "performer": [{"display": f"fedretina {model.version}, software for research"}],
        "imagingStudy": [study],
        "conclusion": " ".join([*answer.summary(model), *model.notices]),
        "conclusionCode": [{"text": reason} for reason in answer.referral.reasons],
    }
    # FHIR has no empty lists.
    filled = {name: value for name, value in {**report, "result": results}.items() if value != []}
    entries.append({"fullUrl": names["report"], "resource": filled})
    if chance is not None:
        risk = {
            "resourceType": "RiskAssessment",
            **common,
            "code": _concept("CHANCE"),
            "occurrenceDateTime": now,
            "performer": {"reference": names["device"]},
            "basis": [study, {"reference": names["report"]}],
            "prediction": [{"outcome": {"text": "referable disease"}, "probabilityDecimal": round(chance, 6)}],
            "note": [{"text": notice} for notice in model.notices],
        }
        entries.append({"fullUrl": names["risk"], "resource": risk})
    return {
        "resourceType": "Bundle",
        "identifier": {"system": "urn:ietf:rfc:3986", "value": f"urn:uuid:{answer.uuid(model, 'FHIR bundle')}"},
        "type": "collection",
        "timestamp": now,
        "entry": entries,
    }


def _device(model: AnsweringModel) -> dict[str, Any]:
    return {
        "resourceType": "Device",
        "identifier": [{"system": f"{SYSTEM}:model", "value": model.digest}],
        "manufacturer": "fedretina",
        "modelNumber": model.row,
        "version": [{"value": model.version}],
        "note": [{"text": notice} for notice in model.notices],
    }


def _subject(instance: Any) -> dict[str, Any]:
    patient, issuer = str(instance.get("PatientID") or ""), str(instance.get("IssuerOfPatientID") or "")
    if not patient:
        return {"display": "not named by the picture"}
    assigner = {"assigner": {"display": issuer}} if issuer else {}
    return {"type": "Patient", "identifier": {"value": patient, **assigner}}


def _site(answer: EyeAnswer) -> dict[str, Any]:
    eye = [{"system": _SCT, "code": "81745001", "display": "Eye"}]
    if not answer.eye:
        return {"coding": eye, "text": "eye, side not known"}
    code, words = _SIDES[answer.eye]
    return {"coding": [*eye, {"system": _SCT, "code": code, "display": words}], "text": f"{answer.eye} eye"}


def _concept(code: str) -> dict[str, Any]:
    return {"coding": [{"system": SYSTEM, "code": code, "display": CONCEPTS[code]}], "text": CONCEPTS[code]}
