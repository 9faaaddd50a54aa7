"""Renders docs/small_sites_study.md from the stored runs of `benchmarks.small_sites`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill

from benchmarks.common import ROOT
from benchmarks.render import machine_line
from benchmarks.small_sites import HELD
from benchmarks.small_sites_figures import (
    FIGURES,
    ROWS,
    SETS,
    SUMS,
    Runs,
    counted,
    head,
    kept_outcome,
    mean,
    number_words,
    of_run,
    size_words,
    unasked,
    value,
)
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.storage import write_text
from fedretina_papers.markdown import between, listed
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "small_sites_study.md"
ANALYTIC = ROOT / "docs" / "analytic.md"
_BEGIN, _END = "<!-- from benchmarks/small_sites_page.py -->", "<!-- end -->"
_ABOUT = """# What heads from sums give small hospitals

Written by `python -m benchmarks.small_sites --render` from stored runs. Research software, not a medical device.

Of every site *n* training images are drawn by whole patients, and a quarter as many (10 or more) to validate on; the
test images are all that the site has, the same in every draw. The encoder is EfficientNet-Lite0 with the ImageNet
weights of its package, at 224 pixels. Every run is one of the product's own in the plain loop, and its figures are
those of the [verdict](verdict.md) of each site.

The control is each site's own head on the same encoder, a ridge regression on its own images: what one person could do
in an afternoon. The federated head of every grade is that of a ridge regression on all sites' images in one place, each
site's centred and scaled by itself. An answer without looking has an AUC of 0.5. Nothing trains: every row passes each
image once. Rows that train, alone, together and with all images in one place, stand in [F1](f1.md) and [O1](o1.md).

