"""The card: what stands in it comes from the right split, and its page can be read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedretina.evaluation.doubt import DoubtChoice
from fedretina.evaluation.figures import FigureInterval, LabelledPredictions, triage
from fedretina.export.bundle import _metadata
from fedretina.export.card import hub_page, leaving_card
from fedretina.report.card import THRESHOLD_WORDS, LookFigures, SpoiledFigures, build_card
from fedretina.report.card_words import card_page, drawn_note, share_words, threshold_words
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import AugmentSettings, FundusSettings, ImageSettings
from fedretina.settings.plan import Plan
from fedretina.settings.scheme import GradingScheme, in_words, preset
from fedretina.settings.site import PromiseSettings
from fedretina.uncertainty.referral import referral_threshold
from fedretina.uncertainty.temperature import fit_temperature

SCHEME = preset("icdr5_ungradable")


def labelled(seed, images=120, grades=6):
    """Answers that are wrong the more often the more doubtful they are; two images per patient."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, grades, images)
    u = rng.uniform(0.05, 1, images)
    answered = np.where(rng.uniform(0, 1, images) < 0.8 * u**2, rng.integers(0, grades, images), labels)
    probabilities = np.full((images, grades), 0.4 / (grades - 1))
    probabilities[np.arange(images), answered] = 0.6
    return LabelledPredictions(probabilities, u, labels, tuple(f"p{at // 2}" for at in range(images)))


def card(**words):
    experiment = words.pop("experiment", Experiment.resolve({"row": "feduaa", "run": "secret-folder"}))
    base = {
        "experiment": experiment,
        "scheme": SCHEME,
        "run": "fedretina-1",
        "site": "site-1",
        "synthetic": False,
        "chosen": Plan.of(experiment)[3],
        "theta": {"value": 0.4, "youden": 0.3, "reason": "youden", "errors": 9, "samples": 90},
        "fingerprint": "f" * 64,
        "counts": {"train": 300, "val": 120, "test": 120},
        "model_digest": "d" * 64,
        "normalisation": "half",
        "validation": labelled(1),
        "test": labelled(2),
    }
    return build_card(**(base | words))


def test_temperature_and_threshold_come_from_validation_and_the_promise_from_test():
    validation, test = labelled(1), labelled(2)
    made = card()
    threshold = referral_threshold(validation.uncertainty, validation.wrong)
    expected = triage(test, threshold.value, SCHEME)
    assert threshold.reason == "measured"
    assert made["referral"]["threshold"] == threshold.value
    assert made["referral"]["reason"] == "measured"
    assert made["referral"]["validation"]["images"] == 120
    assert made["referral"]["validation"]["caught"] == threshold.caught
    assert made["referral"]["test"]["load"] == expected.load._asdict()
    assert made["referral"]["test"]["missed"] == expected.missed._asdict()
    assert made["temperature"] == fit_temperature(validation.probabilities, validation.labels)._asdict()
    assert made["test"]["accuracy"] == pytest.approx(1 - test.wrong.mean())
    assert made["test"]["patients"] == 60


def test_the_threshold_is_not_theta():
    made = card(theta={"value": 0.123})
    assert made["theta"]["value"] == 0.123
    assert made["referral"]["threshold"] != 0.123


def test_it_says_where_it_comes_from_and_json_holds_it():
    made = card()
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert "not a medical device" in made["notice"]
    wanted = {
        "site": "site-1",
        "run": "fedretina-1",
        "row": "feduaa",
        "method": "FedUAA",
        "chosen": "train-0003",
        "estimator": "evidence",
        "tau": 0.05,
        "synthetic": False,
        "images": {"train": 300, "val": 120, "test": 120},
        "data_fingerprint": "f" * 64,
        "model_digest": "d" * 64,
        "normalisation": "half",
        "grades": list(SCHEME.grades),
        "transforms_digest": FundusSettings().digest(),
    }
    assert {name: made[name] for name in wanted} == wanted
    assert GradingScheme.model_validate(made["scheme"]) == SCHEME
    again = Experiment.model_validate(made["settings"])
    assert again == Experiment.resolve({"row": "feduaa"})  # without the run's name and any path


