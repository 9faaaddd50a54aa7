"""The work list as one page that needs no server and no network: for a screen, a telephone or paper."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedretina.prediction.drift import LEAST, Drift
from fedretina.prediction.evidence import EvidenceMap
from fedretina.prediction.phrases import Language, Phrases
from fedretina.prediction.worklist import Patient, Photograph, cell, readable
from fedretina.report.card import NEARLY_ALL, THRESHOLD_WORDS
from fedretina.report.card_words import promise_words, refers_by_chance, set_sentences, verdict_words
from fedretina.report.page_templates import TEMPLATES, templates
from fedretina.report.text import threshold_places
from fedretina.settings.scheme import GradingScheme

_SCRIPT_WORDS = (
    *("decimal", "percent", "slider.at", "slider.own", "slider.of", "slider.unknown"),
    *("controls.shown", "controls.decided", "controls.unsaved", "controls.saved", "controls.no_store"),
    *("controls.loaded", "controls.loaded.one", "controls.wrong_file", "controls.clear_sure"),
    *("decide.agree", "decide.ungradable", "decide.paper", "decide.none", "view.scale", "view.small"),
    *("view.map_words", "view.map_none"),
)
"""Phrases that the page's script says."""


class Pictures(NamedTuple):
    """What there is to see of photographs, by the names of their files; those without are listed without a picture.

    Attributes:
        small: Data URI of a small copy.
        full: Where the whole photograph lies, relative to the page.
        folder: The folder of these, as the page names it.
        seen: Where the picture lies that the network got, relative to the page, of those with a map.
        maps: What their answers rest on.
    """

    small: Mapping[str, str]
    full: Mapping[str, str]
    folder: str = ""
    seen: Mapping[str, str] = MappingProxyType({})
    maps: Mapping[str, EvidenceMap] = MappingProxyType({})

    def drawn_maps(self) -> dict[str, str]:
        """Each map as its rows and columns and its cells in hundredths of the strongest of the list.

        One scale for all: a photograph in which hardly anything speaks for disease must not look like one that is full
        of it.
        """
        if not self.maps:
            return {}
        strongest = float(np.quantile(np.abs(np.concatenate([one.cells.ravel() for one in self.maps.values()])), 0.995))
        drawn = {}
        for file, one in self.maps.items():
            parts = np.clip(np.round(100 * one.cells / max(strongest, 1e-9)), -100, 100).astype(int)
            drawn[file] = json.dumps([*parts.shape, *parts.ravel().tolist()], separators=(",", ":"))
        return drawn


