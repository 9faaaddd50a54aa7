"""The words of the work list: the same keys in every language, all of them used, and none left in the template."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import shutil
import string
import subprocess

import pytest

from fedretina.data.decode import read_pixels
from fedretina.errors import DataError
from fedretina.evaluation.bootstrap import exact_interval
from fedretina.evaluation.figures import FigureInterval, Triage
from fedretina.evaluation.verdict import FEDERATED, OWN, TWIN
from fedretina.gate import gate
from fedretina.prediction import predictor, worklist_page
from fedretina.prediction.eyes import by_pattern
from fedretina.prediction.phrases import LANGUAGES, Phrases, phrases
from fedretina.report import card
from fedretina.report.card_words import promise_words, set_sentences, share_words, verdict_words
from fedretina.report.page_templates import TEMPLATES
from fedretina.report.text import percent
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import ImageSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.uncertainty.referral import ReferralReason, ReferralThreshold

FOLDER = TEMPLATES.parents[1] / "prediction" / "languages"


def names(phrase):
    return sorted(name for _, name, _, _ in string.Formatter().parse(phrase) if name)


def test_every_file_is_a_language_that_can_be_asked_for():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phrase_is_in_every_language_with_what_stands_in_it(language):
    english, other = phrases("en"), phrases(language)
    assert other.keys() == english.keys()
    for key, phrase in english.items():
        assert other[key].strip() == other[key] != "", key
        assert names(other[key]) == names(phrase), key


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_a_translation_is_none_that_was_forgotten(language):
    english, other = phrases("en"), phrases(language)
    long = [key for key, phrase in english.items() if len(re.findall(r"\b[a-z]{2,}(?![a-z]*\})", phrase)) > 2]
    assert [key for key in long if other[key] == english[key]] == []


def test_no_phrase_is_kept_that_nothing_says():
    used = (TEMPLATES / "worklist.html.j2").read_text() + (TEMPLATES / "worklist.js").read_text()
    used += inspect.getsource(worklist_page) + inspect.getsource(Phrases)
    said_elsewhere = ("reason.", "grade.", "u.", "said.", "part.", "drift.", "eye.", "eyes.", "language")
    idle = [key for key in phrases("en") if not key.startswith(said_elsewhere) and key.removesuffix(".one") not in used]
    assert idle == []


def test_reasons_and_grades_of_presets_are_known():
    say = Phrases("de")
    for reason in ReferralReason.__args__:
        assert say.reason(reason)
    assert say.grade("no_dr") == "keine DR"
    assert say.grade("ours") == "ours"
    assert {grade for name in ("icdr5_ungradable", "normal_3stages") for grade in SCHEMES[name].grades} <= {
        key.removeprefix("grade.") for key in phrases("en")
    }


def test_no_words_stand_in_the_template():
    text = (TEMPLATES / "worklist.html.j2").read_text()
    text = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", " ", text, flags=re.DOTALL)
    text = re.sub(r"<(style|script)>.*?</\1>", " ", text, flags=re.DOTALL)
    for name in ("alt", "aria-label", "title", "placeholder", "value"):
        for found in re.findall(rf'\b{name}="([^"]*)"', text):
            assert not re.search(r"[a-z]{2,} [a-z]", found), found
            assert name == "value" or not re.search("[A-Za-z]", found), found
    plain = re.sub(r"<[^>]*>", " ", text)
    left = [word for word in re.findall(r"[^\W\d_]+", plain) if word not in {*"JKAUNXEFOMSu"}]
    assert left == []


def test_no_words_stand_in_the_script():
    script = re.sub(r"(?m)//.*$", "", (TEMPLATES / "worklist.js").read_text())
    literals = [one or two for one, two in re.findall(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', script)]
    said = [one for one in literals if re.search(r"[a-z]{2,} [a-z]{2,}", one) and one != "use strict"]
    selectors = {"input, select", "li:not([hidden]) figure.photo"}
    assert set(said) <= selectors


def limits():
    """What a card says of a model that refers nearly all, and of one that was not tested and refers nobody by grade."""
    scheme, threshold = GradingScheme(grades=("a", "b")), ReferralThreshold(0.5, "measured", 40, 10, 8, 5)
    triage = Triage(exact_interval(37, 37), None, None, None, None)
    orders = (None, FigureInterval(0.7, 0.6, 0.8, 100), FigureInterval(0.6, 0.4, 0.8, 100))
    found = [card._limits(scheme, threshold, "fitted", triage, order) for order in orders]
    return {*itertools.chain(*found, card._limits(scheme, threshold, "fitted", None, None))}


def _ours(kind):
    """Whether a modality is the product's own; those of other packages keep their English name."""
    return kind.__module__.startswith("fedretina.")