def test_patients_do_not_stand_in_it():
    patients = tuple(f"Jane-Doe-{at}" for at in range(120))
    text = json.dumps(
        card(validation=labelled(1)._replace(patients=patients), test=labelled(2)._replace(patients=patients))
    )
    assert "Jane" not in text


def test_without_a_test_split_nothing_is_promised():
    made = card(test=None)
    assert made["referral"]["test"] is None
    assert made["test"] is None
    assert any("test split was not read" in sentence for sentence in made["limits"])
    assert "Nothing is known" in card_page(made)


def test_without_referable_grades_it_says_that_a_grade_refers_nobody():
    made = card(scheme=GradingScheme(grades=SCHEME.grades, ungradable="ungradable"))
    assert any("no referable grades" in sentence for sentence in made["limits"])
    page = card_page(made)
    assert "its grade is moderate" not in page
    assert "Patients with referable disease that would be missed | cannot be told" in page


def test_a_phantom_model_says_so_and_a_real_one_does_not():
    assert any("made by a program" in sentence for sentence in card(synthetic=True)["limits"])
    assert not any("made by a program" in sentence for sentence in card()["limits"])


@pytest.mark.parametrize("modality", ["fundus", "oct", "dermoscopy", "heart_sound", "activity"])
def test_a_card_is_for_what_the_model_was_trained_on_and_for_nothing_else(modality):
    kinds = ImageSettings.choices()
    own = kinds[modality]
    unused = dict.fromkeys(AugmentSettings().unfit(own), 0)
    asked = {"row": "fedavg", "images": {"modality": modality}, "augment": unused}
    made = card(experiment=Experiment.resolve(asked))
    leaving = leaving_card({**made, "look": {"gate": {}}})
    bundle = _metadata(leaving, (3, 8, 8))
    for text in (
        " ".join(made["intended_use"]),
        " ".join(made["not_intended"]),
        card_page(made).split("## When it refers")[0],
        bundle["intended_use"],
        bundle["description"],
        bundle["task"],
    ):
        named = [name for name, kind in kinds.items() if kind.words in text]
        assert named == [modality], text
    assert ("quadratic kappa" in card_page(made)) == own.ordered
    assert ("type: kappa" in hub_page(leaving, "")) == own.ordered
    assert own.healthy in made["not_intended"][-1]
    gate = {"format": 2, "limit": 3.0, "rules": [], "usual": {"share": 0.25}, "model": "d" * 64, "tensors": "e" * 64}
    own_images = {"images": 120, "stopped": 2, "unusual": 9}
    look = LookFigures(gate, own_images, {"all": 60, "stopped": 1, "odd": 5}, {}, *np.zeros((2, 120), bool))
    for words in ({}, {"look": look}):
        page = card_page(card(experiment=Experiment.resolve(asked), synthetic=True, gate=True, **words))
        assert page.count(own.words) >= 4
        assert [name for name, kind in kinds.items() if kind.words in page] == [modality]
        assert modality == "fundus" or "photograph" not in page.lower()
        assert "camera" not in page
    assert ("too dark" in page, "With the gate as well" in page) == (not own.signal, True)
    page = hub_page(leaving, "")
    assert f"nothing but {own.words}" in page
    told = f"{page}{bundle}"
    assert "eye" in own.healthy or not any(word in told for word in (" retina", "ophthalm", "healthy eye"))


def test_a_threshold_that_was_not_measured_is_explained():
    sure = labelled(1)
    sure = sure._replace(labels=sure.predicted)
    made = card(validation=sure)
    assert made["referral"]["reason"] == "no_errors"
    assert THRESHOLD_WORDS["no_errors"] in made["limits"]
    everyone = card(validation=LabelledPredictions(*(part[:10] for part in sure)))
    assert everyone["referral"]["threshold"] == 0
    assert "Every image counts as doubtful." in threshold_words(everyone)
    assert everyone["referral"]["test"]["load"]["value"] == 1
    assert any("takes no work away" in sentence for sentence in everyone["limits"])


def test_the_page_is_one_page_of_sentences_with_the_figures():
    made = card()
    page = card_page(made)
    assert page.startswith("# Model card: site-1\n\n**Research software, not a medical device")
    load = made["referral"]["test"]["load"]
    assert f"| Patients that would be referred | {load['k']} of {load['n']} (" in page
    assert "its grade is moderate, severe, proliferative" in page
    assert f"its u is {made['referral']['threshold']:.3f} or more" in page
    assert len(page.split()) < 700
    assert page.count("{") == 0


