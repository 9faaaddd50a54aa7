"""Ensembles: the mean softmax, the mean opinion and Dempster's rule against slow forms and closed cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from fedretina.errors import TrainingError
from fedretina.uncertainty.estimators import auc_scores, build_estimator, members
from fedretina.uncertainty.evidence import opinion

MEANS = ("softmax_mean", "softmax_disagreement", "evidence_mean", "evidence_dempster")


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).normal(0, 3, (20, 5, 4)))


def test_mean_softmax_and_its_entropy(logits):
    answer = build_estimator("softmax_mean").predict(logits)
    raised = np.exp(logits.numpy())
    mean = (raised / raised.sum(2, keepdims=True)).mean(1)
    assert answer.probabilities == pytest.approx(mean, abs=1e-12)
    assert answer.uncertainty == pytest.approx(entropy(mean, axis=1) / math.log(4), abs=1e-12)


def test_members_that_disagree_are_less_sure_than_each_of_them():
    sure = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    assert build_estimator("softmax_mean").predict(sure).uncertainty[0] == pytest.approx(1)
    assert build_estimator("softmax").predict(sure).uncertainty[0] < 0.01
    # The entropy of two classes is even, unlike that of one sigmoid output alone.
    both = build_estimator("softmax_mean").predict(torch.tensor([[[3.0, 0.0]], [[0.0, 3.0]]]))
    assert both.uncertainty[0] == both.uncertainty[1]


def test_disagreement_is_what_an_answer_tells_of_the_member(logits):
    """The slow form: the mutual information of member and class, summed over their joint distribution."""
    answer = build_estimator("softmax_disagreement").predict(logits)
    raised = np.exp(logits.numpy())
    each = raised / raised.sum(2, keepdims=True)
    joint = each / each.shape[1]
    alone = joint.sum(1, keepdims=True) * joint.sum(2, keepdims=True)
    slow = (joint * np.log(joint / alone)).sum((1, 2)) / math.log(4)
    assert answer.uncertainty == pytest.approx(slow, abs=1e-12)
    assert answer.probabilities == pytest.approx(each.mean(1), abs=1e-12)


def test_disagreement_at_its_ends(logits):
    by = build_estimator("softmax_disagreement")
    assert by.predict(logits[:, :1]).uncertainty == pytest.approx(0)  # one member alone
    assert by.predict(logits[:, :1].expand(-1, 5, -1)).uncertainty == pytest.approx(0, abs=1e-12)
    unsure = torch.zeros(1, 3, 4)  # all find it hard, and agree on that
    assert by.predict(unsure).uncertainty[0] == pytest.approx(0, abs=1e-12)
    assert build_estimator("softmax_mean").predict(unsure).uncertainty[0] == pytest.approx(1)
    opposed = torch.tensor([[[60.0, 0.0], [0.0, 60.0]]])
    assert by.predict(opposed).uncertainty[0] == pytest.approx(1)


def test_mean_opinion(logits):
    answer = build_estimator("evidence_mean").predict(logits)
    views = [opinion(logits[:, m]) for m in range(5)]
    assert answer.probabilities == pytest.approx(sum(v.probability.numpy() for v in views) / 5, abs=1e-12)
    assert answer.uncertainty == pytest.approx(sum(v.uncertainty.numpy() for v in views) / 5, abs=1e-12)


def test_dempster_is_the_rule_over_sets(logits):
    """The slow form: masses on the single classes and on the whole frame, intersections counted one by one."""
    answer = build_estimator("evidence_dempster").predict(logits)
    for row in range(3):
        masses = None
        for m in range(5):
            view = opinion(logits[row : row + 1, m])
            one = {(k,): float(view.belief[0, k]) for k in range(4)} | {(0, 1, 2, 3): float(view.uncertainty[0])}
            masses = one if masses is None else _dempster(masses, one)
        u = masses[0, 1, 2, 3]
        assert answer.uncertainty[row] == pytest.approx(u, rel=1e-10)
        assert answer.probabilities[row] == pytest.approx([masses[(k,)] + u / 4 for k in range(4)], rel=1e-10)


def _dempster(one, two):
    joined: dict[tuple[int, ...], float] = {}
    for (a, x), (b, y) in itertools.product(one.items(), two.items()):
        common = tuple(sorted(set(a) & set(b)))
        joined[common] = joined.get(common, 0.0) + x * y
    conflict = joined.pop((), 0.0)
    return {key: value / (1 - conflict) for key, value in joined.items()}


def test_dempster_of_the_closed_case():
    """Two opinions b = (1/2, 0), u = 1/2: C = 0, so b = 3/4 and u = 1/4."""
    z = math.log(math.expm1(2.0))  # e = 2, S = 4, u = 1/2
    none = -800.0
    answer = build_estimator("evidence_dempster").predict(torch.tensor([[[z, none], [z, none]]], dtype=torch.float64))
    assert answer.uncertainty[0] == pytest.approx(0.25)
    assert answer.probabilities[0] == pytest.approx([0.875, 0.125])


def test_dempster_does_not_ask_for_an_order_and_survives_full_conflict(logits):
    fused = build_estimator("evidence_dempster")
    assert fused.predict(logits).uncertainty == pytest.approx(fused.predict(logits.flip(1)).uncertainty, rel=1e-9)
    clash = fused.predict(torch.tensor([[[1e8, 0.0], [0.0, 1e8]]]))
    assert np.isfinite(clash.probabilities).all()
    assert clash.probabilities[0] == pytest.approx([0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize(("mean", "single"), [("softmax_mean", "softmax"), ("evidence_mean", "evidence")])
def test_one_member_is_the_head_alone(mean, single, logits):
    one = logits[:, :1]
    for given in (one, one[:, 0]):
        assert build_estimator(mean).predict(given).uncertainty == pytest.approx(
            build_estimator(single).predict(given).uncertainty
        )


def test_estimators_of_one_head_read_the_last_member(logits):
    for name in ("softmax", "evidence"):
        last = build_estimator(name).predict(logits[:, -1])
        assert np.array_equal(build_estimator(name).predict(logits).probabilities, last.probabilities)
    for which in ("belief", "logits_softmax"):
        scores = auc_scores(logits, which, 0.05, build_estimator("softmax_mean"))
        assert np.array_equal(scores, auc_scores(logits[:, -1], which, 0.05, build_estimator("softmax_mean")))


@pytest.mark.parametrize("name", MEANS)
def test_answer_ranks_what_the_estimator_says(name, logits):
    estimator = build_estimator(name)
    assert np.array_equal(auc_scores(logits, "answer", 0.05, estimator), estimator.predict(logits).probabilities)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (3, 0, 4), (3, 2, 1), (2, 2, 2, 2)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(TrainingError, match="at least 2 classes"):
        members(torch.zeros(shape))
