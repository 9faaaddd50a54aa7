"""Images, eyes and patients: the same answers counted three ways, and who gets no grade."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.data.eyes import named_eye
from fedretina.evaluation.figures import LabelledPredictions
from fedretina.evaluation.referable import referral_task, threatening_task
from fedretina.evaluation.units import Owners, disease_by_unit, ungradable
from fedretina.settings.scheme import GradingScheme, preset

SCHEME = preset("icdr5_ungradable")
# a: both eyes ill, the left one missed. b: well, one of three photographs alarms. c: well, but one photograph that no
# person could grade. d: the model calls the only photograph ungradable, and it is of an ill eye. e: an eye not known.
ROWS = [
    ("a", "left", 2, 0),
    ("a", "right", 3, 4),
    ("b", "left", 0, 0),
    ("b", "left", 0, 2),
    ("b", "right", 1, 1),
    ("c", "left", 0, 0),
    ("c", "right", 5, 0),
    ("d", "right", 4, 5),
    ("e", "", 0, 0),
]
OWNERS = Owners([row[0] for row in ROWS], [row[1] for row in ROWS])
LABELS = np.array([row[2] for row in ROWS])
ANSWERS = 0.7 * np.eye(6)[[row[3] for row in ROWS]] + 0.05


def counts(task, unit):
    return disease_by_unit(task, OWNERS, unit, 1, 50)[:6]


def test_an_eye_is_ill_and_found_by_any_of_its_photographs_and_a_patient_by_any_of_the_eyes():
    task = referral_task(ANSWERS, LABELS, SCHEME)
    # found, missed, alarms, cleared, and patients of the ill and of the well
    assert counts(task, "image") == (2, 1, 1, 4, 2, 3)
    assert counts(task, "eye") == (2, 1, 1, 2, 2, 2)
    assert counts(task, "patient") == (2, 0, 1, 1, 2, 2)  # c may be ill in the eye that nobody could grade
    patients = disease_by_unit(task, OWNERS, "patient", 1, 50)
    assert (patients.sensitivity.value, patients.specificity.value) == (1.0, 0.5)
    assert patients.sensitivity.low == pytest.approx(0.158, abs=1e-3)  # exact, of two patients


def test_vision_threatening_is_the_named_grades_or_macular_oedema_whatever_the_grade():
    plain = threatening_task(ANSWERS, LABELS, SCHEME)
    assert counts(plain, "patient")[:2] == (2, 0)
    oedema = [None] * len(ROWS)
    oedema[4] = True  # b's right eye, graded mild, answered mild
    swollen = threatening_task(ANSWERS, LABELS, SCHEME, oedema)
    assert counts(swollen, "patient")[:2] == (2, 1)
    assert threatening_task(ANSWERS[:, :2] * 1.1, LABELS % 2, GradingScheme(grades=("a", "b"))) is None
    with pytest.raises(ValueError, match="vision_threatening is"):
        GradingScheme(grades=("a", "b"), vision_threatening=("c",))


def test_who_gets_no_grade_is_counted_by_answer_and_gate():
    said = LabelledPredictions(ANSWERS, np.zeros(len(ROWS)), LABELS, OWNERS.patients)
    silent = np.zeros(len(ROWS), dtype=bool)
    silent[3] = silent[6] = True  # one of two photographs of b's left eye, and c's that nobody could grade
    found = ungradable(said, OWNERS, SCHEME, silent)
    assert found.images == (3, 9)
    assert found.eyes == (2, 7)  # d's and c's right one; b's left eye has another photograph
    assert found.patients[:2] == (3, 5)
    assert found.unread == (1, 1)


@pytest.mark.parametrize(
    ("file", "eye"),
    [
        ("x/10_left.jpeg", "left"),
        ("a-OD.png", "right"),
        ("7 os.tif", "left"),
        ("7_L.png", ""),
        ("left.png", ""),
        ("a.png", ""),
    ],
)
def test_the_eye_that_a_name_says(file, eye):
    assert named_eye(file) == eye
