"""The JSON record of the server's report: from the stored results alone, that is from scalars that sites sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import FedretinaError, RefusedError
from fedretina.evaluation.pooled import (
    Bins,
    SiteBrier,
    confusion,
    decode,
    pool,
    pooled_brier,
    pooled_ece,
    pooled_error_auroc,
    pooled_risk_coverage,
)
from fedretina.evaluation.subgroups import pooled_subgroups
from fedretina.exchange.moved import moving_steps, step_moved
from fedretina.report import REPORT_FORMAT
from fedretina.report.text import FIGURES, rounded
from fedretina.rows import row
from fedretina.settings.images import has_order

_LEAST_BINS = 4  # of the uncertainty; on fewer, error detection would say more of the bins than of the answers
_LEARNING = ("pretrain", "train", "sums")
_BEHIND = ("patients", "images")
_ENDS = (("value", ""), ("low", "_low"), ("high", "_high"))


def server_report(results: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the record of the server's report.

    Figures that a site did not send are None: older runs have no intervals and no counts.

    Args:
        results: As stored in `results.json`.
    """
    sites = {name: _site(figures) for name, figures in sorted(results["sites"].items())}
    bins, contradictory = _bins(results["sites"])
    return {
        "format": REPORT_FORMAT,
        "kind": "server",
        "run": results["run"],
        "row": results["settings"].get("row"),
        "method": _title(results["settings"].get("row")),
        "chosen": results["chosen"],
        "synthetic": [name for name, site in sites.items() if site["synthetic"]],
        "sites": sites,
        "means": {name: mean for name in FIGURES if (mean := _mean(sites, name)) is not None},
        "pooled": _pooled(results["sites"], bins),
        "subgroups": _subgroups(results["sites"]),
        "verdicts": dict(results.get("verdicts", {})),
        "counts": {"sent": sorted(bins), "refused": contradictory},
        "rounds": _rounds(results),
        "ordered": has_order(results["settings"]),
        "chosen_by": results["settings"].get("choice", {}).get("by", "auc"),
        "without_result": dict(sorted(results.get("without_result", {}).items())),
        "refused": [
            {"step": step["step"], "site": site, "why": why}
            for step in moving_steps(results)
            for site, why in sorted(step.get("refused", {}).items())
        ],
        "provenance": {
            "settings": dict(results["settings"]),
            "versions": dict(results["versions"]),
            "partition": {kind: len(keys) for kind, keys in sorted(results["partition"].items())},
            "digest": results["digest"],
            "model_digest": results["model_digest"],
        },
    }


def _site(figures: Mapping[str, Any]) -> dict[str, Any]:
    grades = int(figures["grades"])
    return {
        "grades": grades,
        "grades_supported": figures.get("test_grades_supported"),
        "synthetic": bool(figures["synthetic"]),
        "images": {split: figures.get(f"images_{split}") for split in ("train", "val", "test")},
        "bad_files": figures.get("bad_files"),
        "theta": figures.get("theta"),
        "weight": figures.get("weight"),
        "figures": {
            name: {end: figures.get(f"test_{name}{suffix}") for end, suffix in _ENDS}
            for name in FIGURES
            if figures.get(f"test_{name}") is not None
        },
        "confusion": confusion(figures, grades),
    }


def _mean(sites: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    """Plain mean over the sites that have the figure, and between what values theirs lie.

    Whose the lowest is is not said: sites grade by their own criteria and see other patients, so the lowest figure is
    no lowest site.
    """
    found = [entry["figures"][name]["value"] for _, entry in sorted(sites.items()) if name in entry["figures"]]
    if not found:
        return None
    return {
        "mean": round(sum(found) / len(found), 6),
        "sites": len(found),
        "lowest": min(found),
        "highest": max(found),
    }


def _bins(sites: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Bins], list[str]]:
    bins: dict[str, Bins] = {}
    contradictory = []
    for name, figures in sorted(sites.items()):
        try:
            decoded = decode(figures)
        except RefusedError:
            contradictory.append(name)
            continue
        if decoded is not None:
            bins[name] = decoded
    return bins, contradictory


def _poolable(bins: Mapping[str, Bins]) -> tuple[dict[str, Bins], list[str]]:
    """The sites whose counts are fine enough to be pooled, and those that are left out, the coarsest first.

    All edges that one site lacks are lost to all, so a small site would make one bin of everything.
    """
    kept = dict(bins)
    left_out = []
    while len(kept) > 1 and _filled(pool(list(kept.values()))) < _LEAST_BINS:
        coarsest = min(kept, key=lambda name: (_filled(kept[name]), name))
        left_out.append(coarsest)
        del kept[coarsest]
    return kept, left_out


def _filled(bins: Bins) -> int:
    return int(np.sum(bins.uncertainty.images > 0))


