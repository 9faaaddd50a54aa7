"""The verdict: differences against slow forms, and which model is kept, which the test split never decides."""

from __future__ import annotations

import numpy as np
import pytest

from fedretina.errors import TrainingError
from fedretina.evaluation.metrics import accuracy, auroc, macro_auc
from fedretina.evaluation.verdict import (
    FEDERATED,
    LEAST_PATIENTS,
    OWN,
    TWIN,
    Answered,
    Difference,
    Truth,
    choose,
    compare,
    figures,
    majority,
)
from fedretina.settings.scheme import GradingScheme, preset
from slow_bootstrap import bootstrapped_slowly

PLAIN = GradingScheme(grades=("a", "b", "c"))


def answered(rng: np.random.Generator, labels: np.ndarray, classes: int, skill: float) -> Answered:
    logits = rng.normal(size=(labels.size, classes)) + skill * np.eye(classes)[labels]
    odds = np.exp(logits)
    return Answered(odds / odds.sum(1, keepdims=True), logits)


def slow(answer: Answered, truth: Truth, at: np.ndarray) -> dict[str, float | None]:
    """By each figure's own words, on the images at these places."""
    labels, scheme = truth.labels[at], truth.scheme
    found = {"accuracy": accuracy(answer.probabilities[at].argmax(1), labels)}
    if len(np.unique(labels)) == len(np.unique(truth.labels)):  # a draw that misses a grade has no macro AUC
        found["auc"] = macro_auc(answer.scores[at], labels).value
    if scheme.referable_classes:
        gradable = labels != (-1 if scheme.ungradable_class is None else scheme.ungradable_class)
        p, kept = answer.probabilities[at][gradable], labels[gradable]
        chosen = list(scheme.referable_classes)
        without = [k for k in range(scheme.num_classes) if k != scheme.ungradable_class]
        found["referable_auc"] = auroc(p[:, chosen].sum(1) / p[:, without].sum(1), np.isin(kept, chosen))
    return found


@pytest.mark.parametrize("scheme", [preset("icdr5"), preset("icdr5_ungradable"), PLAIN], ids=lambda s: len(s.grades))
def test_differences_are_those_of_drawing_patients_and_asking_both_models_each_time(scheme):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, scheme.num_classes, 60)
    truth = Truth(labels, [f"p{at // 2}" for at in range(60)], scheme)
    one, two = (answered(rng, labels, scheme.num_classes, skill) for skill in (1.5, 0.5))
    found = compare(one, two, truth, seed=4, draws=200)
    everything = np.arange(60)
    left, right = slow(one, truth, everything), slow(two, truth, everything)
    assert set(found) == set(left)
    assert figures(one, truth) == pytest.approx({name: left.get(name) for name in figures(one, truth)})

    def gaps(at: np.ndarray) -> dict[str, float | None]:
        here, there = slow(one, truth, at), slow(two, truth, at)
        return {
            name: None if here[name] is None or there.get(name) is None else here[name] - there[name] for name in here
        }

    wanted = bootstrapped_slowly(gaps, truth.patients, 4, 200)
    for name, difference in found.items():
        assert difference.value == pytest.approx(left[name] - right[name])
        assert difference[1:] == pytest.approx(wanted[name], abs=1e-9)
    turned = compare(two, one, truth, seed=4, draws=200)
    assert [turned[name].value for name in found] == pytest.approx([-found[name].value for name in found])


def test_a_difference_has_an_outcome_only_where_zero_lies_outside():
    assert Difference(0.04, 0.02, 0.07, 200).outcome == "gained"
    assert Difference(-0.04, -0.07, -0.02, 200).outcome == "lost"
    assert Difference(0.04, -0.01, 0.09, 200).outcome == "untold"
    assert Difference(0.04, None, None, 3).outcome == "untold"
    assert Difference(0.04, 0.0, 0.07, 200).outcome == "untold"


def test_models_that_answer_alike_or_cannot_be_measured_have_no_difference():
    labels = np.zeros(12, dtype=np.int64)
    truth = Truth(labels, [str(at) for at in range(12)], PLAIN)
    rng = np.random.default_rng(1)
    one, two = (answered(rng, labels, 3, 1.0) for _ in range(2))
    assert compare(one, two, truth, 1, 50)["auc"] == (None, None, None, 0)  # one grade: nothing to rank
    labels = rng.integers(0, 3, 40)
    truth = Truth(labels, [str(at) for at in range(40)], PLAIN)
    one = answered(rng, labels, 3, 1.0)
    assert compare(one, one, truth, 1, 50)["auc"].outcome == "untold"


