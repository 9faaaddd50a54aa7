"""The pages on what stands before an answer say what is stored."""

import numpy as np
import pytest
from benchmarks import gate, gate_page, promise, promise_page, trust_page

from fedretina.report.card_words import DRAWN_KEPT, promise_words
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import PromiseSettings
from fedretina_papers.packed import read_packed


@pytest.mark.parametrize(("study", "page"), [(gate, gate_page), (promise, promise_page)], ids=["gate", "promise"])
def test_the_page_is_rendered_from_what_is_stored(study, page, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    shown = (study.ROOT / "docs" / f"{study.STORED.name.removesuffix('.jsonl.gz')}.md").read_text()
    page.write_page(study.STORED)
    assert (tmp_path / "page.md").read_text() == shown


def test_the_cards_words_of_a_drawn_threshold_are_those_that_are_stored():
    shares = [one.kept for one in promise_page.given_alone(list(read_packed(promise.STORED).values()))]
    assert (min(shares), max(shares)) == pytest.approx(DRAWN_KEPT, abs=5e-4)
    asked = {"missed": 0.2, "sure": 0.8, "patients": 12, "needed": 45, "share": 0.7, "threshold": None}
    said = promise_words({"promise": {**asked, "reason": "drawn"}})[-1]
    asked_there = " or ".join(f"{100 * one.missed:g}" for one in promise.PROMISES)
    assert f"at most {asked_there} % of the ill to pass" in said
    assert {f"be {100 * one.sure:g} % sure" in said for one in promise.PROMISES} == {True}
    assert "public sets of real photographs" in said  # the study deals public sets as sites


def test_the_doctors_page_says_what_both_studies_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(trust_page, "PAGE", tmp_path / "page.md")
    trust_page.write_page(gate.STORED, promise.STORED)
    assert (tmp_path / "page.md").read_text() == (gate.ROOT / "docs" / "before_you_trust_it.md").read_text()


def test_the_gate_was_measured_with_each_row_of_pictures():
    measured = {one["row"] for one in read_packed(gate.STORED).values()}
    assert measured == {name for name in ROWS if not Experiment.resolve({"row": name}).images.signal}


def test_the_worst_of_each_column_stands_last_and_a_broken_promise_is_bold():
    good, bad = trust_page.Share(1, 100), trust_page.Share(20, 100)
    fine = trust_page.Kept("a", "oct", good, good, good, good, good, trust_page.Share(95, 100), good, bad, 60)
    worse = fine._replace(name="b", other=bad, kept=trust_page.Share(80, 100), missed=None)
    *_, head = (line for line in trust_page.render([fine, worse]).splitlines() if line.startswith("| **the worst**"))
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [
        *("1 of 100", "**20 of 100**", "1 of 100", "1 of 100", "1 of 100", "**80 of 100**", "1 of 100"),
        "**20 of 100**",
    ]


def test_grades_that_are_missed_by_a_tenth_are_a_broken_promise():
    good = trust_page.Share(1, 100)
    site = trust_page.Kept("a", "oct", good, good, good, good, good, good, good, trust_page.Share(89.9, 100), 60)
    page = trust_page.render([site, site._replace(name="b", grades=trust_page.Share(90, 100))])
    assert [line.split("|")[-2].strip() for line in page.splitlines() if line.startswith(("| a,", "| b,"))] == [
        "**89.9 of 100**",
        "90 of 100",
    ]


def test_a_row_has_a_model_at_each_site():
    good = trust_page.Share(1, 100)
    site = trust_page.Kept("a", "oct", good, good, good, good, None, None, None, None, None)
    assert "Of 3 models that hospitals" in trust_page.render([site], [site, site._replace(name="b"), site])


def test_a_share_a_little_below_what_is_promised_is_not_rounded_up_to_it():
    shares = (0.8957, 0.9, 0.9024, 0.85, 0.05, 1)
    assert [promise_page._percent(one) for one in shares] == ["89.6 %", "90 %", "90.2 %", "85 %", "5.0 %", "100 %"]


def phantom(rng, patients):
    """Answers of a model that finds most ill patients, two images each."""
    scheme = GradingScheme(grades=("none", "mild", "moderate"), referable=("moderate",))
    labels = rng.integers(0, 3, 2 * patients)
    logits = rng.normal(size=(2 * patients, 3)) + 2 * np.eye(3)[labels]
    chances = np.exp(logits)
    chances /= chances.sum(1, keepdims=True)
    who = np.repeat(np.arange(patients), 2)
    ill = promise._by_patient(labels == 2, who)
    return promise.Answers(chances, 1 - chances.max(1), labels, who, ill, (2,), scheme)


def test_the_study_keeps_its_promise_where_sites_are_alike():
    rng = np.random.default_rng(0)
    own, *others = (phantom(rng, 400) for _ in range(3))
    found = promise.of_site(own, others, True, 60, rng)
    assert found["patients"] == 400
    promises = {(one["patients"], one["missed"]): one["given"] for one in found["drawn"] if one["rule"] == "own"}
    for one in found["drawn"]:
        few = one["given"] == 0
        if one["rule"] == "given":
            assert one["given"] == one["draws"] - promises[one["patients"], one["missed"]]
        else:
            alone = one["rule"] in ("own", "alone")
            assert few == (alone and one["missed"] == 0.05 and one["patients"] == 60)
        # 90 % of sixty draws, less four standard deviations; the others' patients are of the same kind.
        assert few or one["kept"] / one["given"] > 0.74
        assert few or one["mean_missed"] < one["missed"]
    assert all(one["held"] > 0.87 for one in found["sets"])


def test_drawn_towards_others_a_promise_is_broken_at_the_site_that_is_unlike_them():
    """One in eight of its ill patients looks healthy to its model, none of theirs, and 30 of its own are known."""
    rng, asked = np.random.default_rng(1), PromiseSettings(missed=0.1, sure=0.9)
    scheme = GradingScheme(grades=("none", "ill"), referable=("ill",))
    kept = {rule: [] for rule in ("own", "pooled", "drawn")}

    def site(patients, unseen):
        chance = np.where(rng.uniform(size=patients) < unseen, 0.2, 1.0) * rng.uniform(0.5, 1, patients)
        plain = (chance, chance < 0, np.ones(patients), [str(at) for at in range(patients)])
        return promise._Scored(chance, chance, np.sort(chance), plain, scheme)

    for _ in range(200):
        scores = [site(30, 1 / 8), *(site(60, 0) for _ in range(3))]
        for rule, found in kept.items():
            limit = promise._limit(rule, scores, asked)
            passes = np.clip((limit - np.array([0.1, 0.5])) / np.array([0.1, 0.5]), 0, 1)
            found.append(passes @ [1 / 8, 7 / 8] <= asked.missed)
    assert np.mean(kept["own"]) >= 0.84  # 90 %, less three standard deviations
    assert np.mean(kept["drawn"]) < 0.6
    assert np.mean(kept["pooled"]) < 0.05