def _pooled(sites: Mapping[str, Mapping[str, Any]], bins: Mapping[str, Bins]) -> dict[str, Any] | None:
    kept, left_out = _poolable(bins)
    if not kept or (len(kept) == 1 < len(sites)) or _filled(pool(list(kept.values()))) < _LEAST_BINS:
        return None
    together = pool(list(kept.values()))
    curve = pooled_risk_coverage(together)
    scores = [
        SiteBrier(float(sites[name]["test_brier"]), int(np.sum(found.confidence.images)))
        for name, found in kept.items()
        if sites[name].get("test_brier") is not None
    ]
    return {
        "sites": sorted(kept),
        "left_out": sorted(left_out),
        "images": int(np.sum(together.confidence.images)),
        "wrong": int(np.sum(together.uncertainty.wrong)),
        "ece": rounded(pooled_ece(together)),
        "brier": rounded(pooled_brier(scores)) if len(scores) == len(kept) else None,
        "error_auroc": rounded(pooled_error_auroc(together)),
        "reliability": {
            "edges": _list(together.confidence.edges),
            "images": together.confidence.images.tolist(),
            "right": together.confidence.right.tolist(),
            "confidence": _list(together.confidence.confidence),
        },
        "uncertainty": {
            "edges": _list(together.uncertainty.edges),
            "images": together.uncertainty.images.tolist(),
            "wrong": together.uncertainty.wrong.tolist(),
        },
        "risk_coverage": {"coverage": _list(curve.coverage), "risk": _list(curve.risk)},
    }


def _rounds(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An entry per step; validation figures stand with the round whose model was measured."""
    rounds = []
    known = _known(results)
    for step in moving_steps(results):
        measured = results.get("validation", {}).get(step["step"], {})
        sent = step.get("scalars", {})
        moved = step_moved(step)
        rounds.append(
            {
                "step": step["step"],
                "task": step["task"],
                "val_auc": dict(sorted(measured.get("auc", {}).items())),
                "mean_val_auc": rounded(measured.get("mean_auc")),
                "val_auc_supported": dict(sorted(measured.get("auc_supported", {}).items())),
                "mean_val_auc_supported": rounded(measured.get("mean_auc_supported")),
                "behind": _behind(step, known),
                "contrast_loss": {
                    site: scalars["contrast_loss"]
                    for site, scalars in sorted(sent.items())
                    if "contrast_loss" in scalars
                },
                "theta": {site: scalars["theta"] for site, scalars in sorted(sent.items()) if "theta" in scalars},
                "weight": dict(sorted(step.get("weights", {}).items())),
                "robust": {name: dict(sorted(found.items())) for name, found in sorted(step.get("robust", {}).items())},
                "bytes_up": moved.up,
                "bytes_down": moved.down,
                "answers": len(sent or step.get("bytes_up", {})),
                "refused": len(step.get("refused", {})),
            }
        )
    return rounds


def _known(results: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """What each site that was ever asked to learn said last of how many patients and images it has; None if nothing.

    Who sends sums says neither beside them, but how many images it has at the end.
    """
    found: dict[str, dict[str, float | None]] = {}
    for step in results["steps"]:
        if step["task"] in _LEARNING:
            for site in {*step.get("asked", ()), *step.get("scalars", {}), *step.get("refused", {})}:
                said = step.get("scalars", {}).get(site, {})
                at_last = results["sites"].get(site, {}).get("images_train")
                before = found.setdefault(site, {"patients": None, "images": at_last})
                found[site] = {unit: said.get(unit, before[unit]) for unit in _BEHIND}
    return found


def _behind(step: Mapping[str, Any], known: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any] | None:
    """The share of all training patients whose sites' updates made a round's model; None of a step that makes none.

    Counted in images where a site does not tell its patients, and left open where one tells neither: a site that never
    answered may be the largest of all.
    """
    if step["task"] not in _LEARNING:
        return None
    answered = set(step.get("scalars", {}))
    told: dict[str, Any] = {"sites": len(answered), "of_sites": len(known), "share": None, "unit": None}
    for unit in _BEHIND:
        counts = {site: said[unit] for site, said in known.items()}
        if counts and all(counts.values()):
            whole = sum(filter(None, counts.values()))
            share = sum(counts[site] or 0 for site in answered) / whole
            return {**told, "share": rounded(share), "unit": unit}
    return told


def _subgroups(sites: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(one, name) for name in ("column", "value", "sites")},
            **{
                name: None if share is None else {key: rounded(value) for key, value in share._asdict().items()}
                for name, share in (("sensitivity", one.sensitivity), ("specificity", one.specificity))
            },
        }
        for one in pooled_subgroups(sites)
    ]


def _title(name: str | None) -> str:
    try:
        return row(str(name)).title
    except FedretinaError:
        return str(name)


def _list(values: NDArray[np.float64]) -> list[float | None]:
    return [rounded(value) for value in values]