def _fault(data, path):
    """What the list says of a file that cannot be read."""
    path.write_bytes(data)
    with pytest.raises(DataError) as error:
        read_pixels(path)
    return f"the file {str(error.value).removeprefix(str(path)).strip()}"


def test_what_card_and_gate_say_is_translated(tmp_path):
    """Constants of other files, with the same words; one that is changed there must be changed in every language."""
    constants = [
        card.NOT_A_DEVICE,
        *filter(None, card.THRESHOLD_WORDS.values()),
        *filter(None, card.TEMPERATURE_WORDS.values()),
        *card._changed(["train-0001"]),
        *card._changed(["train-0001", "train-0002"]),
        *card._seen({"sets": ["aptos2019"]}, ["aptos2019"]),
        *limits(),
        *(_fault(data, tmp_path / "file") for data in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"words")),
        *by_pattern(["a1.png", "b.png", "c.png"], r"(?P<patient>a)").how,
        *itertools.chain(
            *([*card._not_intended(kind), card._made(kind)] for kind in ImageSettings.choices().values() if _ours(kind))
        ),
        card.UNMEASURED,
        card.GATED,
        card._TRUTH,
        *(rule.words for rule in gate._RULES.values()),
        *(fact.words for fact in gate._FACTS.values()),
        gate._UNLIKE,
        predictor.NOT_FINITE.words,
    ]
    for language in LANGUAGES:
        for sentence in constants:
            assert Phrases(language).said(sentence).language == language, sentence


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_cards_of_earlier_versions_say_is_translated(language):
    for sentence in (
        "Not for other sites, cameras or ways of taking photographs than those of this site, nor for OCT or any other "
        "kind of image.",
        "It knows no disease but the one that the grades describe. The best grade does not mean a healthy eye.",
        "The uncertainty tells how little the model has to go on. It does not notice every strange image: by itself it "
        "may be sure of one that is no retina at all.",
        "It learned from drawn images of no real eye. What it says of a real photograph means nothing.",
        "An image unlike those that this site trained on counts as doubtful. That notices other kinds of images and "
        "most spoiled photographs, other cameras at some sites only, and a disease that nobody graded hardly ever.",
    ):
        assert Phrases(language).said(sentence).language == language, sentence


def test_a_sentence_with_a_name_in_it_keeps_the_name_and_an_unknown_one_stays_english():
    say = Phrases("de")
    found = say.said("Photographs were joined into patients by the pattern ^(a.b).")
    assert found == ("Fotos wurden nach dem Muster ^(a.b) zu Patienten zusammengeführt.", "de")
    assert say.said("Nobody knows this one.") == ("Nobody knows this one.", "en")


def verdicts():
    """A record for each sentence that `verdict_words` can say."""
    shares = itertools.product(
        ("gained", "lost", "none"), (True, False), ("referable_auc", "auc"), (OWN, TWIN), ("none", "file")
    )
    for outcome, shared, measure, rival, start in shares:
        low, high = {"gained": (0.001, 0.05), "lost": (-0.2, -0.1), "none": (-0.01, 0.03)}[outcome]
        test = {
            "models": {name: {measure: 0.9} for name in (FEDERATED, OWN, TWIN)},
            "differences": {rival: {measure: {"low": low, "high": high}}},
            "images": 1200,
            "patients": 1 if start == "none" else 37,
        }
        values = {FEDERATED: 0.9, OWN: 0.8, TWIN: None}
        for reason in ("better", "not_better", "too_few_patients", "undefined", "only_one"):
            kept = rival if reason == "better" else FEDERATED
            validation = {"values": {**values, rival: 0.95}, "patients": 30}
            one = {"rival": rival, "start": start, "measure": measure, "shared": shared, "outcome": outcome}
            yield {**one, "test": test, "kept": kept, "reason": reason, "validation": validation}
        no_interval = {**test, "differences": {rival: {measure: {"low": None, "high": None}}}}
        yield {**one, "test": no_interval, "kept": FEDERATED, "reason": "undefined", "validation": validation}
    yield {**one, "rival": None, "test": test, "kept": FEDERATED, "reason": "only_one", "validation": validation}


