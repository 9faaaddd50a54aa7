"""A card in sentences, and its page for clinicians."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedretina.evaluation.verdict import FEDERATED
from fedretina.plurals import counted
from fedretina.report.text import in_percent, threshold_places
from fedretina.report.verdict_words import kept_sentence, verdict_sentence
from fedretina.settings.images import modality_of, samples_words
from fedretina.settings.scheme import in_words

HEADS: Mapping[str, str] = {
    "own": "this site's own head",
    "federated": "the head from the sums of all sites",
    "both": "the mean of the two",
}
"""Heads from sums, in words."""

NOT_PROMISED: Mapping[str, str] = {
    "too_few_patients": "No promise can be given of how many ill patients pass: {patients} patients with referable "
    "disease are in the validation split, and {needed} are needed for what the site asks.",
    "drawn": "No promise: {patients} ill patients of this site's own stand behind it where {needed} are needed; this "
    "threshold comes for {share} % from the other hospitals' patients.",
    "few_others": "No promise can be given of how many ill patients pass, and no threshold is drawn towards the other "
    "hospitals' patients: {patients} patients with referable disease are in the validation split where {needed} are "
    "needed, and counts of {others} of theirs came.",
    "another_model": "No promise can be given of how many ill patients pass: {patients} patients with referable "
    "disease are in the validation split where {needed} are needed; no threshold is drawn towards the other hospitals' "
    "patients, since this model is not the one trained with them.",
    "no_referable_grades": "No promise can be given of how many ill patients pass, since the site's scheme names no "
    "referable grades.",
}

DRAWN_KEPT = (0.905, 1.0)
"""Least and largest share of draws in which such a threshold let no more pass than asked, at a public set taken
as a site, whose own patients gave none; a test holds it against what docs/promise.md stores."""
_KEPT_WORDS = (
    "Such thresholds were measured on public sets of real photographs, each taken as a hospital with few patients, for "
    "at most 5 or 10 % of the ill to pass and to be 90 % sure of it: no more passed than asked in "
    f"{100 * DRAWN_KEPT[0]:g} to {100 * DRAWN_KEPT[1]:g} % of the draws, by the set. No clinic has measured it."
)

_ASKED = ("validation", "test")

_FIGURES = (
    ("load", "Patients that would be referred"),
    ("gated_load", "With the gate as well: those any of whose {samples} it stops or calls unusual"),
    ("doubt_load", "Patients that would be referred for doubt alone"),
    ("missed", "Patients with referable disease that would be missed"),
    ("sensitivity", "Patients with referable disease that would be referred"),
    ("specificity", "Patients without it that would not be referred"),
)


def pretrained_words(encoder: Mapping[str, Any]) -> str:
    """What an encoder had learned before the run, in a sentence; `encoder` is the card's."""
    name = encoder.get("name")
    trained = ""
    if "pretrained_on" in encoder:
        form = f"form: {encoder['layout']}; " if "layout" in encoder else ""
        trained = f"was pre-trained on: {encoder['pretrained_on']} ({form}licence: {encoder['licence']})."
    if "words" in encoder:
        before = f" What that run began with {trained}" if trained else ""
        return f"Its encoder, {name}, began as an earlier run left it: {encoder['words']}.{before}"
    if trained:
        notes = "".join(f" {note[0].upper()}{note[1:]}." for note in encoder.get("notes", ()))
        return f"Its encoder, {name}, {trained}{notes}"
    return f"Its encoder, {name}, was not pre-trained." if encoder.get("source") == "none" else ""


def order_words(card: Mapping[str, Any]) -> list[str]:
    """How well a card's doubt puts wrong answers first, in sentences; older cards do not say."""
    doubt = card.get("doubt")
    if doubt is None:
        return []
    own, other = (_number(doubt[name]) for name in ("estimator", "unlikely"))
    used = (
        f"Its doubt is 1 less the chance of the grade that it answers, which found wrong answers on validation better "
        f"than the u of its method (AUROC {other} against {own}); where this card says u, it is that."
        if doubt["used"] == "unlikely"
        else f"Its doubt is the u of its method; 1 less the chance of its answer would be the other choice (AUROC for "
        f"wrong answers on validation {own} against {other})."
    )
    order = doubt["order"]
    if order is None or order["value"] is None:
        return [used, "Whether it puts wrong answers first cannot be told from the test images."]
    told = f"On the test images its AUROC for wrong answers is {order['value']:.2f}"
    if order["low"] is None:
        alike = order["value"] in (0, 1)
        why = "every draw of patients gives the same" if alike else "too few patients to tell an order from none"
        return [used, f"{told}, with no interval: {why}."]
    told += f" (95 % interval {order['low']:.2f} to {order['high']:.2f}; 0.5 says nothing)"
    if order["low"] > 0.5:
        return [used, f"{told}: wrong answers tend to come first."]
    wrong = "it even puts right answers first" if order["high"] < 0.5 else "no order can be seen in it"
    return [used, f"{told}: {wrong}."]


