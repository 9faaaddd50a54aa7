"""All figures of a split with their intervals: names, plain values, and honest ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.figures import SplitFigures, evaluate, split_figures
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.uncertainty.estimators import build_estimator
from slow_bootstrap import bootstrapped_slowly

EVIDENCE = build_estimator("evidence")


def found(logits: np.ndarray, labels: np.ndarray, scheme: GradingScheme) -> SplitFigures:
    patients = [f"p{at // 2}" for at in range(len(labels))]
    words = {"estimator": EVIDENCE, "auc_input": "expected_probability", "tau": 0.05, "seed": 4, "draws": 300}
    return split_figures(torch.from_numpy(logits), labels, patients, scheme, **words)


def test_values_are_those_of_evaluate_and_bounds_those_of_the_plain_bootstrap():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 5, 80)
    logits = rng.normal(0, 2, (80, 5)) + 3 * np.eye(5)[labels]
    split = found(logits, labels, preset("icdr5"))
    plain = evaluate(torch.from_numpy(logits), labels, EVIDENCE)
    patients = [f"p{at // 2}" for at in range(80)]
    slow = bootstrapped_slowly(
        lambda at: evaluate(torch.from_numpy(logits[at]), labels[at], EVIDENCE)._asdict(), patients, 4, 300
    )
    for name in ("accuracy", "kappa", "error_auroc", "aurc", "brier", "nll", "auc"):
        figure = split.figures[name]
        assert figure.value == getattr(plain, name)
        assert (figure.low, figure.high) == pytest.approx(slow[name][:2], abs=1e-9)
    assert split.figures["ece"][1:] == (None, None, 0)
    assert split.auc_classes == 5
    assert split.figures["referable_auc"].value == split.disease.auc


def test_none_and_all_have_the_exact_interval_over_patients():
    labels = np.array([0, 0, 0, 0, 3, 3, 3, 3])
    split = found(9.0 * np.eye(5)[labels], labels, preset("icdr5"))
    four, two = exact_interval(4, 4), exact_interval(2, 2)
    assert split.figures["accuracy"][:3] == (1.0, four.low, 1.0)
    assert split.figures["referable_specificity"][:3] == (1.0, two.low, 1.0)
    wrong = found(9.0 * np.eye(5)[np.full(8, 4)], labels, preset("icdr5"))
    assert wrong.figures["accuracy"][:3] == (0.0, 0.0, exact_interval(0, 4).high)
    assert wrong.figures["referable_specificity"].value == 0


def test_what_is_undefined_has_no_bounds():
    split = found(9.0 * np.eye(2)[[0, 0]], np.array([0, 0]), GradingScheme(grades=("a", "b")))
    assert split.disease is None
    assert split.auc_classes == 1
    assert not any(name.startswith("referable") for name in split.figures)
    for name in ("auc", "kappa", "error_auroc"):
        assert split.figures[name][:3] == (None, None, None)