def worklist_page(
    card: Mapping[str, Any],
    scheme: GradingScheme,
    patients: Sequence[Patient],
    pictures: Pictures,
    notes: Sequence[str],
    drift: Drift,
    list_id: str,
    language: Language = "en",
    ordered: bool = True,
) -> str:
    """Render the work list.

    Names of files and patients are whatever somebody typed: all of them are escaped, and the page's own policy lets it
    run only the script that it was written with and load nothing but the pictures beside it.

    Args:
        card: Of the model that answered.
        scheme: The site's grades.
        patients: In the order of the work list.
        pictures: What there is to see.
        notes: Sentences on how patients were joined and what was left out.
        drift: What the list tells of where it comes from.
        list_id: Tells this list from others; decisions are kept and saved under it.
        language: Of the page.
        ordered: Whether one grade is worse than another, see `ImageSettings.ordered`.

    Returns:
        HTML.
    """
    say = Phrases(language)
    script = (TEMPLATES / "worklist.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    threshold, curve = card["referral"]["threshold"], card["referral"].get("curve")
    choices = [
        {"name": name, "words": f"{at} {say.grade(name)}"}
        for at, name in enumerate(scheme.grades)
        if name != scheme.ungradable
    ]
    words = {key: say.phrase(key) for key in _SCRIPT_WORDS} | {"view.small": say("view.small", folder=pictures.folder)}
    maps = pictures.drawn_maps()
    template = templates().get_template("worklist.html.j2")
    page = template.render(
        say=say,
        number=say.number,
        language=language,
        card=card,
        list_id=list_id,
        words=json.dumps(words, ensure_ascii=False, sort_keys=True),
        grades=json.dumps([[grade["name"], grade["words"]] for grade in choices], ensure_ascii=False),
        ungradable=scheme.ungradable or "",
        choices=choices,
        notice=say.said(card["notice"]),
        summary=summary_words(patients, say),
        order=say("summary.order" if ordered or scheme.threatening_classes else "summary.order_of_kinds"),
        expected=_expected(card, say),
        drift={"found": drift.found, "sentences": drift_words(drift, say)},
        promise=[say.said(one) for one in promise_words(card)],
        worth=[say.said(one) for one in (*verdict_words(card), *set_sentences(card))],
        by_chance=refers_by_chance(card),
        threshold=threshold,
        threshold_shown=say.number(threshold, threshold_places(threshold)),
        threshold_words=_threshold(card, say),
        threshold_why=say.said(THRESHOLD_WORDS.get(card["referral"]["reason"], "")),
        curve=curve,
        curve_json=json.dumps(curve),
        u_words=_u(card, say),
        notes=[say.said(readable(note)) for note in notes],
        limits=[say.said(one) for one in (*card["not_intended"], *card["limits"])],
        foot=say(
            "foot.model",
            **{name: card[name] for name in ("site", "method", "run", "chosen")},
            images=card["images"]["train"],
            model=card["model_digest"][:12],
            data=card["data_fingerprint"][:12],
            version=card["fedretina"],
        ),
        patients=[_patient(rank, patient, scheme, pictures, say) for rank, patient in enumerate(patients, 1)],
        pictured=bool(pictures.small),
        maps=maps,
        script=script,
        script_digest=digest,
    )
    return page + "\n"


def summary_words(patients: Sequence[Patient], say: Phrases) -> list[str]:
    """How many patients there are, how many of them a doctor must see, and why."""
    photographs = sum(len(patient.photographs) for patient in patients)
    referred = [patient for patient in patients if patient.referral.refer]
    whys = [why for patient in referred for why in patient.referral.reasons]
    because = ", ".join(f"{whys.count(why)} {say.reason(why)}" for why in dict.fromkeys(sorted(whys)))
    share = say.percent(len(referred) / max(1, len(patients)))
    return [
        f"{say('summary.photographs', photographs)} {say('summary.patients', len(patients))}",
        say("summary.refer", k=len(referred), share=share) + (say("summary.why", whys=because) if whys else "."),
    ]


def drift_words(drift: Drift, say: Phrases) -> list[str]:
    """What in the list speaks for another camera or population, or that nothing does, or that it cannot be told."""
    if drift.patients < LEAST:
        return [say("drift.short", least=LEAST)]
    if not drift.found:
        return [say("drift.none" if drift.looked else "drift.unknown")]
    found = []
    if drift.referred is not None and drift.referred.outside:
        found.append(say("drift.referred", **drift.referred._asdict()))
    for name, one in (("drift.stopped", drift.stopped), ("drift.odd", drift.odd)):
        if one is not None and one.k > one.high:
            found.append(say(name, **one._asdict()))
    return [*found, *(say(f"drift.{shift}") for shift in drift.shifts)]


def _threshold(card: Mapping[str, Any], say: Phrases) -> str:
    referral, seen = card["referral"], card["referral"]["validation"]
    least = referral["threshold"]
    shown = say.number(least, threshold_places(least))
    first = say("read.threshold", threshold=shown) if least > 0 else say("read.every")
    return f"{first} {say('read.marked', right=seen['images'] - seen['errors'], **seen)}"


def _u(card: Mapping[str, Any], say: Phrases) -> str:
    used = (card.get("doubt") or {}).get("used")
    key = f"u.{'unlikely' if used == 'unlikely' else card['estimator']}"
    return say(key) if say.has(key) else ""


def _expected(card: Mapping[str, Any], say: Phrases) -> list[str]:
    figures = card["referral"]["test"]
    if figures is None:
        return [say("summary.not_measured")]
    load = figures["load"]
    said = [] if load is None else [say("summary.load", share=say.share(load))]
    if card["referral"]["threshold"] > 0 and load is not None and load["value"] >= NEARLY_ALL:
        low = ((card.get("doubt") or {}).get("order") or {}).get("low")
        seen = "doubt" not in card or (low is not None and low > 0.5)
        said.append(say("summary.order_of_use" if seen else "summary.no_order"))
    look = card.get("look")
    if look is not None and "usual" in look["gate"] and look.get("own"):
        said.append(say("summary.unusual", k=look["own"]["unusual"], n=look["own"]["images"]))
    if figures["missed"] is None:
        return [*said, say("summary.missed_unknown")]
    return [*said, say("summary.missed", share=say.share(figures["missed"]))]


def _patient(rank: int, patient: Patient, scheme: GradingScheme, pictures: Pictures, say: Phrases) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": readable(patient.name),
        "cell": cell(patient.name),
        "refer": patient.referral.refer,
        "other": any(why != "doubtful" for why in patient.referral.reasons),
        "reasons": [say.reason(why) for why in patient.referral.reasons],
        "grade": ", ".join(say.grade(scheme.grades[grade]) for grade in patient.worst) or say("patient.no_answer"),
        "order": patient.severity,
        "u": patient.uncertainty,
        "silent": bool(patient.worst) and any(one.row.grade is None for one in patient.photographs),
        "eyes": _eyes(patient, say),
        "photographs": [_photograph(one, patient, scheme, pictures, say) for one in patient.photographs],
    }