def cards():
    """Cards that say together whatever stands in `verdict_words`, `promise_words` and `set_sentences`."""
    share = {"k": 34.0, "n": 37.0, "value": 0.919, "low": 0.781, "high": 0.983}
    for verdict in verdicts():
        yield {"verdict": verdict, "model": FEDERATED}
    asked = {"missed": 0.05, "sure": 0.9, "patients": 12, "needed": 45, "passed": 1, "allowed": 2}
    for reason, threshold in (
        ("kept", None),
        ("kept", 0.123),
        ("too_few_patients", None),
        ("no_referable_grades", None),
    ):
        yield {"promise": {**asked, "reason": reason, "threshold": threshold}}
    for reason, threshold in (("drawn", None), ("drawn", 0.123), ("few_others", None), ("another_model", None)):
        yield {"promise": {**asked, "reason": reason, "threshold": threshold, "others": 60, "share": 30 / 42}}
    for ordered, limit in itertools.product((True, False), (None, 0.2)):
        rule = {"wrong": 0.1, "patients": 30, "ordered": ordered, "limit": limit}
        yield {"sets": {**rule, "test": {"held": share, "size": 1.74}}}


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_verdict_promise_and_sets_are_translated_with_their_numbers(language):
    """Every word of them: what stands in a sentence is looked up as well."""
    say = Phrases(language)
    words = [(*verdict_words(card), *promise_words(card), *set_sentences(card)) for card in cards()]
    sentences = {sentence for said in words for sentence in said}
    assert len(sentences) > 60
    for sentence in sentences:
        found = say.said(sentence)
        assert found.language == language, sentence
        assert (
            re.findall(r"\b(?:the|model|your|with|patients?\b(?<=of patients)|grades of|head)\b", found.text) == []
        ), found.text
        decimals = re.findall(r"\d[.,]\d+", sentence)
        assert sorted(one.replace(".", say.phrase("decimal")) for one in decimals) == sorted(
            re.findall(r"\d[.,]\d+", found.text)
        ), found.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_u_is_is_said_for_every_row(language):
    asked = {Experiment.resolve({"row": name}).evaluation.estimator for name in ROWS}
    assert [name for name in asked if not Phrases(language).has(f"u.{name}")] == []


def test_numbers_follow_the_language_and_one_has_a_form_of_its_own():
    german, english = Phrases("de"), Phrases()
    assert (german.number(0.1234, 3), english.number(0.1234, 3)) == ("0,123", "0.123")
    assert (german.percent(0.0155), english.percent(1.0)) == ("1,6 %", "100 %")
    assert [english.percent(share) for share in (0.0, 0.0002, 0.0033, 0.9967, 0.9998)] == [
        "0 %",
        "< 0.1 %",
        "0.3 %",
        "99.7 %",
        "> 99.9 %",
    ]
    assert english("summary.photographs", 1) == "1 photograph"
    assert english("summary.photographs", 2) == "2 photographs"


COUNTS = [(k, n) for n in (1, 3, 7, 8, 37, 40, 200, 400, 1000) for k in range(n + 1)] + [(1, 5000), (4999, 5000)]
"""Shares with ties at either end and in between, and with ends that would be rounded away."""


def test_a_share_is_the_same_number_on_the_card_the_work_list_and_the_report():
    say = Phrases()
    for k, n in COUNTS:
        told = percent(k / n).replace("\u00a0", " ")
        share = {"k": k, "n": n, "value": k / n, "low": 0.0, "high": 1.0}
        assert share_words(share) == f"{k} of {n} ({told}; 95 % interval 0 to 100 %)"
        assert say.percent(k / n) == told.replace("below", "<").replace("above", ">")
        assert (told == "0 %", told == "100 %") == (k == 0, k == n)


def test_what_is_asked_and_what_a_share_lies_below_are_said_as_they_are():
    asked = {"missed": 0.025, "sure": 0.925, "patients": 12, "needed": 45, "passed": 1, "allowed": 2}
    drawn = {**asked, "reason": "drawn", "threshold": 0.123, "others": 60, "share": 0.9999}
    first, second, third, _ = (Phrases("de").said(one).text for one in promise_words({"promise": drawn}))
    assert "höchstens 2,5 %" in first
    assert "zu 92,5 % sicher" in first
    assert "zu > 99,9 % von" in second
    assert "mindestens 12,3 % ist" in third


@pytest.mark.skipif(shutil.which("node") is None, reason="no node, which runs the page's script without a browser")
def test_the_script_of_the_page_rounds_shares_by_the_same_rule():
    script = (TEMPLATES / "worklist.js").read_text()
    rule = re.search(r"(?ms)^  function percent\(k, n\) \{.*?^  \}$", script)[0]
    run = f"""
        const words = {{ decimal: "," }};
        const say = (key, values) => values.value + " %";
        {rule}
        console.log(JSON.stringify({json.dumps(COUNTS)}.map(([k, n]) => percent(k, n))));
    """
    done = subprocess.run(["node", "-e", run], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [Phrases("de").percent(k / n) for k, n in COUNTS]
