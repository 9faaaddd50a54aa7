"""What a chief physician reads in a minute: sentences with numbers and intervals, from a report's JSON record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedretina.plurals import counted
from fedretina.report.text import (
    FIGURES,
    PERCENT,
    between,
    count,
    number,
    outcomes_sentence,
    percent,
    points,
    shown,
    size,
    some,
    threshold_places,
    with_interval,
)
from fedretina.report.verdict_words import kept_sentence, verdict_sentence
from fedretina.settings.scheme import in_words

_FEW_PATIENTS = 30
_CHANCE = 0.5


def round_words(step: str, steps: Sequence[str]) -> str:
    """A step's name as one counts it: "round 3"; the name itself where the history does not hold it."""
    return f"round {list(steps).index(step) + 1}" if step in steps else step


def site_summary(report: Mapping[str, Any]) -> list[str]:
    """The sentences at the top of a site's page."""
    found = [
        *_verdict(report),
        _grading(report),
        _ranking(report),
        _referable(report),
        _triage(report),
        _own_mistakes(report),
        _calibration(report),
        _few(report["test"]),
    ]
    return [sentence for sentence in found if sentence]


def kappa_name(ordered: bool) -> str:
    """What the kappa of a reading is called: without an order of grades it has no weights."""
    return "quadratic kappa" if ordered else "kappa"


def reading_summary(reader: Mapping[str, Any], referable: Sequence[str], ordered: bool) -> list[str]:
    """The sentences on a doctor's decisions; see `prediction.decisions.Reading`.

    Args:
        reader: The decisions.
        referable: The site's referable grades; empty where its scheme names none.
        ordered: Whether one grade is worse than another.
    """
    same, graded = reader["agreed"]
    missed, needless, patients = reader["missed"], reader["needless"], reader["patients_agreed"]
    found = []
    if missed:
        found.append(
            f"The list missed {count(missed['k'])} of {count(missed['n'])} patients with a referable grade by the "
            f"doctor: {with_interval(missed, 'percent')}."
        )
    elif referable:
        found.append("The doctor found no patient with a referable grade, so what was missed cannot be told.")
    else:
        found.append("The site's scheme names no referable grades, so what was missed cannot be told.")
    if graded:
        kappa = "" if reader["kappa"] is None else f"; {kappa_name(ordered)} {number(reader['kappa'])}"
        found.append(f"Doctor and model gave {count(same)} of {count(graded)} photographs the same grade{kappa}.")
    if patients:
        found.append(
            f"All grades are the same for {count(patients['k'])} of {count(patients['n'])} patients: "
            f"{with_interval(patients, 'percent')}."
        )
    if needless:
        found.append(
            f"The list referred {count(needless['k'])} of {count(needless['n'])} patients all of whose photographs "
            "the doctor graded and found nothing referable in."
        )
    if reader["ungradable"]:
        found.append(f"{count(reader['ungradable'])} photographs with a grade are ungradable by the doctor.")
    seen = reader["decided"] - reader["hidden"]
    if seen:
        found.append(
            f"{count(seen)} of {count(reader['decided'])} decisions were made with the answer in sight, which makes "
            "for agreement."
        )
    return found


def server_summary(report: Mapping[str, Any]) -> list[str]:
    """The sentences at the top of the server's page."""
    sites = report["sites"]
    found = [
        f"{counted(len(sites), 'site')} trained together and tested the model on {_test_images(sites)} of their own, "
        "each by its own grades.",
        outcomes_sentence(report.get("verdicts")),
        _behind(report),
        *(_mean_sentence(report, name) for name in _server_means(report)),
        _without_support(report),
        _pooled(report["pooled"]),
        _missing(report),
        _traffic(report["rounds"]),
    ]
    return [sentence for sentence in found if sentence]


def _verdict(report: Mapping[str, Any]) -> list[str]:
    """Older reports, and runs that compare nothing, have none."""
    verdict = report.get("verdict")
    if not verdict:
        return []
    not_kept = report["model"] != verdict["kept"]
    here = " This page is about the model trained with the others, which is not kept." if not_kept else ""
    return [verdict_sentence(verdict), kept_sentence(verdict) + here]


