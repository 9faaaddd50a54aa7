"""The concepts of our own in structured reports: each with its code under the designator 99FEDRETINA.

Where the standard's code lists have a concept (eye, side, yes and no, device) theirs is used. Grades are those of the
hospital's own scheme, which no list has; their codes are their places in it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import get_args

from fedretina.settings.scheme import GradingScheme, in_words
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
