"""Estimators and AUC scores: ranges, closed cases, and what they share and do not share."""

import math
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from fedretina.errors import SettingsError, TrainingError
from fedretina.settings.evaluation import EvaluationSettings
from fedretina.uncertainty.estimators import Estimator, auc_scores, build_estimator, estimator
from fedretina.uncertainty.evidence import opinion

NAMES = sorted(EvaluationSettings.choices())
KINDS = ("expected_probability", "belief", "logits_softmax", "warmed_belief")
EVIDENCE = build_estimator("evidence")


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).normal(0, 4, (40, 5))).float()


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_keeps_to_its_contract(name, logits):
    answer = build_estimator(name).predict(logits.requires_grad_())
    assert answer.name == name
    assert answer.probabilities.shape == (40, 5)
    assert answer.uncertainty.shape == (40,)
    assert answer.probabilities.sum(1) == pytest.approx(np.ones(40), abs=1e-12)
    assert (answer.uncertainty >= answer.range[0]).all()
    assert (answer.uncertainty <= answer.range[1]).all()
    assert (answer.probabilities.argmax(1) == logits.detach().argmax(1).numpy()).all()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"softmax_disagreement"}))  # one head agrees with itself
def test_an_even_answer_is_less_sure_than_a_clear_one(name):
    answer = build_estimator(name).predict(torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [300.0, 0.0, 0.0]]))
    assert (np.diff(answer.uncertainty) < 0).all()


def test_softmax_uncertainty_is_the_entropy_over_log_k(logits):
    answer = build_estimator("softmax").predict(logits)
    assert answer.uncertainty == pytest.approx(entropy(answer.probabilities, axis=1, base=5), abs=1e-12)
    ends = build_estimator("softmax").predict(torch.tensor([[0.0, 0.0], [2000.0, -2000.0]])).uncertainty
    assert ends.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("classes", range(2, 12))
def test_softmax_uncertainty_never_exceeds_one(classes):
    rng = np.random.default_rng(classes)
    near = torch.from_numpy(rng.normal(0, 1e-9, (500, classes)))
    assert (build_estimator("softmax").predict(near).uncertainty <= 1).all()


def test_evidence_uncertainty_is_k_over_s(logits):
    answer = build_estimator("evidence").predict(logits)
    view = opinion(logits.double())
    assert np.array_equal(answer.uncertainty, view.uncertainty.numpy())
    assert np.array_equal(answer.probabilities, view.probability.numpy())
    assert build_estimator("evidence").predict(torch.zeros(1, 5)).uncertainty[0] == pytest.approx(0.5906, abs=1e-4)


def test_estimators_take_half_precision():
    coarse = torch.tensor([[1.5, -2.0, 0.25]])
    for asked in map(build_estimator, NAMES):
        assert np.array_equal(asked.predict(coarse.bfloat16()).uncertainty, asked.predict(coarse).uncertainty)


def test_auc_scores_against_loops():
    row = [1.0, -2.0, 0.5]
    e = [math.log1p(math.exp(z)) for z in row]
    s = sum(e) + 3
    warmed = [math.exp(v / s / 0.05) for v in e]
    soft = [math.exp(z) for z in row]
    expected = {
        "expected_probability": [(v + 1) / s for v in e],
        "belief": [v / s for v in e],
        "logits_softmax": [v / sum(soft) for v in soft],
        "warmed_belief": [v / sum(warmed) for v in warmed],
    }
    assert set(expected) == set(KINDS)
    for which, values in expected.items():
        assert auc_scores(torch.tensor([row]), which, 0.05, EVIDENCE)[0].tolist() == pytest.approx(values, rel=1e-12)


def test_auc_scores_share_the_answer_but_not_the_ranking(logits):
    scores = {which: auc_scores(logits, which, 0.05, EVIDENCE) for which in KINDS}
    for values in scores.values():
        assert (values.argmax(1) == logits.argmax(1).numpy()).all()
    orders = {which: tuple(values[:, 0].argsort()) for which, values in scores.items()}
    assert len(set(orders.values())) == len(KINDS)


def test_tau_moves_the_warmed_belief_alone(logits):
    for which in KINDS:
        same = np.array_equal(auc_scores(logits, which, 0.05, EVIDENCE), auc_scores(logits, which, 0.5, EVIDENCE))
        assert same == (which != "warmed_belief")


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_tau_outside_its_range_is_refused(tau, logits):
    with pytest.raises(SettingsError, match="above 0"):
        auc_scores(logits, "warmed_belief", tau, EVIDENCE)


@pytest.mark.parametrize("shape", [(5,), (3, 1)])
def test_wrong_shapes_are_refused(shape):
    for asked in map(build_estimator, NAMES):
        with pytest.raises(TrainingError, match="shape"):
            asked.predict(torch.zeros(shape))
    with pytest.raises(TrainingError, match="shape"):
        auc_scores(torch.zeros(shape), "logits_softmax", 0.05, EVIDENCE)


def test_what_an_estimator_says_that_it_reads_is_all_that_it_is_given():
    many = torch.randn(3, 4, 5)
    for name, settings in EvaluationSettings.choices().items():
        if settings.most_members == 1:
            alone = build_estimator(name).predict(many[:, -1])
            assert np.array_equal(build_estimator(name).predict(many).uncertainty, alone.uncertainty)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"range": (0.0, 2.0)}, "theta is looked for from 0 to 1"),
        ({"auc_input": Literal["no_such", "answer"]}, "may be no_such, answer: name some of expected_probability"),
        ({"auc_input": str}, "may be anything"),
    ],
)
def test_an_estimator_whose_settings_say_what_cannot_be_is_not_registered(said, fault):
    class OddSettings(EvaluationSettings):
        if "range" in said:
            range: ClassVar[tuple[float, float]] = said["range"]
        estimator: str  # no method of the axis, so that no other test finds it
        auc_input: said.get("auc_input", Literal["answer"])

    with pytest.raises(SettingsError, match=fault):
        estimator(OddSettings)(Estimator)


def test_a_name_that_no_estimator_has_is_refused_with_those_that_there_are():
    with pytest.raises(SettingsError, match="estimator: it is 'softmx', but may be 'softmax', 'evidence'"):
        build_estimator("softmx")
    with pytest.raises(SettingsError, match="auc_input is 'odd': use one of expected_probability"):
        auc_scores(torch.zeros(2, 3), "odd", 0.05, EVIDENCE)
