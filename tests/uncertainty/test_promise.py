"""The referral's promise and the sets of grades: exact counts, limits, and what they promise over many draws."""

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import binom

from fedretina.errors import TrainingError
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import PromiseSettings
from fedretina.uncertainty.grade_sets import grade_costs, grade_sets, grades_of, set_words, sets_hold
from fedretina.uncertainty.promise import chance_of_disease, passes_allowed, patients_needed, promised

SCHEME = GradingScheme(
    grades=("none", "mild", "moderate", "severe", "blurred"), ungradable="blurred", referable=("moderate", "severe")
)
ASKED = PromiseSettings(missed=0.1, sure=0.9)


@pytest.mark.parametrize(("missed", "sure"), [(0.05, 0.9), (0.05, 0.95), (0.1, 0.8), (0.2, 0.5), (0.01, 0.99)])
def test_the_patients_that_it_takes_are_just_enough(missed, sure):
    least = patients_needed(missed, sure)
    assert passes_allowed(least, missed, sure) == 0
    assert passes_allowed(least - 1, missed, sure) is None
    assert (patients_needed(0.05, 0.9), patients_needed(0.05, 0.95)) == (45, 59)


@pytest.mark.parametrize("patients", [22, 60, 333])
def test_no_more_may_pass_than_the_exact_bound_allows(patients):
    allowed = passes_allowed(patients, 0.1, 0.9)
    assert binom.cdf(allowed, patients, 0.1) <= 0.1 < binom.cdf(allowed + 1, patients, 0.1)


def drawn(rng, ill, well=50):
    """Chances of ill and well patients of one image each."""
    chance = np.concatenate([rng.beta(4, 2, ill), rng.beta(2, 4, well)])
    return chance, np.repeat([2, 0], [ill, well]), [str(at) for at in range(ill + well)]


def test_the_threshold_lets_as_many_pass_as_may():
    chance, labels, patients = drawn(np.random.default_rng(0), 100)
    found = promised(chance, np.zeros(150, bool), labels, patients, SCHEME, ASKED)
    below = int((chance[:100] < found.threshold).sum())
    assert (found.reason, found.passed, below) == ("kept", found.allowed, found.allowed)
    assert found.patients == 100
    assert found.allowed == passes_allowed(100, 0.1, 0.9) > 0
    # One patient's chance more, and one too many would pass.
    assert (chance[:100] <= found.threshold).sum() == found.allowed + 1


def test_a_patient_is_found_by_any_image_and_by_any_other_reason():
    chance, labels, patients = drawn(np.random.default_rng(1), 40, 0)
    asked = PromiseSettings(missed=0.06, sure=0.9)
    alone = promised(chance, np.zeros(40, bool), labels, patients, SCHEME, asked)
    assert (alone.threshold, alone.allowed) == (chance.min(), 0)
    second = np.full(40, 0.9)  # of each patient another image, which is not ill itself
    both = promised(np.r_[chance, second], np.zeros(80, bool), np.r_[labels, labels * 0], patients * 2, SCHEME, asked)
    assert both.threshold == 0.9
    assert both.patients == 40
    referred = promised(chance, np.ones(40, bool), labels, patients, SCHEME, asked)
    assert (referred.threshold, referred.reason, referred.passed) == (None, "kept", 0)


def test_what_cannot_be_promised_is_said():
    chance, labels, patients = drawn(np.random.default_rng(2), 21)
    few = promised(chance, np.zeros(71, bool), labels, patients, SCHEME, ASKED)
    assert (few.threshold, few.reason, few.needed, few.allowed) == (None, "too_few_patients", 22, None)
    nobody = promised([], [], [], [], SCHEME, ASKED)
    assert (nobody.reason, nobody.patients) == ("too_few_patients", 0)
    plain = GradingScheme(grades=("a", "b"))
    assert promised(chance, chance < 0, labels * 0, patients, plain, ASKED).reason == "no_referable_grades"
    with pytest.raises(TrainingError, match="one finite chance"):
        promised([np.nan], [False], [2], ["a"], SCHEME, ASKED)
    with pytest.raises(ValidationError):
        PromiseSettings(missed=0)


