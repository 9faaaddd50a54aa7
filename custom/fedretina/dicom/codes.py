"""The concepts of our own in structured reports: each with its code under the designator 99FEDRETINA.

Where the standard's code lists have a concept (eye, side, yes and no, device) theirs is used. Grades are those of the
hospital's own scheme, which no list of DICOM has; their codes are their places in it. Where that scheme is the
International Clinical Diabetic Retinopathy scale the answers of LOINC's list LL2117-1, defined alike, stand beside.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple, get_args

from fedretina.settings.scheme import GradingScheme, in_words
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.uncertainty.referral import ReferralReason

DESIGNATOR = "99FEDRETINA"
CONCEPTS = MappingProxyType(
    {
        "GRADE": "Grade",
        "GRADES": "Set of grades",
        "PROBABILITY": "Probability of a grade",
        "CHANCE": "Chance of referable disease",
        "DOUBT": "Doubt of the answer",
        "REFER": "Referral to a doctor",
        "REASON": "Reason for the referral",
        "PICTURE": "Answer to one picture",
        "EYE": "Answer for the eye",
        "NOTICE": "Notice",
    }
)
"""Names of what a report says, by their codes."""
REASONS = MappingProxyType({f"R{number}": reason for number, reason in enumerate(get_args(ReferralReason), 1)})
"""Why a doctor must see an eye, by their codes."""


def grade_code(grade: int) -> str:
    """The code of a grade: G and its place in the scheme, from 0."""
    return f"G{grade}"


def grade_words(grade: int, scheme: GradingScheme) -> str:
    """The name of a grade, as long as a code's meaning may be (64 characters)."""
    return in_words(scheme.grades[grade])[:64]


class LoincAnswer(NamedTuple):
    """An answer of LOINC's: its code and its name."""

    code: str
    words: str


_LL2117_1 = (
    LoincAnswer("LA18643-9", "No apparent retinopathy"),
    LoincAnswer("LA18644-7", "Mild non-proliferative retinopathy"),
    LoincAnswer("LA18645-4", "Moderate non-proliferative retinopathy"),
    LoincAnswer("LA18646-2", "Severe non-proliferative retinopathy"),
    LoincAnswer("LA18648-8", "Proliferative retinopathy"),
)


def loinc_answer(grade: int, scheme: GradingScheme) -> LoincAnswer | None:
    """What LOINC calls a grade; None where the scheme is another than the International scale, or it is ungradable."""
    stages = tuple(name for name in scheme.grades if name != scheme.ungradable)
    if stages != SCHEMES["icdr5"].grades or scheme.grades[grade] == scheme.ungradable:
        return None
    return _LL2117_1[stages.index(scheme.grades[grade])]
