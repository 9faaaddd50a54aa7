"""Renders the figures of docs/robust_rules.md from the stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import ROOT
from benchmarks.hostile_site import ATTACKS, RULES
from benchmarks.render import machine_line
from fedretina.report.text import NONE
from fedretina.storage import write_text
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, Line, mean_number, render
from fedretina_papers.markdown import between, spread
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "robust_rules.md"
_BEGIN, _END = "<!-- begin figures -->", "<!-- end figures -->"


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
    records = _records(found, hostile)
    rules, attacks = ([one for one in known if any(one in pair for pair in pairs)] for known in (RULES, ATTACKS))
    lines = [Line((rule,), rule) for rule in rules]
    counted = [Column(one, OfRun("counted"), row=f"{{}}: {one}", show=mean_number, unrun="-") for one in attacks]
    parts = [
        "Written by `python -m benchmarks.hostile_site --render` from "
        "[the stored runs](../benchmarks/results/hostile_site.jsonl.gz). "
        f"Macro test AUC, the plain mean over the four honest sites; mean over {len(seeds)} seeds "
        f"({', '.join(map(str, seeds))}), smallest and largest in brackets. 0.5 is chance.",
        "",
        *render(records, ["rule"], lines, [_auc(records, attack) for attack in attacks], right=()),
        f"`{hostile}` trains honestly and then sends, in every round: its update turned round and five times as long; "
        "Gaussian noise 100 times as long as its update; its update 1000 times as long; the first again with theta "
        "forged to 1, the largest that UAW accepts. A dash stands where the rule does not read theta.",
        "",
        "What became of the hostile update, mean over rounds and seeds (norm bound: the share of it that counted; else "
        "its weight in the aggregate, of 1 in all):",
        "",
        *render(records, ["rule"], lines, counted, right=()),
        *_reading(records, rules, attacks, seeds),
        "",
        *_sizes(found, hostile),
        "",
        machine_line(runs[-1]["machine"]),
    ]
    return "\n".join(parts)


def _records(found: Sequence[Mapping[str, Any]], hostile: str) -> Records:
    """A row for each rule under each attack; its sites are the honest ones."""
    held: dict[str, dict[int, dict[str, Any]]] = {}
    for case in found:
        honest = {site: {"auc": auc} for site, auc in case["test_auc"].items() if site != hostile}
        both = zip(case["weights"], case["taken"], strict=True)
        counted = [(taken or weights)[hostile] for weights, taken in both]
        one = {"sites": honest, "counted": fmean(counted) if counted else None}
        held.setdefault(f"{case['rule']}: {case['attack']}", {})[case["seed"]] = one
    return Records(held)


def _auc(records: Records, attack: str) -> Column:
    """Macro AUC under an attack, and how many seeds were stopped."""

    def cell(line: Line) -> str:
        row = f"{line.row}: {attack}"
        if row not in records:
            return "-"
        values, runs = records.values(row, "auc"), len(records.runs.loc[row])
        stopped = f"{runs - len(values)} of {runs} stopped" if len(values) < runs else ""
        return ", ".join(told for told in (spread(values) if values else "", stopped) if told)

    return Column(attack, told=cell)


def _reading(records: Records, rules: Sequence[str], attacks: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What the figures say, by rule: the price without an attack, and the worst that an attack did."""
    lines = [
        "Price: macro AUC without an attack, less that of uniform weights on the same seed. Worst: the attack with the "
        "lowest mean, less the same rule without an attack.",
        "",
    ]
    calm = attacks[0]

    def worst(rule: str) -> tuple[float, str]:
        means = [(_mean(records, rule, attack), attack) for attack in attacks if attack != calm]
        return min(((mean, attack) for mean, attack in means if mean is not None), key=itemgetter(0))

    def lost(line: Line) -> str:
        usual = _mean(records, line.row, calm)
        return NONE if usual is None else f"{worst(line.row)[0] - usual:+.3f}"

    price = Column("price, by seed", "auc", row=f"{{}}: {calm}", difference=True, show=_each)
    columns = [
        price,
        replace(price, title="price, mean", show=lambda values, places: _each([fmean(values)], places)),
        Column("worst attack", told=lambda line: worst(line.row)[1]),
        Column("lost", told=lost),
    ]
    lines += render(records, ["rule"], [Line((rule,), rule, rules[0]) for rule in rules], columns, right=(2, 4))
    held = (records.values(f"{rule}: {calm}", "auc") for rule in rules)
    away = max(max(found) - min(found) for found in held if found)
    return [
        *lines,
        f"Read these with care: {len(seeds)} seeds and test splits of a few dozen images per site. Without an attack, "
        f"the seeds of one rule lie up to {away:.3f} apart: a price or a loss smaller than that is not shown to be "
        "there.",
    ]


def _mean(records: Records, rule: str, attack: str) -> float | None:
    values = records.values(f"{rule}: {attack}", "auc")
    return fmean(values) if values else None


def _each(values: Sequence[float], places: int) -> str:
    return ", ".join(f"{value:+.{places}f}" for value in values)


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