def kinds(ill: int, well: int) -> Truth:
    """So many patients of either kind, two images each."""
    labels = np.repeat([3] * ill + [0] * well, 2)
    return Truth(labels, [f"p{at // 2}" for at in range(labels.size)], preset("icdr5"))


def ranked(truth: Truth, right: float) -> Answered:
    """Ranks this share of the ill images above all others."""
    ill = np.flatnonzero(truth.labels == 3)
    p = np.full(truth.labels.size, 0.3)
    p[ill] = 0.2
    p[ill[: round(right * ill.size)]] = 0.9
    matrix = np.zeros((truth.labels.size, 5))
    matrix[:, 3], matrix[:, 0] = p, 1 - p
    return Answered(matrix, matrix)


def test_the_model_that_does_best_on_validation_is_kept_and_the_federated_one_of_equals():
    truth = kinds(LEAST_PATIENTS, LEAST_PATIENTS)
    good, fair, bad = (ranked(truth, share) for share in (1, 0.75, 0.5))
    assert choose({FEDERATED: fair, OWN: good}, truth)[:3] == (OWN, "better", "referable_auc")
    assert choose({FEDERATED: good, OWN: fair}, truth)[:2] == (FEDERATED, "not_better")
    assert choose({OWN: fair, FEDERATED: fair}, truth)[:2] == (FEDERATED, "not_better")
    assert choose({FEDERATED: bad, OWN: fair, TWIN: good}, truth).kept == TWIN
    assert choose({FEDERATED: bad, OWN: good, TWIN: fair}, truth).values == {FEDERATED: 0.5, OWN: 1.0, TWIN: 0.75}
    assert choose({FEDERATED: bad}, truth)[:2] == (FEDERATED, "only_one")


def test_with_too_few_patients_of_either_kind_the_federated_model_is_kept():
    for ill, well in ((LEAST_PATIENTS - 1, 50), (50, LEAST_PATIENTS - 1)):
        truth = kinds(ill, well)  # images are twice as many: patients are counted
        found = choose({FEDERATED: ranked(truth, 0.5), OWN: ranked(truth, 1)}, truth)
        assert found[:2] == (FEDERATED, "too_few_patients")
        assert found.values == {FEDERATED: 0.5, OWN: 1.0}  # told all the same
        assert found.patients == ill + well


def test_who_cannot_be_graded_is_no_patient_without_disease():
    labels = np.array([3] * LEAST_PATIENTS + [0] * (LEAST_PATIENTS - 1) + [5] * 20)
    truth = Truth(labels, [str(at) for at in range(labels.size)], preset("icdr5_ungradable"))
    rng = np.random.default_rng(1)
    models = {FEDERATED: answered(rng, labels, 6, 0.1), OWN: answered(rng, labels, 6, 3.0)}
    assert choose(models, truth).reason == "too_few_patients"


def test_without_referable_grades_the_macro_auc_chooses():
    labels = np.repeat([0, 1, 2], [LEAST_PATIENTS, LEAST_PATIENTS, 2])
    truth = Truth(labels, [str(at) for at in range(labels.size)], PLAIN)
    rng = np.random.default_rng(1)
    models = {FEDERATED: answered(rng, labels, 3, 0.1), OWN: answered(rng, labels, 3, 3.0)}
    assert choose(models, truth)[:3] == (OWN, "better", "auc")
    rare = np.repeat([0, 1, 2], [50, 3, 2])
    few = Truth(rare, [str(at) for at in range(rare.size)], PLAIN)
    models = {name: answered(rng, rare, 3, 1.0) for name in (FEDERATED, OWN)}
    assert choose(models, few).reason == "too_few_patients"


def test_the_majority_answers_what_training_had_most_of():
    found = majority(np.array([2, 2, 0, 0, 1]), images=3, classes=4)
    assert found.probabilities.tolist() == [[0.4, 0.2, 0.4, 0]] * 3
    truth = Truth(np.array([0, 0, 1]), ["a", "b", "c"], GradingScheme(grades=("a", "b", "c", "d")))
    assert figures(found, truth) == {"referable_auc": None, "auc": 0.5, "accuracy": pytest.approx(2 / 3)}


def test_answers_to_other_images_are_refused():
    truth = kinds(2, 2)
    short = Answered(np.full((3, 5), 0.2), np.full((3, 5), 0.2))
    with pytest.raises(TrainingError, match="the same images and grades"):
        compare(ranked(truth, 1), short, truth, 1, 10)
    with pytest.raises(TrainingError, match="federated"):
        choose({OWN: ranked(truth, 1)}, truth)