_UNUSUAL = (
    "So one that is among the site's least usual, as those of up to {} % of its own patients are, is referred as well, "
    "with its grade, as unusual for this site; those of another device that are like the site's own still pass. "
)


def look_words(card: Mapping[str, Any]) -> list[str]:
    """What is looked for before an answer, in sentences; cards of models without a gate say that nothing is."""
    look, samples = card.get("look"), samples_words(card["settings"])
    if look is None:
        return [f"Nothing looks at {samples} before they are answered: this model has no gate."]
    usual = look["gate"].get("usual")
    kind = modality_of(card["settings"])
    said = [
        f"Before it answers {samples}, a gate looks at each.",
        # Of a signal there is no picture to look at.
        ""
        if kind is not None and kind.signal
        else "One of another kind is refused; one that is too dark, overexposed, blurred or covered is referred as "
        "ungradable, both without a grade.",
        "One unlike this site's own, such as another device's, is referred with that mark, whatever its grade.",
    ]
    if look["gate"]["limit"] is None:
        said.append("This site has too few images to tell how its own look, so only what is odd anywhere is stopped.")
    else:
        said.append(
            f"It marks another device only where this site's own {samples} are much alike. "
            + (_UNUSUAL.format(_asked(usual["share"])) if usual else "")
            + f"Have some {samples} of a new device graded by a doctor before the model answers its patients."
        )
    own = look["own"]
    if own["images"]:
        more = f" and calls {own['unusual']} more unusual" if usual else ""
        said.append(f"Of the site's own test images it stops {own['stopped']} of {own['images']}{more}.")
    spoiled = [
        f"{name}: {one['stopped']} of {one['images']} stopped, {one['doubtful']} doubtful by the model itself"
        for name, one in look["spoiled"].items()
    ]
    if spoiled:
        said.append(f"Tried on validation images that were spoiled on purpose: {'; '.join(spoiled)}.")
    return [one for one in said if one]


def not_promised(promise: Mapping[str, Any]) -> str:
    """Why a promise cannot be given."""
    share = {"share": in_percent(promise["share"])} if "share" in promise else {}
    return NOT_PROMISED[promise["reason"]].format(**{**promise, **share})


def drawn_note(card: Mapping[str, Any]) -> list[str]:
    """That no promise stands behind a threshold, where it is drawn towards other hospitals' patients; else nothing."""
    promise = card.get("promise") or {}
    return [not_promised(promise)] if promise.get("reason") == "drawn" else []


def promise_words(card: Mapping[str, Any]) -> list[str]:
    """What the site asked of its referral, what it takes, and how it did on the test patients; [] if nothing was."""
    promise = card.get("promise")
    if promise is None:
        return []
    asked = (
        f"This site asks that at most {_asked(promise['missed'])} % of its patients with referable disease pass "
        f"without being referred, and to be {_asked(promise['sure'])} % sure of it."
    )
    if promise["reason"] == "drawn":
        return [asked, not_promised(promise), _drawn_words(promise), _KEPT_WORDS]
    if promise["reason"] != "kept":
        return [asked, not_promised(promise)]
    stands = (
        f"{promise['patients']} such patients of validation stand behind it, of whom {promise['passed']} pass and "
        f"{promise['allowed']} may."
    )
    if promise["threshold"] is None:
        return [asked, f"The other reasons to refer keep that by themselves: {stands}"]
    return [
        asked,
        f"So an image is referred as well when its chance of referable disease is {_least(promise['threshold'])} % "
        f"or more, as the model gives it before its temperature: {stands}",
        "It holds for patients like those of validation; another device or other patients are not among them.",
    ]


def _drawn_words(promise: Mapping[str, Any]) -> str:
    """What is done with a threshold that is drawn towards the other hospitals'."""
    if promise["threshold"] is None:
        return "By that threshold no chance of disease refers by itself, beside the other reasons to refer."
    return (
        f"By that threshold an image is referred as well when its chance of referable disease is "
        f"{_least(promise['threshold'])} % or more, as the model gives it before its temperature."
    )


