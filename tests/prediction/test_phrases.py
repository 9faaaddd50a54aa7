"""The words of the work list: the same keys in every language, all of them used, and none left in the template."""

from __future__ import annotations

import inspect
import re
import string

import pytest

from fedretina.gate import gate
from fedretina.prediction import predictor, worklist_page
from fedretina.prediction.phrases import LANGUAGES, Phrases, phrases
from fedretina.prediction.worklist_page import TEMPLATES
from fedretina.report import card
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.uncertainty.referral import ReferralReason

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
    said_elsewhere = ("reason.", "grade.", "u.", "said.", "drift.", "eye.", "eyes.", "language")
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
    left = [word for word in re.findall(r"[^\W\d_]+", plain) if word not in {*"JKAUNXEFOSu"}]
    assert left == []


def test_no_words_stand_in_the_script():
    script = re.sub(r"(?m)//.*$", "", (TEMPLATES / "worklist.js").read_text())
    literals = [one or two for one, two in re.findall(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', script)]
    said = [one for one in literals if re.search(r"[a-z]{2,} [a-z]{2,}", one) and one != "use strict"]
    selectors = {"input, select", "li:not([hidden]) figure.photo"}
    assert set(said) <= selectors


def test_what_card_and_gate_say_is_translated():
    """Constants of other files, with the same words; one that is changed there must be changed in every language."""
    constants = [
        card.NOT_A_DEVICE,
        *filter(None, card.THRESHOLD_WORDS.values()),
        *card._not_intended(),
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


def test_a_sentence_with_a_name_in_it_keeps_the_name_and_an_unknown_one_stays_english():
    say = Phrases("de")
    found = say.said("Photographs were joined into patients by the pattern ^(a.b).")
    assert found == ("Fotos wurden nach dem Muster ^(a.b) zu Patienten zusammengeführt.", "de")
    assert say.said("Nobody knows this one.") == ("Nobody knows this one.", "en")


def test_numbers_follow_the_language_and_one_has_a_form_of_its_own():
    german, english = Phrases("de"), Phrases()
    assert (german.number(0.1234, 3), english.number(0.1234, 3)) == ("0,123", "0.123")
    assert (german.percent(0.055), english.percent(1.0)) == ("5,5 %", "100 %")
    assert english("summary.photographs", 1) == "1 photograph"
    assert english("summary.photographs", 2) == "2 photographs"
