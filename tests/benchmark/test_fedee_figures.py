"""FedEE's figures of a site against slow forms, and their means over sites and seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_asked import made_asked

from fedretina.benchmark.asked import Read
from fedretina.benchmark.fedee_figures import RATES, site_figures
from fedretina.benchmark.fedee_results import FedeeResults, spoken
from fedretina.benchmark.stored import Answers, Benchmark, referral

READ = Read("softmax_mean", "answer", 1.0)


def answers_of(asked, read=READ):
    answer = read.answer(asked.logits)
    p = answer.probabilities
    return Answers(p, answer.uncertainty, asked.labels, asked.patients, p, referral(p, asked.labels, (2, 3), -1))


@pytest.fixture(scope="module")
def asked():
    return made_asked(members=1)


@pytest.fixture(scope="module")
def found(asked):
    return site_figures(answers_of(asked), asked, READ, (0.9,), 0.1)


def test_figures_of_a_site(asked, found):
    answers = answers_of(asked)
    u, right = answers.uncertainty, answers.probabilities.argmax(1) == asked.labels
    assert found["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    recalls = [right[asked.labels == k].mean() for k in np.unique(asked.labels)]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls), abs=1e-6)
    pairs = [(a > b) + 0.5 * (a == b) for a in u[~right] for b in u[right]]
    assert found["misdetection"] == pytest.approx(np.mean(pairs), abs=1e-6)
    for at, rate in enumerate(RATES):
        kept = u <= np.quantile(u, 1 - rate)
        assert found["selective"]["accuracy"][at] == pytest.approx(right[kept].mean(), abs=1e-6)
        assert found["selective"]["kept"][at] == kept.sum()
    order = np.argsort(u)
    rates = np.array([(n + 1, (~right)[order][: n + 1].sum()) for n in range(len(u))])
    assert found["aurc"] == pytest.approx((rates[:, 1] / rates[:, 0]).mean(), abs=1e-6)


def test_cases_to_refer(asked, found):
    answers = answers_of(asked)
    wrong = answers.wrong[np.argsort(answers.uncertainty)]
    kept = max(n for n in range(61) if wrong[:n].sum() <= 0.1 * 60 + 1e-9)
    assert found["refer"]["0.9"]["with_doctor"] == pytest.approx(1 - kept / 60, abs=1e-6)
    alone = max(n for n in range(61) if wrong[:n].sum() <= 0.1 * n + 1e-9)
    assert found["refer"]["0.9"]["kept"] == pytest.approx(1 - alone / 60, abs=1e-6)


def test_sets_are_calibrated_on_validation(asked, found):
    val = READ.answer(asked.val_logits).probabilities
    scores = np.sort(1 - val[np.arange(40), asked.val_labels])
    limit = scores[math.ceil(41 * 0.9) - 1]
    sets = 1 - answers_of(asked).probabilities <= limit
    assert found["sets"]["size"] == pytest.approx(sets.sum(1).mean(), abs=1e-6)
    assert found["sets"]["coverage"] == pytest.approx(sets[np.arange(60), asked.labels].mean(), abs=1e-6)
    assert found["sets"]["calibration"] == 40


def test_counts_of_u_hold_every_image(found):
    assert {kind: sum(one["counts"]) for kind, one in found["u"].items()} == {
        "own": 60,
        "unseen": 20,
        "other sites": 7,
    }


def test_a_site_without_errors_or_without_validation(asked):
    sure = np.eye(4)[asked.labels] * 20
    right = asked._replace(logits=asked.logits.new_tensor(sure)[:, None], val_logits=asked.val_logits[:0])
    right = right._replace(val_labels=asked.val_labels[:0], val_patients=())
    found = site_figures(answers_of(right), right, READ, (0.9,), 0.1)
    assert (found["misdetection"], found["misdetection_fedee"], found["reason"]) == (None, 1.0, "no_errors")
    assert found["refer"]["0.9"]["with_doctor"] == 0
    assert found["refer"]["0.9"]["validated"] is None
    assert (found["sets"]["whole"], found["sets"]["calibration"]) == (1, 0)  # nothing to calibrate on rules nothing out


def made_results(metric="accuracy"):
    def site(images, accuracy, misdetection):
        return {"images": images, "accuracy": accuracy, "balanced_accuracy": 0.5, "misdetection": misdetection}

    runs = {
        "1": {"sites": {"a": site(90, 0.8, None), "b": site(10, 0.4, 0.7)}},
        "2": {"sites": {"a": site(90, 0.6, 0.6), "b": site(10, 0.4, 0.8)}},
    }
    plan = {"rows": ["fedee"], "sites": ["a", "b"], "metric": metric, "reference": "fedee", "splits": "once"}
    return FedeeResults(Benchmark(plan, {"fedee": {1: {}, 2: {}}}), {"runs": {"fedee": runs}})


def test_means_over_sites_and_seeds():
    results = made_results()
    accuracy, detection = results.figure("accuracy"), results.figure("misdetection")
    by_size = results.over_seeds("fedee", accuracy)
    assert by_size.values == pytest.approx({1: 0.76, 2: 0.58})
    assert by_size.cell() == "0.670 ± 0.090"
    assert results.over_seeds("fedee", accuracy, 1.0).values == pytest.approx({1: 0.6, 2: 0.5})
    some = results.over_seeds("fedee", detection)
    assert some.values == pytest.approx({1: 0.7, 2: 0.62})
    assert (some.missing, some.cells) == (1, 4)
    assert results.worst("fedee", accuracy, True) == ("b", [0.4, 0.4])
    assert (
        made_results("balanced_accuracy").over_seeds("fedee", made_results("balanced_accuracy").figure("accuracy")).mean
        == 0.5
    )
    assert results.over_seeds("fedprox", accuracy).cell() == spoken([])