def _grading(report: Mapping[str, Any]) -> str:
    test, figure = report["test"], report["figures"]["accuracy"]
    commonest = max(range(len(test["by_grade"])), key=lambda at: test["by_grade"][at])
    name = in_words(report["scheme"]["grades"][commonest])
    first = (
        f"On {some(test['images'], 'test image')} of {some(test['patients'], 'patient')} that the model never learned "
        f"from, it gave the right grade to {with_interval(figure, 'percent')}."
    )
    share = test["by_grade"][commonest] / test["images"]
    if share == 1:
        return f"{first} All of these images have the grade “{name}”."
    verdict = "" if figure["value"] > share else ": the model does no better than that"
    return f"{first} Always answering “{name}”, the commonest grade, would be right for {percent(share)}{verdict}."


def _ranking(report: Mapping[str, Any]) -> str:
    auc, kappa = report["figures"]["auc"], report["figures"]["kappa"]
    if auc["value"] is None:
        return "All test images have one grade, so it cannot be measured how well the model tells grades apart."
    classes, grades = report["auc_classes"], len(report["scheme"]["grades"])
    missing = f" ({classes} of {grades} grades are present in the test images)" if classes < grades else ""
    told = kappa["value"] is not None and report.get("ordered", True)
    agreement = "" if not told else f" Its quadratic kappa is {with_interval(kappa, 'number')}."
    return f"{_tells_apart(report, missing)}{agreement}"


def _tells_apart(report: Mapping[str, Any], missing: str) -> str:
    """The mean over grades with support, and what was left out of it; older reports know the plain mean alone."""
    support, auc = report.get("support"), report["figures"]["auc"]
    figure = report["figures"].get("auc_supported")
    if support is not None and figure["value"] is not None:
        few = [one for one in support["grades"] if not one["supported"]]
        said = f"It tells the grades apart with an AUC of {with_interval(figure, 'number')}{missing}"
        if not few:
            return f"{said}."
        names = ", ".join(f"{in_words(one['grade'])} ({some(one['patients'], 'patient')})" for one in few)
        kept = len(support["grades"]) - len(few)
        return (
            f"{said}, the mean over {counted(kept, 'grade')}. Left out, with fewer than "
            f"{support['least']} patients who have it or who do not: {names}; with them it would be "
            f"{number(auc['value'])}."
        )
    if auc["low"] is None:
        why = "every draw of patients gives the same" if auc["value"] == 1 else "too few patients of some grade"
        missing += f" (no interval: {why})"
    said = f"It tells the grades apart with an AUC of {with_interval(auc, 'number')}{missing}"
    if support is None:
        return f"{said}."
    return (
        f"{said}, but no grade has {support['least']} test patients who have it and as many who do not, so it follows "
        "single patients: do not rely on it."
    )


def _referable(report: Mapping[str, Any]) -> str:
    counts, figures = report["referable"], report["figures"]
    if counts is None:
        return (
            "This site's scheme does not say which grades are referable, so no figure for referable disease is given."
        )
    ill, well = counts["found"] + counts["missed"], counts["alarms"] + counts["cleared"]
    if not ill + well:
        return "No test image could be graded by a person, so no figure for referable disease is given."
    found = f"{count(counts['found'])} of {count(ill)} images with referable disease" if ill else ""
    kind = "it" if ill else "referable disease"
    alarms = f"{count(counts['alarms'])} of {count(well)} {'' if ill else 'images '}without {kind}" if well else ""
    where = " and ".join(part for part in (found, alarms) if part)
    spans = [
        f"{FIGURES[name].title} {with_interval(figures[name], 'percent')}"
        for name in ("referable_sensitivity", "referable_specificity")
        if figures[name]["value"] is not None
    ]
    return f"By its grade alone it would refer {where}: {', '.join(spans)}."


def _triage(report: Mapping[str, Any]) -> str:
    found = (report["referral"] or {}).get("test")
    if not found or not found.get("load"):
        return ""
    chance = " and those with a chance of disease that the site does not let pass" if report.get("by_chance") else ""
    first = (
        f"With doubtful answers{chance} referred as well, {_share(found['load'])} of the test patients would see a "
        "doctor"
    )
    missed = found.get("missed")
    if not missed:
        return f"{first}."
    return f"{first}, and {_share(missed)} of those with referable disease would be missed."