def test_names_do_not_turn_into_markdown():
    page = card_page(card(site="site_*1*", run="a|b<i>"))
    assert "# Model card: site\\_\\*1\\*" in page
    assert "a\\|b\\<i\\>" in page


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (None, "cannot be told"),
        (
            {"k": 34, "n": 120, "value": 34 / 120, "low": 0.2048, "high": 0.373},
            "34 of 120 (28 %; 95 % interval 20 to 37 %)",
        ),
        ({"k": 0, "n": 31, "value": 0.0, "low": 0.0, "high": 0.112}, "0 of 31 (0 %; 95 % interval 0 to 11 %)"),
        (
            {"k": 1, "n": 200, "value": 0.005, "low": 0.0001, "high": 0.0275},
            "1 of 200 (0.5 %; 95 % interval below 0.1 to 3 %)",
        ),
    ],
)
def test_shares_in_words(share, words):
    assert share_words(share) == words


def test_grades_in_words():
    assert [in_words(grade) for grade in ("no_dr", "stage_1", "dme", "proliferative")] == [
        "no DR",
        "stage 1",
        "DME",
        "proliferative",
    ]


RETFOUND = {
    "source": "file",
    "sha256": "a" * 64,
    "normalisation": "imagenet",
    "layout": "RETFound (MAE)",
    "pretrained_on": "fundus photographs",
    "sets": ["eyepacs", "kermany"],
    "licence": "CC BY-NC 4.0",
    "notes": ["positions were resampled"],
}


def test_the_card_says_what_the_encoder_was_pre_trained_on_and_warns_where_the_site_is_among_it():
    made = card(start=RETFOUND, public_sets=("eyepacs",))
    assert made["encoder"] == {"name": "resnet18", **RETFOUND}
    (warning,) = [sentence for sentence in made["limits"] if "pre-trained" in sentence]
    assert "public set eyepacs" in warning
    page = card_page(made)
    assert "Its encoder, resnet18, was pre-trained on: fundus photographs (form: RETFound (MAE); licence:" in page
    assert "Positions were resampled." in page
    assert warning in page
    for own in ((), ("aptos2019",)):
        assert not [
            sentence for sentence in card(start=RETFOUND, public_sets=own)["limits"] if "pre-trained" in sentence
        ]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({"source": "none"}, "Its encoder, resnet18, was not pre-trained."),
        ({"source": "file", "words": "moco, run x"}, "began as an earlier run left it: moco, run x."),
        (
            {"source": "file", "words": "moco, run x", "pretrained_on": "eyes", "sets": [], "licence": "CC BY-NC 4.0"},
            "left it: moco, run x. What that run began with was pre-trained on: eyes (licence: CC BY-NC 4.0).",
        ),
    ],
)
def test_the_card_tells_an_encoder_from_the_seed_and_one_of_an_earlier_run(start, said):
    assert said in card_page(card(start=start))
    old = card()
    del old["encoder"]
    assert "encoder" not in card_page(old)


def ordered(low, high, used="estimator"):
    choice = DoubtChoice(used, 0.5, 0.6)
    return card(doubt=choice, order=FigureInterval((low + high) / 2, low, high, 200))


def test_it_praises_no_order_that_is_none():
    none, seen, wrong = ordered(0.4, 0.6), ordered(0.6, 0.8, "unlikely"), ordered(0.2, 0.4)
    assert "no order can be seen in it" in card_page(none)
    assert "(95 % interval 0.40 to 0.60; 0.5 says nothing)" in card_page(none)
    assert "wrong answers tend to come first" in card_page(seen)
    assert "1 less the chance of the grade that it answers" in card_page(seen)
    assert "even puts right answers first" in card_page(wrong)
    everyone = {"validation": LabelledPredictions(*(part[:10] for part in labelled(1)))}
    words = [card(order=FigureInterval(0.5, low, 0.7, 200), **everyone)["limits"] for low in (0.4, 0.6)]
    assert any(one.endswith("and no order can be seen in its doubt.") for one in words[0])
    assert any(one.endswith("but it puts them in an order.") for one in words[1])


