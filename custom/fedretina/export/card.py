"""What of a model's card leaves with the model, and the page beside it in the form that model hubs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedretina.report.card_words import not_promised, purposes
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import in_words

NOT_TOLD = "not told"
_AS_IT_IS = (
    *("format", "notice", "intended_use", "not_intended", "synthetic", "fedretina", "row", "method", "model"),
    *("grades", "estimator", "model_digest", "normalisation", "transforms_digest"),
)
_ENCODER = ("name", "layout", "licence", "normalisation", "pretrained_on", "sets", "sha256", "source")
_FEWEST = 10
"""Test patients below whom no figure leaves: it would tell of single persons."""
_DIGITS = 2
"""Of a share and its bounds: more would give back the counts that they were made of."""


def leaving_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """The card as it leaves: what decides an answer, what it is for, and figures with enough patients behind them.

    It is a list of what leaves, so what a later card has besides stays. Names of site and run, fingerprints, the site's
    words for its labels, and counts of images and patients by grade or outcome are not on it.
    """
    scheme = card["scheme"]
    settings = {key: value for key, value in card["settings"].items() if key != "name"}
    test = card.get("test") or {}
    told = test.get("patients", 0) >= _FEWEST
    promise, sets = card.get("promise"), card.get("sets")
    # The one limit that counts ill patients; that nothing is promised, the page says without it.
    counted = None if promise is None or promise["reason"] == "kept" else not_promised(promise)
    return {
        **{key: card[key] for key in _AS_IT_IS if key in card},
        "limits": [one for one in card["limits"] if one != counted],
        "site": NOT_TOLD,
        "run": NOT_TOLD,
        "verdict": None,
        "scheme": {**scheme, "labels": {name: name for name in scheme["grades"]}},
        "settings": Experiment.model_validate(settings).agreed(),
        "encoder": {key: value for key, value in card.get("encoder", {}).items() if key in _ENCODER},
        "temperature": {"value": card["temperature"]["value"]},
        "referral": {
            **{key: card["referral"][key] for key in ("threshold", "rule", "reason")},
            "test": _shares(card["referral"]["test"]) if told else None,
        },
        "test": {key: test[key] for key in ("accuracy", "kappa") if key in test} if told else None,
        "doubt": {"used": (card.get("doubt") or {}).get("used", "estimator")},
        "look": {"gate": card["look"]["gate"]},
        **({} if promise is None else {"promise": _promise(promise)}),
        **({} if sets is None else {"sets": {key: sets[key] for key in ("limit", "wrong", "patients", "ordered")}}),
    }


def _promise(promise: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, the threshold, and whether it is a promise or drawn.

    How many patients stand behind it stays, and so do the share and the other reasons, which tell it.
    """
    told = {"reason": promise["reason"]} if promise["reason"] in ("kept", "drawn") else {}
    return {**{key: promise[key] for key in ("threshold", "missed", "sure")}, **told}


def _not_promised(promise: Mapping[str, Any]) -> list[str]:
    if promise.get("reason") == "drawn":
        return [
            "- It promises nothing of how few ill patients pass: its site's own were too few, and its threshold for "
            "the chance of disease is drawn towards other hospitals' patients."
        ]
    # Where the other reasons to refer keep the promise by themselves, it has no threshold.
    kept = promise.get("reason") == "kept"
    return [] if kept else ["- It promises nothing of how few ill patients pass."]


def _shares(test: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Shares of patients; none where few are ill, well or answered, since the others would tell how many those are."""
    if test is None or any(one is not None and one["n"] < _FEWEST for one in test.values()):
        return None
    return {
        name: None if one is None else {key: round(one[key], _DIGITS) for key in ("value", "low", "high")}
        for name, one in test.items()
    }


def hub_page(card: Mapping[str, Any], kind: str) -> str:
    """The README.md of an export: a YAML header as Hugging Face's hub reads it, then the card in words.

    Args:
        card: What `leaving_card` gave.
        kind: What the export holds, a sentence.
    """
    import yaml

    images = card["settings"]["images"]
    figures = card["test"] or {}
    header: dict[str, Any] = {
        "license": "other",
        "license_name": "to-be-named-by-the-site",
        "library_name": "fedretina",
        "pipeline_tag": "image-classification",
        "tags": ["medical", "federated-learning", "not-a-medical-device", images["modality"]],
    }
    if figures:
        metrics = [{"type": name, "value": round(value, 4)} for name, value in figures.items() if value is not None]
        header["metrics"] = [one["type"] for one in metrics]
        header["model-index"] = [
            {
                "name": f"fedretina {card['row']}",
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {"name": "the site's own test patients", "type": "not public"},
                        "metrics": metrics,
                    }
                ],
            }
        ]
    grades = ", ".join(in_words(one) for one in card["grades"])
    encoder = card["encoder"]
    lines = [
        "---",
        yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {card['method']}, a model of one hospital",
        "",
        f"**{card['notice']}**",
        "",
        kind,
        "",
        "```python",
        "import fedretina",
        "",
        "for row in fedretina.load(PATH).predict(FOLDER):",
        "    print(row.file, row.grade, row.uncertainty, row.referral, row.fault)",
        "```",
        "",
        *purposes(card),
        "## Limits",
        "",
        *(f"- {one}" for one in card["limits"]),
        *_not_promised(card.get("promise", {})),
        "- Before every answer stands the gate of the site that trained it: a picture of another kind, an unreadable "
        "one or one unlike that site's own has no grade, or one with a mark. At another hospital it may stop most.",
        "",
        "## Figures",
        "",
        "They are of the test patients of the site that trained it; elsewhere they do not hold.",
        "",
        *(f"- {name}: {value:.3f}" for name, value in figures.items() if value is not None),
        *([] if figures else ["- none: too few test patients to tell"]),
        "",
        "## How it was made",
        "",
        f"Grades: {grades}. Row {card['row']} of fedretina {card['fedretina']}, estimator {card['estimator']}. "
        f"Encoder {encoder.get('name', 'not known')}, pre-trained on "
        f"{encoder.get('pretrained_on', 'what is not told')} (licence "
        f"{encoder.get('licence', 'not told')}). Model {card['model_digest']}.",
        "" if not card["synthetic"] else "\nIt learned from drawn images of no real patient.",
        "",
        "The licence of the model is for the site to name: write it into the header, and mind the encoder's.",
    ]
    return "\n".join(lines) + "\n"


def record(card: Mapping[str, Any], looks: list[dict[str, Any]]) -> str:
    """What `fedretina.load` reads of an exported file, as JSON."""
    return json.dumps({"format": 1, "card": dict(card), "looks": looks}, sort_keys=True, allow_nan=False)