Every grade is in the sums, however few its patients, but for the rows with the default policy: by default a hospital
keeps grades of fewer than {fewest} patients out, encrypted or not, and gains less
([what it may set](analytic.md#what-leaves-and-what-a-total-says)). A site none of whose grades has so many patients has
no part in the sums and counts with its own head. So did, over sites and draws:
{apart}.

The draws share their test images, so "above own" counts draws and is no test of significance.
"""

_DEFAULT = """
With {size} images a site `both` is above the own head in {every} of {draws} draws with every grade, and in {held} by
default; the federated head alone in {every_alone} and {held_alone}. In AUC for referable disease `both` loses
{referable} by default."""

_AIM = """### What was aimed at

With 30 and 60 images a site the sums were to gain {gain:.2f} in both figures, and at no site should the kept model be
worse than the own head beyond chance. The mean of both heads gains, macro AUC / referable AUC:
"""
_AIMED = 0.03
_WORSE = """
A site where a head of its own does well with few images already is not helped by images of other cameras, and has too
few validation patients to see it: so the second aim is missed there.
"""


def write_page(stored: Path, page: Path, analytic: Path) -> None:
    """Write the page, and what the page on heads from sums shows of it."""
    runs: Runs = _completed(list(read_packed(stored).values()))
    shown = answers_table([run for run in runs if run["set"] == "fundus"])
    write_text(analytic, between(analytic.read_text(encoding="utf-8"), _BEGIN, _END, shown))
    parts = [_ABOUT.format(fewest=MIN_COUNT, apart=_apart(list(read_packed(stored).values())))]
    for name in sorted({run["set"] for run in runs}, key=list(SETS).index):
        parts += _of_set(name, [run for run in runs if run["set"] == name])
    used = sorted(Counter(run["machine"]["processor"] for run in runs).items())
    parts.append(f"Processors: {', '.join(f'{name} ({count} runs)' for name, count in used)}. The last:\n")
    parts.append(machine_line(runs[-1]["machine"]))
    write_text(page, "\n".join(parts) + "\n")


def _completed(runs: Runs) -> Runs:
    """A site that could have no part in the sums keeps its own head, and counts with it."""
    full = {(run["set"], run["size"], run["draw"]): run["sites"] for run in runs if run["row"] == "both"}
    found = []
    for run in runs:
        sites = dict(run["sites"])
        for site in run["images"].keys() - sites.keys():
            verdict = full[run["set"], run["size"], run["draw"]][site]
            own = verdict["test"]["models"]["own"]
            models = {"own": own, "federated": own}
            sites[site] = {"kept": "own", "test": {"models": models, "differences": {}}}
        found.append({**run, "sites": sites})
    return found


def _no_choice(runs: Runs) -> list[str]:
    """Why "what validation keeps" is the row of the mean of both heads where sites are small."""
    found = unasked(runs)
    if not found.outcomes:
        return []
    sizes = listed([number_words(size) for size in found.always])
    same = f" So at {sizes} that row is the mean of both heads." if sizes else ""
    return [
        f"With fewer than {LEAST_PATIENTS} ill or {LEAST_PATIENTS} well validation patients the federated model is",
        f'kept unasked. In "what validation keeps" that was so, over sites and draws, for {found.counts}.{same}',
        f"Of these {len(found.outcomes)} it {found.words}.",
        "",
    ]


def _apart(runs: Runs) -> str:
    """How often a site had no part in the sums, in words."""
    told = []
    for name, title in SETS.items():
        held = [run for run in runs if (run["set"], run["row"]) == (name, "both_held")]
        found = {
            size: sum(len(run["images"].keys() - run["sites"].keys()) for run in held if run["size"] == size)
            for size in sorted({run["size"] for run in held})
        }
        of = {size: sum(len(run["images"]) for run in held if run["size"] == size) for size in found}
        counts = listed([f"{count} of {of[size]} at {number_words(size)}" for size, count in found.items() if count])
        if counts:
            told.append(f"{title}: {counts}")
    return "; ".join(told) or "none"


def answers_table(runs: Runs) -> str:
    """What heads from sums answer with, side by side, with and without grades of few patients: macro AUC."""
    columns = {
        "own": ("both", "own"),
        "federated": ("federated", "federated"),
        "`both`": ("both", "federated"),
        "what the verdict keeps": ("both", "kept"),
        "federated, by default": ("federated_held", "federated"),
        "`both`, by default": ("both_held", "federated"),
    }
    lines = [f"| images a site | {' | '.join(columns)} |", f"|{'---|' * (1 + len(columns))}"]
    sizes = sorted({run["size"] for run in runs})
    at = {
        (row, size): [run for run in runs if (run["row"], run["size"]) == (row, size)] for row in ROWS for size in sizes
    }
    for size in sizes:
        means = [f"{mean(at[row, size], model, 'auc'):.3f}" for row, model in columns.values()]
        lines.append(f"| {size_words(size, runs).removeprefix('n = ')} | {' | '.join(means)} |")
    above = {
        row: sum(mean([run], "federated", "auc") > mean([run], "own", "auc") for run in at[row, sizes[0]])
        for row in SUMS
    }
    losses = [
        mean(at["both", size], "federated", "referable_auc") - mean(at["both_held", size], "federated", "referable_auc")
        for size in sizes
    ]
    text = _DEFAULT.format(
        size=sizes[0],
        draws=len(at["both", sizes[0]]),
        every=above["both"],
        held=above["both_held"],
        every_alone=above["federated"],
        held_alone=above["federated_held"],
        referable=listed([f"{round(loss, 3) + 0.0:.3f}" for loss in losses]),
    )
    return "\n".join([*lines, text])


def _of_set(name: str, runs: Runs) -> list[str]:
    sizes = sorted({run["size"] for run in runs})
    sites = sorted(runs[0]["sites"])
    found = [f"## {SETS[name]}", ""]
    tested = ", ".join(f"{site} {runs[0]['images'][site]['test']}" for site in sites)
    found += [f"Test images: {tested}. Macro AUC / referable AUC, mean of the sites and draws.", ""]
    found += _means(runs, sizes)
    found += _no_choice(runs)
    found += ["### The model that is kept against the own head, site by site", ""]
    found += _outcomes(runs, sizes)
    found += _aim(name, runs, sites)
    found += [
        "### By site",
        "",
        "Own head, then what `analytic` answers with (mean of both heads), and in how many draws the model that is",
        "kept was better than the own head beyond its interval, and worse.",
        "",
    ]
    found += _by_site([run for run in runs if run["row"] == "both"], sizes, sites)
    found += ["### What it cost", ""]
    found += _costs(runs)
    return found


def _aim(name: str, runs: Runs, sites: Sequence[str]) -> list[str]:
    """What issue and figures say of the aim, which was set for photographs alone."""
    if name != "fundus":
        return []
    sizes = [30, 60]
    found = [*_AIM.format(gain=_AIMED).splitlines(), "", *head("grades in the sums", sizes, runs)]
    missed = []
    for row, title in (("both", "all"), ("both_held", "by the default policy")):
        cells = []
        for size in sizes:
            there = [run for run in runs if (run["row"], run["size"]) == (row, size)]
            gains = {figure: mean(there, "federated", figure) - mean(there, "own", figure) for figure in FIGURES}
            cells.append(" / ".join(f"{gain:+.4f}" for gain in gains.values()))
            missed += [
                f"{FIGURES[one]} at {number_words(size)} ({title})" for one, gain in gains.items() if gain < _AIMED
            ]
        found.append(f"| {title} | {' | '.join(cells)} |")
    kept = {site: [kept_outcome(run["sites"][site]) for run in runs if run["row"] == "both"] for site in sites}
    worse = listed([f"{outcomes.count(-1)} of {len(outcomes)} at {site}" for site, outcomes in kept.items()])
    words = (
        f"Below it: {listed(missed) or 'none'}. Over all sizes and draws the kept model, every grade in the sums, was "
        f"worse beyond its interval in {worse}; of equal models one in forty would be."
    )
    return [*found, "", fill(words, 120, break_long_words=False), *_WORSE.splitlines(), ""]


def _means(runs: Runs, sizes: Sequence[int]) -> list[str]:
    lines = head("row", sizes, runs)
    for row, title in ROWS.items():
        source, model = ("both", row) if row in ("own", "kept") else (row, "federated")
        mine = [run for run in runs if run["row"] == source]
        if mine:
            cells = [_cell([run for run in mine if run["size"] == size], model) for size in sizes]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(runs: Runs, model: str) -> str:
    """The figures of a cell, and in how many draws they are above the own head's."""
    texts, above = [], []
    for figure in FIGURES:
        pairs = [(of_run(run, model, figure), of_run(run, "own", figure)) for run in runs]
        known = [(mine, own) for mine, own in pairs if mine is not None and own is not None]
        if known:
            texts.append(f"{fmean(mine for mine, _ in known):.3f}")
            above.append(f"{sum(mine > own for mine, own in known)}")
    told = "" if model == "own" else f" ({', '.join(above)} of {len(runs)} above own)"
    return " / ".join(texts) + told


def _by_site(runs: Runs, sizes: Sequence[int], sites: Sequence[str]) -> list[str]:
    lines = head("site", sizes, runs)
    for site in sites:
        cells = []
        for size in sizes:
            there = [run for run in runs if run["size"] == size]
            texts = []
            for figure in FIGURES:
                pairs = [(value(run, site, "own", figure), value(run, site, "federated", figure)) for run in there]
                known = [(own, mine) for own, mine in pairs if own is not None and mine is not None]
                if known:
                    texts.append(f"{fmean(own for own, _ in known):.3f} to {fmean(mine for _, mine in known):.3f}")
            cells.append("; ".join([*texts, counted([kept_outcome(run["sites"][site]) for run in there])]))
        lines.append(f"| {site} | {' | '.join(cells)} |")
    return [*lines, ""]


def _outcomes(runs: Runs, sizes: Sequence[int]) -> list[str]:
    lines = [
        "Sites and draws in which the kept model was better than the own head beyond its 95 % interval over test",
        "patients, and worse beyond it, by referable AUC where the site's grades have one, else by macro AUC. Of equal",
        "models one in forty would be called better, and one in forty worse. The interval is of 200 draws of patients;",
        "a hospital's report has 1000.",
        "",
        *head("row", sizes, runs),
    ]
    for row in (row for row in ROWS if any(run["row"] == row for run in runs)):
        mine = [run for run in runs if run["row"] == row]
        cells = [
            counted([kept_outcome(site) for run in mine if run["size"] == size for site in run["sites"].values()])
            for size in sizes
        ]
        lines.append(f"| {ROWS[row]} | {' | '.join(cells)} |")
    return [*lines, ""]


def _costs(runs: Runs) -> list[str]:
    lines = ["| row | seconds a run, median, all sites in one process | bytes up a run |", "|---|---|---|"]
    for row in (row for row in ROWS if row not in HELD and any(run["row"] == row for run in runs)):
        mine = [run for run in runs if run["row"] == row]
        lines.append(
            f"| {row} | {median(run['seconds'] for run in mine):.0f} | {median(run['bytes_up'] for run in mine):,.0f} |"
        )
    return [
        *lines,
        "",
        "Features of images that an earlier run has seen are read from the disk. Other work ran on the machine at",
        "times.",
        "",
    ]
