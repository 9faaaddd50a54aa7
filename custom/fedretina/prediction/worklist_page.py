"""The work list as one page that needs no network: for a screen, a telephone or paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.prediction.predictor import ImageRow
from fedretina.prediction.worklist import Patient, Photograph, readable
from fedretina.report.card import NEARLY_ALL, THRESHOLD_WORDS
from fedretina.report.card_words import promise_words, set_sentences, share_words, threshold_words, verdict_words
from fedretina.settings.scheme import GradingScheme, in_words

TEMPLATES = Path(__file__).resolve().parents[1] / "report" / "templates"

U_WORDS: Mapping[str, str] = {
    "evidence": "u is the share of its opinion for which the model has found no evidence in the photograph.",
    "softmax": "u is how evenly the model spreads its probabilities over the grades.",
    "softmax_mean": "u is how evenly the model's members together spread their probabilities over the grades.",
    "softmax_disagreement": "u is how far the model's members disagree; what all of them find hard does not count.",
    "evidence_mean": "u is the mean share of their opinions for which the model's members have found no evidence.",
    "evidence_dempster": "u is the share of its members' joint opinion for which the model has found no evidence.",
}

_U_UNLIKELY = "u is 1 less the chance of the grade that it answers."


def worklist_page(
    card: Mapping[str, Any],
    scheme: GradingScheme,
    patients: Sequence[Patient],
    pictures: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """Render the work list.

    Names of files and patients are whatever somebody typed: all of them are escaped, and the page's own policy lets it
    run only the script that it was written with and load nothing from anywhere.

    Args:
        card: Of the model that answered.
        scheme: The site's grades.
        patients: In the order of the work list.
        pictures: Data URI of a file's small copy; files without one are listed without a picture.
        notes: Sentences on how patients were joined and what was left out.

    Returns:
        HTML.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "worklist.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("worklist.html.j2").render(
        card=card,
        summary=summary_words(patients),
        expected=_expected(card),
        verdict=[*verdict_words(card), *promise_words(card), *set_sentences(card)],
        threshold=card["referral"]["threshold"],
        threshold_words=threshold_words(card),
        threshold_why=THRESHOLD_WORDS.get(card["referral"]["reason"], ""),
        u_words=_U_UNLIKELY
        if (card.get("doubt") or {}).get("used") == "unlikely"
        else U_WORDS.get(card["estimator"], ""),
        notes=[readable(note) for note in notes],
        patients=[_patient(rank, patient, scheme, pictures) for rank, patient in enumerate(patients, 1)],
        pictured=bool(pictures),
        script=script,
        script_digest=digest,
    )
    return page + "\n"


def summary_words(patients: Sequence[Patient]) -> list[str]:
    """How many patients there are, how many of them a doctor must see, and why."""
    photographs = sum(len(patient.photographs) for patient in patients)
    referred = [patient for patient in patients if patient.referral.refer]
    whys = [why for patient in referred for why in patient.referral.reasons]
    because = ", ".join(f"{whys.count(why)} {why}" for why in dict.fromkeys(sorted(whys)))
    share = f" ({100 * len(referred) / len(patients):.0f} %)" if patients else ""
    return [
        f"{photographs} photograph{'s' * (photographs != 1)} of {len(patients)} patient{'s' * (len(patients) != 1)}.",
        f"{len(referred)} of them to refer{share}"
        + (f", by reason: {because}. A patient may have several." if whys else "."),
    ]


def _expected(card: Mapping[str, Any]) -> list[str]:
    figures = card["referral"]["test"]
    if figures is None:
        return ["What to expect was not measured."]
    load = figures["load"]
    said = [f"On this site's test patients the same rule referred {share_words(load)}."]
    if card["referral"]["threshold"] > 0 and load is not None and load["value"] >= NEARLY_ALL:
        low = ((card.get("doubt") or {}).get("order") or {}).get("low")
        seen = "doubt" not in card or (low is not None and low > 0.5)
        useful = "only the order of this list is of use." if seen else "and no order can be seen in its doubt."
        said.append(f"That is nearly everyone: {useful}")
    look = card.get("look")
    if look is not None and "usual" in look["gate"]:
        own = look["own"]
        said.append(f"It calls {own['unusual']} of the {own['images']} test images unusual; that is not counted in it.")
    if figures["missed"] is None:
        return [*said, "How many patients with referable disease it misses cannot be told."]
    return [*said, f"Of those with referable disease it missed {share_words(figures['missed'])}."]


def _patient(rank: int, patient: Patient, scheme: GradingScheme, pictures: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rank": rank,
        "name": readable(patient.name),
        "refer": patient.referral.refer,
        "reasons": patient.referral.reasons,
        "grade": "no answer" if patient.grade is None else in_words(scheme.grades[patient.grade]),
        "order": -1 if patient.grade is None else patient.grade,
        "u": patient.uncertainty,
        "silent": patient.grade is not None and any(one.row.grade is None for one in patient.photographs),
        "eyes": patient.eyes,
        "photographs": [_photograph(one, scheme, pictures) for one in patient.photographs],
    }


def _photograph(one: Photograph, scheme: GradingScheme, pictures: Mapping[str, str]) -> dict[str, Any]:
    row: ImageRow = one.row
    chances = [] if row.probabilities is None else [float(p) for p in row.probabilities]
    return {
        "file": readable(row.file),
        "eye": f"{one.eye} eye" if one.eye else "",
        "picture": pictures.get(row.file),
        "fault": readable(row.fault),
        "reasons": row.referral.reasons,
        "grade": "" if row.grade is None else in_words(scheme.grades[row.grade]),
        "u": row.uncertainty,
        "chances": [
            {"grade": in_words(name), "share": _percent(share), "chosen": at == row.grade}
            for at, (name, share) in enumerate(zip(scheme.grades, chances, strict=False))
        ],
    }


def _percent(share: float) -> str:
    """Whole per cent, with a space that does not break; never 0 or 100, since no answer is certain."""
    words = "< 1 %" if share < 0.005 else "> 99 %" if share > 0.99 else f"{100 * share:.0f} %"
    return words.replace(" ", "\u00a0")