def test_the_promise_holds_in_the_share_of_draws_that_it_claims():
    """Over 2,000 validation splits of 60 ill patients, whom 30 % of the chances do not find: more than nine in ten."""
    rng, kept = np.random.default_rng(3), 0
    everyone = rng.beta(4, 2, 200_000)
    for _ in range(2000):
        chance = rng.choice(everyone, 60)
        found = promised(chance, chance > 0.8, np.full(60, 2), [str(at) for at in range(60)], SCHEME, ASKED)
        missed = np.mean(everyone < min(found.threshold or 0.8, 0.8))
        kept += missed <= ASKED.missed
    # The bound is exact: P(Binomial(60, .1) <= allowed) is what may fail, less than .1.
    claimed = 1 - binom.cdf(passes_allowed(60, 0.1, 0.9), 60, 0.1)
    assert claimed >= 0.9
    assert abs(kept / 2000 - claimed) < 4 * np.sqrt(claimed * (1 - claimed) / 2000)


def answers(rng, patients):
    """Answers of a model that is right in six of ten, two images a patient, and the truth."""
    labels = rng.integers(0, 5, 2 * patients)
    logits = rng.normal(size=(2 * patients, 5)) + 1.5 * np.eye(5)[labels]
    chances = np.exp(logits)
    return chances / chances.sum(1, keepdims=True), labels, [str(at // 2) for at in range(2 * patients)]


@pytest.mark.parametrize("ordered", [True, False])
def test_sets_hold_the_true_grades_of_the_patients_that_they_promise(ordered):
    rng, held, of = np.random.default_rng(4), 0, 0
    for _ in range(200):
        rule = grade_sets(*answers(rng, 40), SCHEME, ordered)
        found = sets_hold(rule, *answers(rng, 40), SCHEME)
        held, of = held + found[0], of + found[1]
    # Patients of one rule stand together: of 200 rules the mean coverage has a standard error of some .004.
    assert 0.885 < held / of < 0.945


def test_a_set_of_grades_with_an_order_has_no_gap():
    rng = np.random.default_rng(5)
    probabilities, labels, patients = answers(rng, 60)
    rule = grade_sets(probabilities, labels, patients, SCHEME, True)
    for image, found in zip(probabilities, grades_of(rule, probabilities, SCHEME), strict=True):
        assert found == tuple(range(found[0], found[-1] + 1))
        assert int(np.argmax(image[:4])) in found
        assert 4 not in found
    costs = grade_costs([[0.1, 0.5, 0.2, 0.2, 0.0]], SCHEME, True)[0]
    assert costs[:4] == pytest.approx([0.9, 0.0, 0.5, 0.7])
    costs = grade_costs([[0.3, 0.5, 0.2, 0.0, 0.0]], SCHEME, False)[0]
    assert costs[:4] == pytest.approx([0.5, 0.0, 0.8, 1.0])


def test_too_few_patients_give_no_sets():
    probabilities, labels, patients = answers(np.random.default_rng(6), 8)
    rule = grade_sets(probabilities, np.minimum(labels, 3), patients, SCHEME, True)
    assert (rule.limit, rule.patients) == (None, 8)
    assert all(len(found) == 4 for found in grades_of(rule, probabilities, SCHEME))
    assert sets_hold(rule, probabilities, np.minimum(labels, 3), patients, SCHEME)[:2] == (8, 8)
    empty = grade_sets(np.zeros((0, 5)), [], [], SCHEME, True)
    assert (empty.limit, empty.patients) == (None, 0)


def test_a_set_in_words():
    assert set_words((1,), SCHEME, True) == "mild"
    assert set_words((1, 2, 3), SCHEME, True) == "mild to severe"
    assert set_words((1, 3), SCHEME, False) == "mild or severe"
    assert set_words((), SCHEME, True) == ""


def test_the_chance_of_disease_is_that_of_the_referable_grades():
    assert chance_of_disease([[0.1, 0.2, 0.3, 0.25, 0.15]], SCHEME) == pytest.approx([0.55])
