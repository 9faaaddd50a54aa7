"""The figures of many draws at once against the plain ones, draw by draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedretina.evaluation.bootstrap import ResampledFigures, grade_figure, patient_bootstrap
from fedretina.evaluation.figures import evaluate
from fedretina.evaluation.metrics import auroc
from fedretina.evaluation.referable import referable, referral_task
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.uncertainty.estimators import auc_scores, build_estimator


def split(seed: int, count: int, classes: int = 5) -> tuple[torch.Tensor, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = np.round(rng.normal(0, 2, (count, classes)) + 2 * np.eye(classes)[labels])  # rounded: with ties
    return torch.from_numpy(logits), labels, [f"p{number}" for number in rng.integers(0, count // 2 + 1, count)]


@pytest.mark.parametrize(
    ("seed", "count", "classes", "scheme"),
    [(1, 40, 5, "icdr5"), (2, 25, 4, "normal_3stages"), (3, 60, 6, "icdr5_ungradable"), (4, 6, 5, "icdr5")],
)
def test_the_fast_figures_are_the_plain_ones_in_every_draw(seed, count, classes, scheme):
    logits, labels, patients = split(seed, count, classes)
    grading, estimator = preset(scheme), build_estimator("evidence")
    answer = estimator.predict(logits)
    scores = auc_scores(logits, "expected_probability", 0.05, estimator)
    present = sorted(set(labels.tolist()))
    fast = ResampledFigures(
        answer.probabilities,
        labels,
        answer.uncertainty,
        scores,
        auc_scores(logits, "logits_softmax", 0.05, estimator),
        referral_task(answer.probabilities, labels, grading),
        supported=present[:2],
    )
    compared, missed = 0, set()

    def check(counts):
        nonlocal compared
        columns = fast(counts)
        for row, drawn in enumerate(counts):
            chosen = np.repeat(np.arange(count), drawn)
            plain = evaluate(logits[chosen], labels[chosen], estimator)._asdict()
            plain["auc_logits"] = evaluate(logits[chosen], labels[chosen], estimator, "logits_softmax").auc
            if len(set(labels[chosen])) < len(set(labels)):  # another quantity, so undefined
                plain["auc"] = plain["auc_logits"] = None
                missed.add(row)
            disease = referable(answer.probabilities[chosen], labels[chosen], grading)
            plain |= {f"referable_{name}": getattr(disease, name) for name in ("auc", "sensitivity", "specificity")}
            aucs = {grade: auroc(scores[chosen, grade], labels[chosen] == grade) for grade in present}
            plain |= {grade_figure(grade): value for grade, value in aucs.items()}
            plain["auc_supported"] = (
                None if None in map(aucs.get, present[:2]) else (aucs[present[0]] + aucs[present[1]]) / 2
            )
            for name, column in columns.items():
                expected = np.nan if plain[name] is None else plain[name]
                assert column[row] == pytest.approx(expected, abs=1e-12, nan_ok=True), name
                compared += 1
        return columns

    patient_bootstrap(check, patients, seed, draws=40)
    assert compared == 40 * (12 + len(present))
    assert len(missed) < 40


def test_a_scheme_without_referable_grades_has_no_figures_for_them():
    logits, labels, _ = split(1, 10, 2)
    answer = build_estimator("softmax").predict(logits)
    scores = auc_scores(logits, "logits_softmax", 0.05, build_estimator("softmax"))
    task = referral_task(answer.probabilities, labels, GradingScheme(grades=("a", "b")))
    figures = ResampledFigures(answer.probabilities, labels, answer.uncertainty, scores, scores, task)
    found = figures(np.ones((3, 10), dtype=np.int64))
    assert set(found) == {
        grade_figure(0),
        grade_figure(1),
        "auc",
        "auc_logits",
        "accuracy",
        "kappa",
        "error_auroc",
        "aurc",
        "brier",
        "nll",
    }
    assert all(column.shape == (3,) and np.ptp(column) == 0 for column in found.values())