def test_it_says_what_the_gate_stops_and_what_its_own_doubt_would_have():
    gate = {"format": 1, "limit": 3.0, "rules": [], "model": "d" * 64, "tensors": "e" * 64}
    spoiled = {"blurred": SpoiledFigures(np.array([True, True, False]), np.array([0.0, 1.0, 0.0]))}
    made = card(look=LookFigures(gate, {"images": 120, "stopped": 2}, {}, spoiled))
    assert made["look"]["spoiled"]["blurred"] == {"images": 3, "stopped": 2, "doubtful": 1}
    page = card_page(made)
    assert "Of the site's own test images it stops 2 of 120." in page
    assert "blurred: 2 of 3 stopped, 1 doubtful by the model itself" in page
    assert "Nothing looks at fundus photographs before they are answered" in card_page(card())
    assert json.loads(json.dumps(made, allow_nan=False)) == made


CURVE = (0, 0, 6, 0, 9, 0, 0, 30, 0, 0, 0, 0, 0, 0, 0, 20)


@pytest.mark.parametrize(
    ("words", "reason", "said"),
    [
        ({"curve": CURVE}, "drawn", " where 114 are needed; this threshold comes for "),
        ({"curve": ()}, "few_others", "where 114 are needed, and counts of 0 of theirs came."),
        ({"curve": CURVE, "model": "own"}, "another_model", "since this model is not the one trained with them."),
    ],
)
def test_with_too_few_patients_a_threshold_is_drawn_and_nothing_promised(words, reason, said):
    asked = PromiseSettings(missed=0.02, sure=0.9, drawn=True)
    made, plain = card(asked=asked, **words), card(asked=plain_asked(asked), **words)
    page = card_page(made)
    assert made["promise"]["reason"] == reason
    assert said in page
    assert any("No promise" in one for one in made["limits"])
    assert drawn_note(made) == [one for one in made["limits"] if one.startswith("No promise:")]
    assert drawn_note(plain) == []
    if reason == "drawn":
        share = round(100 * 30 / (30 + made["promise"]["patients"]))
        assert f"comes for {share} % from the other hospitals' patients." in page
        assert "in 90.5 to 100 % of the draws" in page
        least = made["promise"]["threshold"]
        expected = triage(labelled(2), made["referral"]["threshold"], SCHEME, least)
        assert made["referral"]["test"]["missed"] == expected.missed._asdict()
        assert expected.load.value > plain["referral"]["test"]["load"]["value"]
        leaving = leaving_card({**made, "look": {"gate": {}}})
        assert leaving["promise"] == {"threshold": least, "missed": 0.02, "sure": 0.9, "reason": "drawn"}
        assert not any(str(made["promise"]["patients"]) in one for one in leaving["limits"])
        assert "is drawn towards other hospitals' patients." in hub_page(leaving, "")
    # Who does not ask, or has enough patients, has the card as ever.
    assert card(asked=plain_asked(asked), curve=CURVE) == card(asked=plain_asked(asked))
    enough = PromiseSettings(missed=0.1, sure=0.8, drawn=True)
    assert card(asked=enough, curve=CURVE) == card(asked=plain_asked(enough))


def plain_asked(asked):
    return asked.model_copy(update={"drawn": False})


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (PromiseSettings(missed=0.02, sure=0.9), "No promise can be given of how many ill patients pass: "),
        (PromiseSettings(missed=0.1, sure=0.8), "such patients of validation stand behind it, of whom "),
        (None, "Beside its grade it names a set of neighbouring grades"),
    ],
)
def test_what_the_site_asks_of_its_referral_is_told_and_tried_on_the_test_patients(asked, words):
    made = card(asked=asked)
    assert words in card_page(made)
    assert ("promise" in made) == (asked is not None)
    least = (made.get("promise") or {}).get("threshold")
    expected = triage(labelled(2), made["referral"]["threshold"], SCHEME, least)
    assert made["referral"]["test"]["missed"] == expected.missed._asdict()
    assert ("its chance of referable disease is more than the site lets pass" in card_page(made)) == (least is not None)
    gradable = {who for who, label in zip(labelled(2).patients, labelled(2).labels, strict=True) if label < 5}
    assert made["sets"]["test"]["held"]["n"] == len(gradable)
