"""The card as a page that a clinician reads, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fedretina.settings.scheme import in_words

_FIGURES = (
    ("load", "Patients that would be referred"),
    ("doubt_load", "Patients that would be referred for doubt alone"),
    ("missed", "Patients with referable disease that would be missed"),
    ("sensitivity", "Patients with referable disease that would be referred"),
    ("specificity", "Patients without it that would not be referred"),
)


def share_words(share: Mapping[str, float] | None) -> str:
    """A share with its interval in words: "34 of 120 (28 %; 95 % interval 21 to 37 %)"."""
    if share is None:
        return "cannot be told"
    value, low, high = (_percent(share[name]) for name in ("value", "low", "high"))
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
    return f"An image counts as doubtful when its u is {referral['threshold']:.3f} or more. {measured}"


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
        "## What it is for",
        "",
        *_bullets(card["intended_use"]),
        "",
        "## What it is not for",
        "",
        *_bullets(card["not_intended"]),
        "",
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
                "it cannot be read",
            ]
        ),
        "",
        threshold_words(card) + " u runs from 0, sure, to 1, the model has nothing to go on.",
        "",
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
        f"Method {card['method']} (row {card['row']}), run {_escaped(card['run'])}, model of {card['chosen']}, "
        f"fedretina {card['fedretina']}. " + _images(card),
        "",
        f"Temperature {card['temperature']['value']:.2f} on the probabilities shown. "
        + f"Model {card['model_digest'][:12]}, data {card['data_fingerprint'][:12]}.",
    ]
    return "\n".join(lines) + "\n"


def _expected(card: Mapping[str, Any], figures: Mapping[str, Any] | None) -> list[str]:
    if figures is None:
        return ["Nothing is known: the test split was not read."]
    table = ["| on this site's test patients | |", "|---|---|"]
    table += [f"| {words} | {share_words(figures[name])} |" for name, words in _FIGURES]
    grading = card["test"]
    if grading is None:
        return table
    kappa = "" if grading["kappa"] is None else f", quadratic kappa {round(grading['kappa'], 2) + 0.0:.2f}"
    return [
        *table,
        "",
        f"Of {grading['images']} test images of {grading['patients']} patients, {_percent(grading['accuracy'])} % got "
        f"the right grade{kappa}.",
    ]


def _images(card: Mapping[str, Any]) -> str:
    counts = card["images"]
    kind = "drawn images (phantoms)" if card["synthetic"] else "images"
    others = "" if card["settings"]["exchange"]["personal"] == "everything" else ", beside those of the other sites"
    return (
        f"It learned from {counts['train']} {kind} of this site{others}; {counts['val']} set the threshold and "
        f"{counts['test']} tested it."
    )


def _bullets(sentences: list[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences if sentence]


def _percent(share: float) -> str:
    """Whole per cent; one place near the ends, where it matters most."""
    value = 100 * share
    return f"{value:.1f}" if 0 < value < 10 or 90 < value < 100 else f"{value:.0f}"


def _escaped(text: str) -> str:
    """Names are the site's own words and must not turn into Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)
