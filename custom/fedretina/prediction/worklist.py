"""The work list: patients with all their photographs, what a doctor must see first on top; and its two tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from fedretina.data.eyes import Eye
from fedretina.gate.gate import Reason
from fedretina.plurals import counted
from fedretina.prediction.eyes import Owner
from fedretina.prediction.predictor import ImageRow
from fedretina.report.render import write_page
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.referral import Referral, ReferralReason

_KNOWN: tuple[ReferralReason, ...] = ("referable grade", "doubtful", "chance of disease", "unusual for this site")
"""Reasons beside which an answer can be relied on as far as it goes."""


class Photograph(NamedTuple):
    """A photograph's answer and the eye that it shows; "" where that is not known."""

    row: ImageRow
    eye: Eye


class Patient(NamedTuple):
    """One line of the work list.

    Attributes:
        name: The patient.
        photographs: All of them, the left eye first, then the right, then those of unknown eyes.
        worst: The worst classes among them, see `GradingScheme.worst`; empty where none was answered.
        severity: How bad these are, see `GradingScheme.severity`; -1 for none.
        uncertainty: The largest u; None where there is no answer.
        referral: Referred if any photograph is, with all their reasons.
        eyes: What is known of the eyes, in words.
    """

    name: str
    photographs: tuple[Photograph, ...]
    worst: tuple[int, ...]
    severity: int
    uncertainty: float | None
    referral: Referral
    eyes: str


def work_list(
    rows: Iterable[ImageRow], owners: Sequence[Owner], scheme: GradingScheme, ordered: bool = True
) -> tuple[Patient, ...]:
    """Join photographs into patients, those whom a doctor must see first on top.

    The first of these that holds places a patient:

    1. a photograph has one of the worst grades, see `GradingScheme.first_classes`: sight may be at stake;
    2. a photograph has no answer to rely on: it could not be read, was refused, is ungradable, or is unlike this
       site's photographs, and what it hides is not known;
    3. a photograph has another referable grade;
    4. an answer is doubtful, leaves a chance of disease that the site's promise does not let pass, or is to a
       photograph that is unusual for the site;
    5. nobody needs to be sent for.

    Within these the worse grade comes first, then the larger doubt, and then the name decides. Where the site names no
    referable grades, none counts as one of the worst.

    Args:
        rows: The answers.
        owners: Of the same photographs, in the same order.
        scheme: The site's grades.
        ordered: Whether one grade is worse than another, see `ImageSettings.ordered`.
    """
    groups: dict[str, list[Photograph]] = {}
    for row, owner in zip(rows, owners, strict=True):
        groups.setdefault(owner.patient, []).append(Photograph(row, owner.eye))
    patients = [_patient(name, photographs, scheme, ordered) for name, photographs in groups.items()]
    return tuple(sorted(patients, key=lambda patient: _urgency(patient, scheme, ordered)))


def write_images(path: Path, patients: Sequence[Patient], scheme: GradingScheme) -> None:
    """Write a CSV row per photograph, in the order of the work list; probabilities are `p_` and the grade's name.

    `grades` is the set that holds the true grade of most patients, in words; see `uncertainty.grade_sets`.

    Raises:
        StateError: The file cannot be written.
    """
    named = [f"p_{grade}" for grade in scheme.grades]
    header = ["file", "patient", "eye", "refer", "reasons", "grade", "grades", "u", *named, "fault"]
    lines = []
    for patient in patients:
        for row, eye in patient.photographs:
            shown = (
                [""] * scheme.num_classes if row.probabilities is None else [repr(float(p)) for p in row.probabilities]
            )
            answer = [*_decision(row.referral), _grade(row.grade, scheme), row.grades, _number(row.uncertainty)]
            lines.append([row.file, patient.name, eye, *answer, *shown, row.fault])
    _write(path, header, lines)


def write_patients(path: Path, patients: Sequence[Patient], scheme: GradingScheme) -> None:
    """Write a CSV row per patient, in the order of the work list.

    Raises:
        StateError: The file cannot be written.
    """
    header = ["patient", "refer", "reasons", "worst_grade", "largest_u", "eyes", "photographs", "without_answer"]
    _write(
        path,
        header,
        [
            [
                patient.name,
                *_decision(patient.referral),
                "; ".join(scheme.grades[grade] for grade in patient.worst),
                _number(patient.uncertainty),
                patient.eyes,
                str(len(patient.photographs)),
                str(sum(row.grade is None for row, _ in patient.photographs)),
            ]
            for patient in patients
        ],
    )


def stops(patient: Patient) -> list[ReferralReason]:
    """Why the gate stopped photographs of a patient, once for each."""
    found = []
    for row, _ in patient.photographs:
        if gate_stopped(row):
            found.append(row.referral.reasons[-1])
    return found


def gate_stopped(row: ImageRow) -> bool:
    """Whether the gate stopped a photograph, so that its answer does not count."""
    return bool(row.fault) and row.referral.reasons[-1] in get_args(Reason)


def readable(name: str) -> str:
    """A name that every file and page can hold: bytes that are no UTF-8 and control characters are spelled out."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _patient(name: str, photographs: list[Photograph], scheme: GradingScheme, ordered: bool) -> Patient:
    order = {"left": 0, "right": 1, "": 2}
    sides = sorted(photographs, key=lambda one: (order[one.eye], one.row.file))
    worst = scheme.worst((one.row.grade for one in sides if one.row.grade is not None), ordered)
    doubts = [one.row.uncertainty for one in sides if one.row.uncertainty is not None]
    found = {reason for one in sides for reason in one.row.referral.reasons}
    return Patient(
        name=name,
        photographs=tuple(sides),
        worst=worst,
        severity=max((scheme.severity(grade, ordered) for grade in worst), default=-1),
        uncertainty=max(doubts, default=None),
        referral=Referral(bool(found), tuple(reason for reason in get_args(ReferralReason) if reason in found)),
        eyes=_eyes([one.eye for one in sides]),
    )


def _eyes(eyes: Sequence[Eye]) -> str:
    known = {eye for eye in eyes if eye}
    words = "both eyes" if len(known) == 2 else f"{next(iter(known))} eye only" if known else ""
    unknown = sum(not eye for eye in eyes)
    if not unknown:
        return words if len(eyes) == len(known) else f"{words}, {len(eyes)} photographs"
    nameless = counted(unknown, "photograph, eye not known", "photographs, eyes not known")
    return f"{words}, {nameless}".removeprefix(", ")


def _urgency(patient: Patient, scheme: GradingScheme, ordered: bool) -> tuple[int, int, float, str]:
    grades = {row.grade for row, _ in patient.photographs}
    unknown = None in grades or any(reason not in _KNOWN for reason in patient.referral.reasons)
    worst, ill = scheme.first_classes(ordered), set(scheme.referable_classes)
    held = (bool(grades & worst), unknown, bool(grades & ill), patient.referral.refer, True)
    u = math.inf if patient.uncertainty is None else patient.uncertainty
    return held.index(True), -patient.severity, -u, patient.name


def _decision(referral: Referral) -> list[str]:
    return ["yes" if referral.refer else "no", "; ".join(referral.reasons)]


def _grade(grade: int | None, scheme: GradingScheme) -> str:
    return "" if grade is None else scheme.grades[grade]


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def cell(text: str) -> str:
    """Text that a spreadsheet does not run: one that begins like a formula gets an apostrophe before it."""
    plain = readable(text)
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(name) for name in header])
    writer.writerows([cell(value) for value in line] for line in lines)
    write_page(path, text.getvalue())