def _eyes(patient: Patient, say: Phrases) -> str:
    eyes = [one.eye for one in patient.photographs]
    known = sorted({eye for eye in eyes if eye})
    words = [say("eyes.both" if len(known) == 2 else f"eyes.{known[0]}")] if known else []
    unknown = sum(not eye for eye in eyes)
    if unknown:
        words.append(say("eyes.unknown", unknown))
    elif len(eyes) != len(known):
        words.append(say("eyes.photographs", len(eyes)))
    return ", ".join(words)


def _photograph(
    one: Photograph, patient: Patient, scheme: GradingScheme, pictures: Pictures, say: Phrases
) -> dict[str, Any]:
    row = one.row
    chances = [] if row.probabilities is None else [float(p) for p in row.probabilities]
    eye = say(f"eye.{one.eye or 'unknown'}")
    grade = "" if row.grade is None else say.grade(scheme.grades[row.grade])
    answered = row.uncertainty is not None
    return {
        "file": readable(row.file),
        "cell": cell(row.file),
        "what": say("photograph.of", patient=readable(patient.name), eye=eye),
        "eye": eye,
        "side": one.eye,
        "picture": pictures.small.get(row.file),
        "full": pictures.full.get(row.file),
        "seen": pictures.seen.get(row.file),
        "key": row.file,
        "alt": say("photograph.alt", eye=eye, grade=grade, u=say.number(row.uncertainty, 2))
        if row.uncertainty is not None
        else say("photograph.alt_none", eye=eye),
        "fault": say.said(readable(row.fault)) if row.fault else None,
        "reasons": [say.reason(why) for why in row.referral.reasons],
        "answered": "" if row.grade is None or not answered else scheme.grades[row.grade],
        "grade": grade,
        "u": row.uncertainty,
        "chances": [
            {"grade": say.grade(name), "share": _percent(share, say), "chosen": at == row.grade}
            for at, (name, share) in enumerate(zip(scheme.grades, chances, strict=False))
        ],
    }


def _percent(share: float, say: Phrases) -> str:
    """Whole per cent, with spaces that do not break; never 0 or 100, since no answer is certain."""
    value = "< 1" if share < 0.005 else "> 99" if share > 0.99 else f"{100 * share:.0f}"
    return say("percent", value=value).replace(" ", "\u00a0")
