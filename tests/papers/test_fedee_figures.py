"""FedEE's figures of a site against slow forms, and their means over sites and seeds."""

from __future__ import annotations

from math import ceil, e

import numpy as np
import pytest
from made_asked import made_asked

from fedretina.evaluation.bootstrap import exact_interval
from fedretina_papers.asked import Read
from fedretina_papers.fedee_figures import RATES, member_figures, site_figures
from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.fedee_tables import (
    constant_table,
    estimator_tables,
    member_tables,
    personal_table,
    refer_table,
    rows_of_estimators,
    site_table,
    tuning_tables,
    undefined_table,
)
from fedretina_papers.stored import Answers, Benchmark, referral
from fedretina_papers.what_was_run import course_words

READ = Read("softmax_mean", "answer", 1.0)


def answers_of(asked, read=READ):
    answer = read.predict(asked.logits)
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
    order = np.argsort(u)
    rates = np.array([(n + 1, (~right)[order][: n + 1].sum()) for n in range(len(u))])
    assert found["aurc"] == pytest.approx((rates[:, 1] / rates[:, 0]).mean(), abs=1e-6)


def test_cases_to_refer_by_the_threshold_of_validation(asked, found):
    answers, val = answers_of(asked), READ.predict(asked.val_logits)
    order = np.argsort(val.uncertainty)
    wrong = (val.probabilities.argmax(1) != asked.val_labels)[order]
    most = max(n for n in range(1, 41) if wrong[:n].sum() <= 0.1 * n + 1e-9)
    kept = answers.uncertainty <= val.uncertainty[order][most - 1]
    expected = {"rate": 1 - kept.mean(), "accuracy": 1 - answers.wrong[kept].mean()}
    assert 0 < kept.sum() < 60
    assert found["refer"]["0.9"]["validated"] == pytest.approx(expected, abs=1e-6)


def test_sets_are_calibrated_on_validation(asked, found):
    val = READ.predict(asked.val_logits).probabilities
    scores = np.sort(1 - val[np.arange(40), asked.val_labels])
    limit = scores[ceil(41 * 0.9) - 1]
    sets = 1 - answers_of(asked).probabilities <= limit
    assert found["sets"]["size"] == pytest.approx(sets.sum(1).mean(), abs=1e-6)
    assert found["sets"]["coverage"] == pytest.approx(sets[np.arange(60), asked.labels].mean(), abs=1e-6)
    assert len(set(asked.patients)) == 30  # two images each: the interval is that of 30
    wide = exact_interval(round(30 * found["sets"]["coverage"]), 30)
    assert found["sets"]["high"] == pytest.approx(wide.high, abs=1e-6)


def test_counts_of_u_hold_every_image(found):
    assert {kind: sum(one["counts"]) for kind, one in found["u"].items()} == {
        "own": 60,
        "unseen": 20,
        "other sites": 7,
    }


def test_a_site_without_errors_or_without_validation(asked):
    sure = np.eye(4)[asked.labels] * 20
    right = asked._replace(logits=asked.logits.new_tensor(sure)[:, None], val_logits=asked.val_logits[:0])
    right = right._replace(val_labels=asked.val_labels[:0])
    found = site_figures(answers_of(right), right, READ, (0.9,), 0.1)
    assert (found["misdetection"], found["misdetection_fedee"]) == (None, 1.0)
    assert found["refer"]["0.9"]["validated"] is None
    assert found["sets"]["size"] == 4  # nothing to calibrate on rules nothing out


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
    assert results.records.values("fedee", "accuracy", e) == pytest.approx([0.76, 0.58])
    assert results.mean("fedee", "accuracy", 1.0) == pytest.approx(0.55)
    assert results.mean("fedee", "misdetection") == pytest.approx(0.66)
    assert made_results("balanced_accuracy").mean("fedee", "accuracy") == 0.5
    assert results.mean("fedprox", "accuracy") is None
    assert site_table(results, "accuracy")[2].split(" | ")[1:] == [
        "0.700 ± 0.100", "0.400 ± 0.000", "0.670 ± 0.090", "0.550 ± 0.050", "0.400 ± 0.000 (b)", "–", "– |",
    ]  # fmt: skip
    assert undefined_table(results)[2].startswith("| FedEE, FedAvg | 0.660 ± 0.040 | 1 | 4 |")


