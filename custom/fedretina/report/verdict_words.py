"""A verdict in words: one plain sentence with its interval, which model is kept and why, and the table below it.

Everything is rendered from the stored record (`local.verdict.judged`), so that report, card and `fedretina predict` say
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.evaluation.verdict import FEDERATED, MAJORITY, OWN, TWIN
from fedretina.report.text import NONE, PERCENT, number, shown, some
from fedretina.settings.scheme import in_words
from fedretina.settings.training import LEAST_PATIENTS

MODELS: Mapping[str, str] = MappingProxyType(
    {
        FEDERATED: "{method}",
        OWN: "own head on the frozen encoder, kept in a run of {method}",
        TWIN: "{method}, trained at home alone",
    }
)
"""How the models of a verdict are called where a card or a report names its method."""
MEASURES: Mapping[str, str] = MappingProxyType(
    {"referable_auc": "finds referable disease", "auc": "tells the grades apart"}
)
_STYLE: Mapping[str, str] = MappingProxyType({"referable_auc": "number", "auc": "number", "accuracy": "percent"})
_TITLES: Mapping[str, str] = MappingProxyType(
    {"referable_auc": "AUC for referable disease", "auc": "AUC over grades", "accuracy": "right grade"}
)


def verdict_sentence(verdict: Mapping[str, Any]) -> str:
    """What sharing was worth at this site, as its test patients tell it: one sentence, with the interval."""
    rival, test = verdict["rival"], verdict["test"]
    if rival is None:
        return "What sharing was worth cannot be told here: there was no model to compare with."
    measure, control = verdict["measure"], _control(rival, verdict["start"])
    skill = MEASURES[measure]
    with_others, alone = (number(test["models"][name][measure]) for name in (FEDERATED, rival))
    gap = test["differences"][rival].get(measure, {})
    shared = verdict["shared"]
    images, patients = some(test["images"], "image"), some(test["patients"], "patient")
    behind = f"95{PERCENT} interval, {images} of {patients}"
    if gap.get("low") is None:
        return (
            f"Whether {'sharing' if shared else 'the run'} helped cannot be told with your {images} of {patients}: "
            f"they give no interval for how well a model {skill}."
        )
    if verdict["outcome"] == "gained":
        model = "With the others your model" if shared else "The run's model"
        return (
            f"{model} {skill} better than {control}: AUC {with_others} against {alone}, "
            f"difference {_span(gap)} ({behind})."
        )
    if verdict["outcome"] == "lost":
        turned = {"low": -gap["high"], "high": -gap["low"]}
        better, where = ("Alone you do better", "with the others") if shared else ("The run made it worse", "now")
        return (
            f"{better}: {control} {skill} with AUC {alone} against {with_others} {where}, "
            f"difference {_span(turned)} ({behind})."
        )
    model = "with the others your model" if shared else "the run's model"
    return (
        f"No difference can be seen with your {images}: {model} {skill} with AUC {with_others}, {control} with "
        f"{alone}, difference {_span(gap)} (95{PERCENT} interval, {patients})."
    )


def kept_sentence(verdict: Mapping[str, Any]) -> str:
    """Which model is kept, and what on validation decided it."""
    kept, validation = verdict["kept"], verdict["validation"]
    values, patients = validation["values"], some(validation["patients"], "patient")
    if kept != FEDERATED:
        name = "Your own model" if kept == OWN else "The model trained at home alone"
        why = f"AUC {number(values[kept])} against {number(values[FEDERATED])}, {patients}"
        return f"{name} is better on your validation images ({why}) and is kept."
    model = "The model trained with the others" if verdict["shared"] else "The run's model"
    base = f"{model} is kept"
    if verdict["reason"] == "not_better":
        rivals = {name: value for name, value in values.items() if name != FEDERATED and value is not None}
        best = max(rivals.values())
        why = f"AUC {number(values[FEDERATED])} against {number(best)}, {patients}"
        return f"{base}: nothing is better on your validation images ({why})."
    if verdict["reason"] == "too_few_patients":
        kinds = (
            "with referable disease and {} without"
            if verdict["measure"] == "referable_auc"
            else "of each of two grades"
        )
        need = f"{LEAST_PATIENTS} validation patients {kinds.format(LEAST_PATIENTS)}"
        return f"{base}: a choice takes {need}, and not so many are among your {patients}."
    if verdict["reason"] == "undefined":
        return f"{base}: your validation images do not tell which model is better."
    return f"{base}: there is no other."


def rounds_sentence(verdict: Mapping[str, Any] | None) -> str:
    """Whose rounds the report of another model shows."""
    shared = verdict is None or verdict["shared"]
    model = "the model trained with the others" if shared else "the run's model"
    return f"These rounds are of {model}, which is not kept here."


def verdict_table(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The controls side by side, as a page's table shows them.

    Returns:
        "titles" of the figures, and "rows": a "name", whether the model is "kept", and for each figure a cell with its
        "value" and with how much more the model trained with the others has of it ("gap", with interval).
    """
    test = verdict["test"]
    names = [name for name in (FEDERATED, OWN, TWIN, MAJORITY) if name in test["models"]]
    titles = [name for name in _TITLES if any(test["models"][each].get(name) is not None for each in names)]
    rows = []
    for name in names:
        gaps = test["differences"].get(name, {})
        rows.append(
            {
                "name": _name(name, verdict),
                "kept": name == verdict["kept"],
                "cells": [
                    {"value": shown(test["models"][name].get(title), style), "gap": _gap(gaps.get(title), style)}
                    for title, style in ((title, _STYLE[title]) for title in titles)
                ],
            }
        )
    return {"titles": [_TITLES[title] for title in titles], "rows": rows}


def _control(name: str, start: str) -> str:
    if name == TWIN:
        return "the same method trained at home alone"
    return f"your own head on {'an encoder of random weights' if start == 'none' else 'the frozen encoder'}"


def _name(name: str, verdict: Mapping[str, Any]) -> str:
    if name == FEDERATED:
        return "trained with the others" if verdict["shared"] else "the run's model"
    if name == MAJORITY:
        return f"always “{in_words(verdict['test']['majority'])}”, your commonest grade in training"
    return _control(name, verdict["start"])


def _span(gap: Mapping[str, Any]) -> str:
    """Both bounds; with a third decimal where one would round to the 0 that it does not reach."""
    ends = gap["low"], gap["high"]
    places = 3 if any(0 < abs(end) < 0.005 for end in ends) else 2
    return " to ".join(number(end, places) for end in ends)


def _gap(gap: Mapping[str, Any] | None, style: str) -> str:
    if gap is None or gap["value"] is None:
        return NONE
    if style != "percent":
        return number(gap["value"]) + ("" if gap["low"] is None else f" ({_span(gap)})")
    if gap["low"] is None:
        return number(100 * gap["value"], 0)
    points = [100 * gap[name] for name in ("value", "low", "high")]
    # With a decimal where a bound would round to the 0 that it does not reach.
    places = 1 if any(0 < abs(end) < 0.5 for end in points[1:]) else 0
    value, low, high = (number(one, places) for one in points)
    return f"{value} ({low} to {high} points)"