def own_mistakes(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """How well the doubt that refers patients here finds wrong answers; older records know the estimator's u alone."""
    doubt = report.get("doubt") or {}
    if doubt.get("used", "estimator") == "estimator" or not doubt["order"]:
        found: Mapping[str, Any] = report["figures"]["error_auroc"]
        return found
    return dict(doubt["order"])


def _own_mistakes(report: Mapping[str, Any]) -> str:
    figure, test = own_mistakes(report), report["test"]
    if figure["value"] is None:
        kind = "right" if test["right"] == test["images"] else "wrong"
        return f"Every answer was {kind}, so it cannot be measured whether its uncertainty finds mistakes."
    other = (report.get("doubt") or {}).get("used", "estimator") != "estimator"
    doubt = "Its doubt (1 less the chance of its answer)" if other else "Its uncertainty"
    base = f"{doubt} finds its own mistakes with an AUROC of {with_interval(figure, 'number')}"
    if figure["low"] is None:
        if figure["value"] in (0, 1):
            return f"{base}; that has no interval, since every draw of patients gives the same."
        return f"{base}; there are too few right or wrong answers to say how certain that is."
    if figure["low"] > _CHANCE:
        return f"{base}: better than chance, which is 0.5."
    if figure["high"] < _CHANCE:
        return f"{base}: worse than chance, which is 0.5. Its doubt misleads; do not rely on it."
    return f"{base}. The interval includes 0.5, chance: these images do not show that its doubt means anything."


def _calibration(report: Mapping[str, Any]) -> str:
    test, ece = report["test"], report["figures"]["ece"]["value"]
    gap = test["mean_confidence"] - test["right"] / test["images"]
    tempered = report["reliability_tempered"]
    after = (
        f" After this site's temperature of {number(report['temperature'])}, with which the work list shows "
        f"probabilities, it is {points(tempered['ece'])}."
        if tempered
        else ""
    )
    lean = "too sure of itself" if gap > 0 else "too modest"
    on_the_whole = f"; on the whole it is {lean}" if abs(gap) >= max(0.02, ece / 2) else ""
    return f"What it claims and how often it is right lie {points(ece)} apart (ECE){on_the_whole}.{after}"


def _few(test: Mapping[str, Any]) -> str:
    if test["patients"] >= _FEW_PATIENTS:
        return ""
    if test["patients"] == 1:
        return "There is one test patient: no figure on this page can be generalised."
    return f"There are only {test['patients']} test patients: every interval here is rather too narrow than too wide."


def _mean_sentence(report: Mapping[str, Any], name: str) -> str:
    mean = report["means"].get(name)
    if mean is None:
        return ""
    figure = FIGURES[name]
    words = {
        "auc": "The AUC over grades is",
        "auc_supported": "The AUC over the grades of which a site has enough patients is",
        "accuracy": "The right grade was given to",
        "error_auroc": "The uncertainty finds mistakes with an AUROC of",
    }[name]
    if mean["sites"] == 1:
        return f"{words} {shown(mean['mean'], figure.style)}, at the one site that has this figure."
    middle = f"{words} {shown(mean['mean'], figure.style)} in the mean over {mean['sites']} sites"
    if "lowest" not in mean:  # a record of before
        return f"{middle}."
    spread = f"{shown(mean['lowest'], figure.style).removesuffix(PERCENT)} to {shown(mean['highest'], figure.style)}"
    return f"{middle}, whose own run from {spread}."


def _without_support(report: Mapping[str, Any]) -> str:
    """Where no site has a mean over grades with enough patients; older results do not tell."""
    sites = report["sites"].values()
    if "auc_supported" in report["means"] or all(site.get("grades_supported") is None for site in sites):
        return ""
    return "No grade of any site has enough test patients for an AUC to stand on: that over all grades says little."


def _server_means(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Results of old have no mean over grades with support."""
    return ("auc_supported" if "auc_supported" in report["means"] else "auc", "accuracy", "error_auroc")


def behind_words(behind: Mapping[str, Any] | None) -> str:
    """Whose patients stand behind a round: "3 of 4 sites, 83 % of the training patients"; empty where nobody's do."""
    if behind is None:
        return ""
    sites = f"{behind['sites']} of {counted(behind['of_sites'], 'site')}"
    if behind["share"] is None:
        return f"{sites}; a site does not tell how many patients it has, so their share is not known"
    return f"{sites}, {percent(behind['share'])} of the training {behind['unit']}"


def _behind(report: Mapping[str, Any]) -> str:
    """How much of the federation stands behind the chosen round, and behind the round with the least."""
    rounds = [entry for entry in report["rounds"] if entry.get("behind")]
    chosen = next((entry for entry in rounds if entry["step"] == report["chosen"]), None)
    if chosen is None:
        return ""
    first = f"Behind the chosen round stand {behind_words(chosen['behind'])}"
    # The model holds what earlier rounds gave, so the thinnest of them is told as well.
    before = [entry["behind"] for entry in rounds[: rounds.index(chosen) + 1]]
    least = min((one["share"] for one in before if one["share"] is not None), default=None)
    if least is None or least >= (chosen["behind"]["share"] or 0):
        return f"{first}."
    return f"{first}; behind the round with the fewest before it {percent(least)}."


def _pooled(pooled: Mapping[str, Any] | None) -> str:
    if pooled is None:
        return ""
    auroc = pooled["error_auroc"]
    detection = (
        "" if auroc is None else f", and their uncertainty finds the wrong ones with an AUROC of {number(auroc)}"
    )
    together = f"{count(pooled['images'])} answers of {counted(len(pooled['sites']), 'site')}"
    return (
        f"Of {together} together {count(pooled['wrong'])} were wrong by their own site's criteria; what they claimed "
        f"and how often they were right lie {points(pooled['ece'])} apart (ECE){detection}."
    )


def _missing(report: Mapping[str, Any]) -> str:
    without = report["without_result"]
    if not without:
        return ""
    return f"{counted(len(without), 'site')} gave no result: {', '.join(without)}."


def _traffic(rounds: Sequence[Mapping[str, Any]]) -> str:
    up, down = (sum(entry[way] for entry in rounds) for way in ("bytes_up", "bytes_down"))
    refused = sum(entry["refused"] for entry in rounds)
    if any(entry["task"] == "sums" for entry in rounds):
        blind = sum(entry["task"] == "pretrain" for entry in rounds)
        before = f"{some(blind, 'round')} without labels and one" if blind else "One"
        return f"{before} message of sums a site moved {size(up)} up and {size(down)} down.{_refusals(refused)}"
    training = sum(entry["task"] in ("pretrain", "train") for entry in rounds)
    moved = some(training, "round moved", "rounds moved")
    return f"{moved} {size(up)} of weights up and {size(down)} down.{_refusals(refused)}"


def _refusals(refused: int) -> str:
    if refused > 1:
        return f" {count(refused)} answers were refused."
    return " One answer was refused." if refused else ""


def _share(share: Mapping[str, Any]) -> str:
    span = between(share, "percent")
    return f"{count(share['k'])} of {count(share['n'])} ({percent(share['value'])}; 95{PERCENT} interval {span})"


def _test_images(sites: Mapping[str, Mapping[str, Any]]) -> str:
    known = [site["images"]["test"] for site in sites.values() if site["images"]["test"] is not None]
    if not known:
        return "test images"
    images = some(round(sum(known)), "test image")
    return images if len(known) == len(sites) else f"at least {images}"


def referral_words(referral: Mapping[str, Any]) -> str:
    """How an image is called doubtful at this site; empty where its card has no threshold."""
    threshold = referral.get("threshold")
    if threshold is None:
        return ""
    rule = (
        "Every image counts as doubtful"
        if threshold <= 0
        else f"An image counts as doubtful when its u is {threshold:.{threshold_places(threshold)}f} or more"
    )
    seen = referral.get("validation")
    if not seen:
        return f"{rule}."
    right = seen["images"] - seen["errors"]
    return (
        f"{rule}. On this site's {count(seen['images'])} validation images that marks {count(seen['caught'])} of "
        f"{count(seen['errors'])} wrong answers and {count(seen['alarms'])} of {count(right)} right ones."
    )
