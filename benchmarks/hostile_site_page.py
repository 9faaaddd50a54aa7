"""Renders the figures of docs/robust_rules.md from the stored runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import ROOT
from benchmarks.hostile_site import ATTACKS, RULES
from benchmarks.render import machine_line
from fedretina.storage import write_text
from fedretina_papers.markdown import between
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "robust_rules.md"
_BEGIN, _END = "<!-- begin figures -->", "<!-- end figures -->"


class _Case(NamedTuple):
    rule: str
    attack: str
    seed: int
    auc: float | None


def write_page(stored: Path) -> None:
    """Write the figures into the page, whose other words are written by hand."""
    write_text(PAGE, between(PAGE.read_text(encoding="utf-8"), _BEGIN, _END, figures(stored)))


def figures(stored: Path) -> str:
    """Tables and what they say; a seed that is not complete is left out."""
    runs = list(read_packed(stored).values())
    hostile = runs[-1]["hostile"]
    pairs = {(run["rule"], run["attack"]) for run in runs}
    seeds = [
        seed
        for seed in sorted({run["seed"] for run in runs})
        if {(run["rule"], run["attack"]) for run in runs if run["seed"] == seed} == pairs
    ]
    found = [run for seed in seeds for run in runs if run["seed"] == seed]
    cases = [_Case(case["rule"], case["attack"], case["seed"], _macro(case, hostile)) for case in found]
    rules, attacks = ([one for one in known if any(one in pair for pair in pairs)] for known in (RULES, ATTACKS))
    parts = [
        "Written by `python -m benchmarks.hostile_site --render` from "
        "[the stored runs](../benchmarks/results/hostile_site.jsonl.gz). "
        f"Macro test AUC, the plain mean over the four honest sites; mean over {len(seeds)} seeds "
        f"({', '.join(map(str, seeds))}), smallest and largest in brackets. 0.5 is chance.",
        "",
        f"| rule | {' | '.join(attacks)} |",
        "|---|" + "---|" * len(attacks),
        *(f"| {rule} | {' | '.join(_cell(cases, rule, attack) for attack in attacks)} |" for rule in rules),
        "",
        f"`{hostile}` trains honestly and then sends, in every round: its update turned round and five times as long; "
        "Gaussian noise 100 times as long as its update; its update 1000 times as long; the first again with theta "
        "forged to 1, the largest that UAW accepts. A dash stands where the rule does not read theta.",
        "",
        "What became of the hostile update, mean over rounds and seeds (norm bound: the share of it that counted; else "
        "its weight in the aggregate, of 1 in all):",
        "",
        f"| rule | {' | '.join(attacks)} |",
        "|---|" + "---|" * len(attacks),
        *(f"| {rule} | {' | '.join(_counted(found, rule, attack, hostile) for attack in attacks)} |" for rule in rules),
        "",
        *_reading(cases, rules, attacks, seeds),
        "",
        *_sizes(found, hostile),
        "",
        machine_line(runs[-1]["machine"]),
    ]
    return "\n".join(parts)


def _macro(case: Mapping[str, Any], hostile: str) -> float | None:
    values = [auc for site, auc in case["test_auc"].items() if site != hostile and auc is not None]
    return statistics.fmean(values) if values else None


def _values(cases: Sequence[_Case], rule: str, attack: str) -> list[float]:
    return [case.auc for case in cases if case.rule == rule and case.attack == attack and case.auc is not None]


def _cell(cases: Sequence[_Case], rule: str, attack: str) -> str:
    runs = [case for case in cases if case.rule == rule and case.attack == attack]
    values = _values(cases, rule, attack)
    if not runs:
        return "-"
    stopped = f"{len(runs) - len(values)} of {len(runs)} stopped" if len(values) < len(runs) else ""
    if not values:
        return stopped
    shown = f"{statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
    return f"{shown}, {stopped}" if stopped else shown


def _counted(cases: Sequence[Mapping[str, Any]], rule: str, attack: str, hostile: str) -> str:
    found = []
    for case in cases:
        if case["rule"] == rule and case["attack"] == attack:
            for weights, taken in zip(case["weights"], case["taken"], strict=True):
                found.append((taken or weights)[hostile])
    return f"{statistics.fmean(found):.3f}" if found else "-"


def _reading(cases: Sequence[_Case], rules: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What the figures say, by rule: the price without an attack, and the worst that an attack did."""
    lines = [
        "Price: macro AUC without an attack, less that of uniform weights on the same seed. Worst: the attack with the "
        "lowest mean, less the same rule without an attack.",
        "",
        "| rule | price, by seed | price, mean | worst attack | lost |",
        "|---|---|---:|---|---:|",
    ]
    calm = attacks[0]
    base = _values(cases, rules[0], calm)
    for rule in rules:
        own = _values(cases, rule, calm)
        price = [one - other for one, other in zip(own, base, strict=True)]
        means = {
            attack: statistics.fmean(values)
            for attack in attacks
            if attack != calm and (values := _values(cases, rule, attack))
        }
        worst = min(means, key=lambda attack: means[attack])
        lost = means[worst] - statistics.fmean(own)
        by_seed = ", ".join(f"{value:+.3f}" for value in price)
        lines.append(f"| {rule} | {by_seed} | {statistics.fmean(price):+.3f} | {worst} | {lost:+.3f} |")
    spread = max(max(found) - min(found) for rule in rules if (found := _values(cases, rule, calm)))
    return [
        *lines,
        "",
        f"Read these with care: {len(seeds)} seeds and test splits of a few dozen images per site. Without an attack, "
        f"the seeds of one rule lie up to {spread:.3f} apart: a price or a loss smaller than that is not shown to be "
        "there.",
    ]


def _sizes(found: Sequence[Mapping[str, Any]], hostile: str) -> list[str]:
    settings = found[-1]["settings"]
    images = next(case["images"] for case in found if case["images"])
    sites = ", ".join(
        f"{site} {train:.0f}/{test:.0f}{' (hostile)' if site == hostile else ''}"
        for site, (train, test) in images.items()
    )
    training = settings["training"]
    seconds = [case["cpu_s"] for case in found]
    return [
        f"Sizes: row `{settings['row']}` with its aggregation as above, {settings['network']['encoder']} with ImageNet "
        f"weights, {settings['images']['image_size']} px, {settings['phases'][0]['rounds']} rounds of one epoch, SGD "
        f"{training['learning_rate']}, batches of {training['batch_size']}, heads and BatchNorm personal; phantom "
        f"hospitals (images to train/to test): {sites}. Plain loop, one thread, {min(seconds):.0f} to "
        f"{max(seconds):.0f} CPU seconds per run on a machine shared with other work. Phantoms are synthetic: "
        "the order of the rules on real hospitals may differ.",
    ]