def set_sentences(card: Mapping[str, Any]) -> list[str]:
    """What the sets of grades promise, and how they did; older cards have none."""
    rule = card.get("sets")
    if rule is None:
        return []
    if rule["limit"] is None:
        return [
            f"No sets of grades are given: {rule['patients']} gradable validation patients are too few to say which "
            f"grades hold the true one for {_asked(1 - rule['wrong'])} % of patients."
        ]
    kind = "neighbouring grades" if rule["ordered"] else "grades"
    said = [
        f"Beside its grade it names a set of {kind} that holds the true one. On average over hospitals all sets of a "
        f"patient do for {_asked(1 - rule['wrong'])} % of patients or more; here it rests on {rule['patients']} "
        "validation patients, and may be less."
    ]
    if rule["test"] is not None:
        said.append(
            f"Of the test patients it was {share_words(rule['test']['held'])}; a set had {rule['test']['size']:.1f} "
            "grades on average."
        )
    return said


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def share_words(share: Mapping[str, float] | None) -> str:
    """A share with its interval in words: "34 of 120 (28 %; 95 % interval 21 to 37 %)"."""
    if share is None:
        return "cannot be told"
    value, low, high = (in_percent(share[name]) for name in ("value", "low", "high"))
    return f"{share['k']:.0f} of {share['n']:.0f} ({value} %; 95 % interval {low} to {high} %)"


def threshold_words(card: Mapping[str, Any]) -> str:
    """How an image is called doubtful, and how that did on validation."""
    referral, seen = card["referral"], card["referral"]["validation"]
    right = seen["images"] - seen["errors"]
    measured = (
        f"On this site's {seen['images']} validation images this marked {seen['caught']} of {seen['errors']} wrong "
        f"answers and {seen['alarms']} of {right} right ones."
    )
    if referral["threshold"] <= 0:
        return f"Every image counts as doubtful. {measured}"
    shown = f"{referral['threshold']:.{threshold_places(referral['threshold'])}f}"
    return f"An image counts as doubtful when its u is {shown} or more. {measured}"


def gate_words(card: Mapping[str, Any]) -> str:
    """What becomes of images that are unlike the site's own; "" where the model does not ask."""
    gate = card.get("gate")
    if gate is None:
        return ""
    if not gate["measures"]:
        return " This site's images do not tell how unlike them another is, so none counts as strange."
    own = " and ".join(
        f"{gate[name]['beyond']} of {gate[name]['images']} {name} images" for name in _ASKED if name in gate
    )
    return (
        " Where an image is unlike those that the site trained on (another kind of image, a spoiled one, often another "
        f"device's), u is 1 and it is doubtful, however sure its grade seems. Of the site's own, {own} are."
    )


def refers_by_chance(card: Mapping[str, Any]) -> bool:
    """Whether an image's chance of referable disease may refer it by itself."""
    return (card.get("promise") or {}).get("threshold") is not None


def purposes(card: Mapping[str, Any]) -> list[str]:
    """What a model is for and what not, as lines of Markdown; an exported model's page has them too."""
    for_, not_for = _bullets(card["intended_use"]), _bullets(card["not_intended"])
    return ["## What it is for", "", *for_, "", "## What it is not for", "", *not_for, ""]


def card_page(card: Mapping[str, Any]) -> str:
    """Render a card, one page.

    Args:
        card: As `build_card` gives it.

    Returns:
        Markdown, with a final newline.
    """
    referral = card["referral"]
    referable = [in_words(grade) for grade in card["scheme"]["referable"]]
    lines = [
        f"# Model card: {_escaped(card['site'])}",
        "",
        f"**{card['notice']}**",
        "",
        *purposes(card),
        *_compared(card),
        "## When it refers",
        "",
        "A patient is referred when any image is. An image is referred when one of these holds:",
        "",
        *_bullets(
            [
                f"its grade is {_escaped(', '.join(referable))}" if referable else "",
                f"its grade is {_escaped(in_words(card['scheme']['ungradable']))}"
                if card["scheme"]["ungradable"]
                else "",
                "it is doubtful",
                "its chance of referable disease is more than the site lets pass" if refers_by_chance(card) else "",
                "it cannot be read",
                "the gate stops it" if "look" in card else "",
                "it is among the least usual for this site" if "usual" in card.get("look", {}).get("gate", {}) else "",
            ]
        ),
        "",
        " ".join(look_words(card)),
        "",
        threshold_words(card) + " u runs from 0, sure, to 1, the model has nothing to go on." + gate_words(card),
        "",
        *[
            line
            for words in (order_words(card), promise_words(card), set_sentences(card))
            if words
            for line in (" ".join(words), "")
        ],
        "## What to expect",
        "",
        *_expected(card, referral["test"]),
        "",
        "## Limits",
        "",
        *_bullets(card["limits"]),
        "",
        "## Where it comes from",
        "",
        f"Method {card['method']} (row {card['row']}), run {_escaped(card['run'])}"
        + (f", model of {card['chosen']}" if card.get("model", FEDERATED) == FEDERATED else "")
        + f", fedretina {card['fedretina']}. "
        + _images(card)
        + _head(card),
        "",
        *_pretrained(card),
        f"Temperature {card['temperature']['value']:.2f} on the probabilities shown. "
        + f"Model {card['model_digest'][:12]}, data {card['data_fingerprint'][:12]}.",
    ]
    return "\n".join(lines) + "\n"


