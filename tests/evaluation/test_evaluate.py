"""The evaluation of a split: every field, what is left out, and broken logits."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score, log_loss, roc_auc_score

from fedretina.errors import TrainingError
from fedretina.evaluation.figures import Evaluation, LabelledPredictions, evaluate, triage
from fedretina.evaluation.metrics import accuracy
from fedretina.metric_inputs import checked_errors, checked_scores
from fedretina.settings.scheme import preset
from fedretina.settings.theta import YoudenSettings
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.theta import youden_theta
from fedretina_papers.statistics.selective import selective_balanced_accuracy

SOFTMAX, EVIDENCE = build_estimator("softmax"), build_estimator("evidence")


@pytest.fixture
def split() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(12)
    labels = rng.integers(0, 5, 80)
    return torch.from_numpy(rng.normal(0, 2, (80, 5)) + 2 * np.eye(5)[labels]).float(), torch.from_numpy(labels)


def test_fields_against_scikit_learn(split):
    logits, labels = split
    found = evaluate(logits, labels, SOFTMAX, "logits_softmax", 0.05)
    probabilities = logits.double().softmax(1).numpy()
    truth = labels.numpy()
    predicted = probabilities.argmax(1)
    uncertainty = SOFTMAX.predict(logits).uncertainty
    assert found.auc == pytest.approx(roc_auc_score(np.eye(5)[truth], probabilities))
    assert (found.auc_classes, found.n) == (5, 80)
    assert found.accuracy == pytest.approx((predicted == truth).mean())
    assert found.kappa == pytest.approx(cohen_kappa_score(truth, predicted, weights="quadratic"))
    assert found.error_auroc == pytest.approx(roc_auc_score(predicted != truth, uncertainty))
    assert found.nll == pytest.approx(log_loss(truth, probabilities))
    assert 0 < found.aurc < 1 - found.accuracy
    assert found.error_auroc > 0.5


def test_the_auc_input_moves_the_auc_alone(split):
    one = evaluate(*split, EVIDENCE, "expected_probability", 0.05)
    other = evaluate(*split, EVIDENCE, "logits_softmax", 0.05)
    assert one.auc != other.auc
    assert one._replace(auc=None) == other._replace(auc=None)


def test_the_estimator_moves_calibration_but_not_accuracy(split):
    one, other = evaluate(*split, EVIDENCE), evaluate(*split, SOFTMAX)
    assert one.accuracy == other.accuracy
    assert one.auc == other.auc
    assert one.nll != other.nll
    assert one.error_auroc != other.error_auroc


def test_labels_as_an_array_and_logits_with_gradient_are_taken(split):
    logits, labels = split
    assert evaluate(logits.requires_grad_(), labels.numpy(), SOFTMAX) == evaluate(logits.detach(), labels, SOFTMAX)


def test_undefined_metrics_are_none():
    found = evaluate(torch.tensor([[9.0, 0.0], [8.0, 0.0]]), torch.tensor([0, 0]), EVIDENCE)
    assert (found.auc, found.auc_classes, found.kappa, found.error_auroc) == (None, 1, None, None)
    assert found.accuracy == 1.0
    defined = {name: value for name, value in found._asdict().items() if value is not None}
    assert set(Evaluation._fields) - set(defined) == {"auc", "kappa", "error_auroc"}
    assert all(math.isfinite(value) for value in defined.values())
    assert found.n == 2


def test_a_whole_evaluation_has_every_figure(split):
    assert None not in evaluate(*split, EVIDENCE)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused_and_counted_at_home_alone(split, value):
    logits, labels = split
    logits[3, 1] = logits[3, 2] = logits[5, 0] = value
    with pytest.raises(TrainingError, match="not finite") as told:
        evaluate(logits, labels, EVIDENCE)
    assert not re.search(r"\d", str(told.value).replace("float32", ""))
    assert told.value.notes == ("They are those for 2 of 80 images.",)


def test_no_public_sentence_of_a_metric_counts_images():
    scores, judged = (
        np.full((7, 5), 0.2),
        LabelledPredictions(np.full((7, 5), 0.2), np.zeros(7), np.zeros(9, int), ("a",) * 7),
    )
    for ask in (
        lambda: checked_scores(scores, np.zeros(9, int)),
        lambda: checked_errors(np.zeros(7), np.zeros(9)),
        lambda: accuracy(np.zeros(7, int), np.zeros(9, int)),
        lambda: triage(judged, 0.5, preset("icdr5")),
        lambda: selective_balanced_accuracy(np.zeros(7), np.zeros(9), np.zeros(7), 0.4),
        lambda: youden_theta(np.zeros(7), np.zeros(9, bool), YoudenSettings(), None),
    ):
        with pytest.raises(TrainingError) as told:
            ask()
        assert not {"7", "9"} & set(str(told.value)), told.value
        assert any("7" in note and "9" in note for note in told.value.notes)


def test_unfit_splits_are_refused_and_name_no_label():
    with pytest.raises(TrainingError, match="without images"):
        evaluate(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), EVIDENCE)
    with pytest.raises(TrainingError) as caught:
        evaluate(torch.zeros(1, 5), torch.tensor([7]), EVIDENCE)
    assert "7" not in str(caught.value)
    with pytest.raises(TrainingError, match="labels"):
        evaluate(torch.zeros(2, 5), torch.tensor([1]), EVIDENCE)