def test_each_member_alone():
    several = made_asked(members=3)
    found = member_figures(several, READ)
    assert len(found) == 3
    for member, one in enumerate(found):
        alone = several._replace(logits=several.logits[:, member : member + 1])
        answers = answers_of(alone, Read("softmax", "answer", 1.0))
        right = answers.probabilities.argmax(1) == several.labels
        assert one["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
        away = READ.predict(several.outside["unseen"].logits[:, member : member + 1]).uncertainty
        pairs = [(b > a) + 0.5 * (a == b) for a in answers.uncertainty for b in away]
        assert one["strangers"] == {"unseen": pytest.approx(np.mean(pairs), abs=1e-6)}
    assert member_figures(made_asked(members=1), READ) == []


def tabled(**sites):
    same = {"accuracy": 0.5, "balanced_accuracy": 0.25, "brier": 0.6, "nll": 1.0}
    refer = {"0.9": {"with_doctor": 0.4, "interval": None, "kept": 0.9}}
    made = {name: {**same, "constant": same, "members": [], **one} for name, one in sites.items()}
    plan = {"rows": ["fedee"], "sites": list(sites), "reference": "fedee", "splits": "once"}
    figures = {"asked": {"level": [0.9]}, "runs": {"fedee": {"1": {"sites": made, "refer": refer}}}}
    return FedeeResults(Benchmark(plan, {"fedee": {1: {"title": "FedEE"}}}), figures)


def test_the_accuracy_of_what_is_kept_weighs_by_what_is_kept():
    def site(images, rate, accuracy):
        return {"images": images, "refer": {"0.9": {"validated": {"rate": rate, "accuracy": accuracy}}}}

    results = tabled(a=site(100, 0.9, 0.5), b=site(100, 0.1, 0.9), c=site(100, 1.0, None))
    row = refer_table(results, 0.9)[2].replace("\u00a0", " ").split(" | ")
    assert row[4] == "67 %"  # of all images
    assert row[5] == "86 %"  # (10 x 0.5 + 90 x 0.9) / 100
    assert row[6].startswith("1 of 3")


def test_beside_an_answer_without_looking():
    results = tabled(a={"images": 30, "accuracy": 0.8}, b={"images": 10})
    same, ours = constant_table(results)[2:4]
    assert same.startswith("| the same answer to all | 0.500 | 0.250 | 0.600 | 1.000 |")
    assert ours.startswith("| FedEE, FedAvg | 0.725 | 0.250 |")
    assert ours.endswith("| 1 of 2 | – | – |")
    assert same.endswith("| 0 | 0 bytes |")


def test_members_are_means_by_size():
    def site(images, *accuracies):
        return {"images": images, "members": [{"accuracy": one, "strangers": {}} for one in accuracies]}

    made = member_tables(tabled(a=site(30, 0.2, 0.6), b=site(10, 0.6, 0.6)))
    assert made["accuracy"][2] == "| FedEE, FedAvg | 0.300 | 0.600 | – | – |"
    assert member_tables(tabled(a={"images": 3})) == {}


def varied(*names):
    """Rows of one site each; the accuracy is a tenth of the row's place."""

    def run(name, at):
        batch, rate = (int(name[7:9]), float(f"0.{name[12:]}")) if "_lr" in name else (32, 0.0003)
        training = {"batch_size": batch, "learning_rate": rate}
        record = {"title": name, "settings": {"training": training}, "passes": 20, "bytes_up": 4000 * (at + 1)}
        kept = {"accuracy": [0.0] * 4 + [0.5] + [0.0] * 5}
        site = {"images": 10, "accuracy": 0.1 * (at + 1), "misdetection": 0.6, "selective": kept}
        return {1: record}, {"1": {"sites": {"a": site}}}

    made = {name: run(name, at) for at, name in enumerate(names)}
    plan = {"rows": list(names), "sites": ["a"], "reference": "fedee", "splits": "once", "printed": "pamap2"}
    plan["apart"] = {name: "fedee" for name in names if "_lr" in name}
    runs = {name: one for name, (one, _) in made.items()}
    return FedeeResults(Benchmark(plan, runs), {"runs": {name: figures for name, (_, figures) in made.items()}})


def test_tables_7_to_9_set_batch_and_rate_beside_the_papers():
    made, apart = tuning_tables(varied("fedee", "fedee_b16_lr0001", "fedee_b32_lr0003"))
    rows = {line.split(" | ")[0]: line for line in made["accuracy"] if line.startswith("| ")}
    head = rows["| batch"].strip("| ").split(" | ")
    of = {batch: dict(zip(head, rows[f"| {batch}"].strip("| ").split(" | "), strict=False)) for batch in (16, 32)}
    assert of[16]["0.0001"] == "0.200"
    assert of[32]["0.0003"] == "0.300"
    assert of[16]["0.0003"] == "not run"
    assert "0.848" in rows["| 32"]  # the paper's at the code's own settings
    assert apart[0] == "accuracy 0.100"
    assert made["training passes"][-2:] == ["| 32 | not run | 20 |", ""]
    assert made["sent by all sites"][2].replace("\u00a0", " ") == "| 16 | 8.0 kB | not run |"
    assert tuning_tables(varied("fedee")) == ({}, [])


def test_what_every_estimator_took_stands_beside_what_it_gave():
    rows = rows_of_estimators()
    ran = [rows["FedEE"]["FedAvg"], rows["Temperature"]["FedAvg"]]
    made, _ = estimator_tables(varied(*ran))
    took = {line.split(" | ")[0]: line.replace("\u00a0", " ") for line in made["sent by all sites"]}
    assert took["| FedEE"].startswith("| FedEE | 4.0 kB |")
    assert took["| Temperature"].startswith("| Temperature | 8.0 kB |")
    assert took["| Backbone"].startswith("| Backbone | not run |")
    assert any(line.startswith("| FedEE | 20 |") for line in made["training passes"])


def test_table_11_sets_exits_that_travel_beside_the_others():
    lines = personal_table(varied("fedavg", "fedee", "fedee_global"))
    assert any(line.startswith("| FedEE | 1 | 0.200 | 0.840") for line in lines)
    assert any(line.startswith("| Global EE | 1 | 0.300 |") for line in lines)
    assert any(line.startswith("| MCDrop | – | not run") for line in lines)
    assert personal_table(varied("fedee")) == []


@pytest.mark.parametrize(
    ("images", "said"), [({"image_size": 64}, "64 px"), ({"length": 1000}, "1000 values a channel")]
)
def test_the_settings_name_the_size_of_pictures_and_of_signals(images, said):
    training = {"epochs": 1, "optimizer": "adam", "learning_rate": 0.001, "batch_size": 8}
    phase = {"name": "train", "rounds": 2, "training": None, "label_share": 1.0}
    network = {"encoder": "signal_cnn", "weights": {"source": "none"}}
    settings = {"images": images, "network": network, "phases": [phase], "training": training}
    run = {"title": "FedEE", "row": "fedee", "settings": settings}
    assert said in course_words(Benchmark({"rows": ["fedee"]}, {"fedee": {1: run}}), "fedee")
