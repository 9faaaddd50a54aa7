"""Triage against a case counted by hand and a slow form, and where its figures are undefined."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import TrainingError
from fedretina.evaluation.figures import LabelledPredictions, triage
from fedretina.settings.scheme import GradingScheme, preset

SCHEME = preset("icdr5_ungradable")  # classes 2, 3, 4 are referable, 5 is ungradable
THRESHOLD = 0.5


def labelled(rows, grades=6):
    """From (patient, grade answered, u, true grade)."""
    patients, answered, u, labels = zip(*rows, strict=True) if rows else ((), (), (), ())
    probabilities = np.eye(grades)[list(answered)] if rows else np.empty((0, grades))
    return LabelledPredictions(probabilities, np.array(u, dtype=float), np.array(labels, dtype=np.int64), patients)


CASE = [
    ("ill, seen by one eye", 0, 0.1, 0),
    ("ill, seen by one eye", 3, 0.1, 3),
    ("ill, missed", 0, 0.1, 2),
    ("ill, missed", 1, 0.49, 0),
    ("ill, saved by doubt", 0, 0.5, 4),
    ("well, left alone", 0, 0.1, 0),
    ("well, left alone", 1, 0.2, 1),
    ("well, doubted", 1, 0.9, 1),
    ("well, called ill", 2, 0.1, 1),
    ("nobody can grade it", 5, 0.1, 5),
    ("nobody can grade it", 0, 0.1, 0),
]


def test_a_case_counted_by_hand():
    found = triage(labelled(CASE), THRESHOLD, SCHEME)
    counts = {name: share[:2] for name, share in found._asdict().items() if share is not None}
    assert counts == {
        "load": (5, 7),
        "doubt_load": (2, 7),
        "missed": (1, 3),
        "sensitivity": (2, 3),
        "specificity": (1, 3),
    }
    assert found.gated_load is None
    assert found.missed.low == pytest.approx(0.0084, abs=1e-4)
    assert found.missed.high == pytest.approx(0.9057, abs=1e-4)


def test_the_gate_adds_the_patients_that_the_rule_leaves_alone():
    odd = np.array([one[0] in ("well, left alone", "well, doubted") for one in CASE])
    plain, gated = triage(labelled(CASE), THRESHOLD, SCHEME), triage(labelled(CASE), THRESHOLD, SCHEME, odd=odd)
    assert gated.gated_load[:2] == (6, 7)
    assert gated._replace(gated_load=None) == plain  # all else is of the rule alone


def test_of_the_patients_whom_the_gate_lets_answer_in_full_those_are_counted_whom_the_rule_refers():
    silent = np.array([one[0] == "nobody can grade it" and one[1] == 5 for one in CASE])
    found = triage(labelled(CASE), THRESHOLD, SCHEME, silent=silent)
    assert found.load[:2] == (5, 7)
    assert found.answered_load[:2] == (4, 6)


def slow(labelled, threshold, odd, silent):
    gated, answered = set(), set()
    referred, ill, counts = set(), set(), {"doubt": 0, "right": 0, "well": 0}
    everyone = sorted(set(labelled.patients))
    for name in everyone:
        at = [i for i, patient in enumerate(labelled.patients) if patient == name]
        grades = [int(labelled.probabilities[i].argmax()) for i in at]
        by_grade = any(grade in (2, 3, 4, 5) for grade in grades)
        doubt = any(labelled.uncertainty[i] >= threshold for i in at)
        truth = [int(labelled.labels[i]) for i in at]
        if by_grade or doubt:
            referred.add(name)
        if by_grade or doubt or any(odd[i] for i in at):
            gated.add(name)
        if not any(silent[i] for i in at):
            answered.add(name)
        counts["doubt"] += doubt and not by_grade
        if any(grade in (2, 3, 4) for grade in truth):
            ill.add(name)
        elif 5 not in truth:
            counts["well"] += 1
            counts["right"] += name not in referred
    return [
        (len(referred), len(everyone)),
        (counts["doubt"], len(everyone)),
        (len(ill - referred), len(ill)),
        (len(ill & referred), len(ill)),
        (counts["right"], counts["well"]),
        (len(gated), len(everyone)),
        (len(answered & referred), len(answered)),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_random_cases_against_the_slow_form(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(5, 60))
    case = labelled(
        [(f"p{rng.integers(size // 2)}", rng.integers(6), float(rng.random()), rng.integers(6)) for _ in range(size)]
    )
    threshold = float(rng.random())
    odd, silent = (rng.random(size) < 0.2 for _ in range(2))
    found = triage(case, threshold, SCHEME, odd=odd, silent=silent)
    assert [share[:2] if share else (0, 0) for share in found] == slow(case, threshold, odd, silent)


def test_threshold_0_refers_everyone_and_misses_nobody():
    found = triage(labelled(CASE), 0.0, SCHEME)
    assert found.load.value == 1
    assert found.missed.value == 0
    assert found.specificity.value == 0


def test_nobody_to_count():
    assert set(triage(labelled([]), THRESHOLD, SCHEME)) == {None}
    well = triage(labelled([("a", 0, 0.1, 0)]), THRESHOLD, SCHEME)
    assert (well.missed, well.sensitivity) == (None, None)
    ill = triage(labelled([("a", 4, 0.1, 4)]), THRESHOLD, SCHEME)
    assert ill.specificity is None
    assert ill.sensitivity.value == 1


def test_without_referable_grades_only_the_loads_are_told():
    scheme = GradingScheme(grades=SCHEME.grades, ungradable="ungradable")
    found = triage(labelled(CASE), THRESHOLD, scheme)
    assert found.load[:2] == (3, 7)  # doubt twice, ungradable once
    assert found.doubt_load[:2] == (2, 7)
    assert (found.missed, found.sensitivity, found.specificity) == (None, None, None)


def test_arrays_of_other_lengths_are_refused():
    with pytest.raises(TrainingError, match="more of one than of another"):
        triage(labelled(CASE)._replace(patients=("a",) * 10), THRESHOLD, SCHEME)