def verdict_words(card: Mapping[str, Any]) -> list[str]:
    """The verdict of a card in sentences; cards of runs that compare nothing, and older ones, have none."""
    verdict = card.get("verdict")
    if not verdict:
        return []
    words = [verdict_sentence(verdict), kept_sentence(verdict)]
    if card["model"] != verdict["kept"]:
        words.append("This is the model trained with the others, which is not the one that is kept.")
    return words


def _compared(card: Mapping[str, Any]) -> list[str]:
    words = verdict_words(card)
    return [] if not words else ["## The verdict", "", _escaped(" ".join(words)), ""]


def _expected(card: Mapping[str, Any], figures: Mapping[str, Any] | None) -> list[str]:
    if figures is None:
        return ["Nothing is known: the test split was not read."]
    table = ["| on this site's test patients | |", "|---|---|"]
    samples = samples_words(card["settings"])
    table += [
        f"| {words.format(samples=samples)} | {share_words(figures[name])} |"
        for name, words in _FIGURES
        if name in figures
    ]
    grading = card["test"]
    if grading is None:
        return table
    kappa = "" if grading["kappa"] is None else f", quadratic kappa {round(grading['kappa'], 2) + 0.0:.2f}"
    return [
        *table,
        "",
        f"Of {grading['images']} test images of {grading['patients']} patients, {in_percent(grading['accuracy'])} % "
        f"got the right grade{kappa}." + _escaped(_support_words(grading)),
    ]


def _support_words(grading: Mapping[str, Any]) -> str:
    """Each grade's AUC with its patients, and which grades are too few for the mean; older cards do not say."""
    support = grading.get("support")
    if support is None:
        return ""
    listed = ", ".join(
        f"{in_words(one['grade'])} {_number(one['value'])} ({counted(one['patients'], 'patient', 'patients')}"
        f"{'' if one['supported'] else ', too few'})"
        for one in support["grades"]
    )
    mean = (
        f"The mean over the grades with {support['least']} patients or more is {support['auc']:.2f}."
        if support["auc"] is not None
        else f"No grade has {support['least']} patients with it and without it, so there is no mean to rely on."
    )
    return f" AUC of each grade against all others: {listed}. {mean}"


def _images(card: Mapping[str, Any]) -> str:
    counts = card["images"]
    kind = "drawn images (phantoms)" if card["synthetic"] else "images"
    alone = card["settings"]["exchange"]["personal"] == "everything"
    if "sums" in card:
        alone = card["sums"]["answer"] == "own"
    others = "" if alone else ", beside those of the other sites"
    return (
        f"It learned from {counts['train']} {kind} of this site{others}; {counts['val']} set the threshold and "
        f"{counts['test']} tested it."
    )


def _pretrained(card: Mapping[str, Any]) -> list[str]:
    told = pretrained_words(card.get("encoder", {}))  # older cards do not say
    return [_escaped(told), ""] if told else []


def _head(card: Mapping[str, Any]) -> str:
    """Which head from sums answers, and why; nothing of a model that was trained."""
    if "sums" not in card:
        return ""
    answer, losses = card["sums"]["answer"], card["sums"]["validation_nll"]
    asked = card["settings"]["phases"][-1]["sums"]["answer"]
    why = "which the job asks for" if asked == answer else "which answered the validation images best"
    listed = ", ".join(f"{HEADS[name]} {losses[name]:.3f}" for name in HEADS)
    return f" It answers by {HEADS[answer]}, {why} (negative log likelihood: {listed})."


def _bullets(sentences: list[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences if sentence]


def _asked(share: float) -> str:
    """A share that somebody chose, in per cent: as it was chosen, and not rounded like one that was measured."""
    return f"{100 * share:g}"


def _least(share: float) -> str:
    """A threshold in per cent, to one place; never 0, which everything reaches."""
    value = 100 * share
    return f"{value:.{threshold_places(value, 1)}f}"


def _escaped(text: str) -> str:
    """Names are the site's own words and must not turn into Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)
