"""Renders docs/small_sites_study.md from the stored runs of `benchmarks.small_sites`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any

from benchmarks.common import ROOT
from benchmarks.render import machine_line
from benchmarks.small_sites import HELD
from benchmarks.small_sites_figures import (
    FIGURES,
    ROWS,
    SETS,
    SUMS,
    Runs,
    cell_text,
    counted,
    draws_words,
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
README = ROOT / "README.md"
ANALYTIC = ROOT / "docs" / "analytic.md"
_BEGIN, _END = "<!-- from benchmarks/small_sites_page.py -->", "<!-- end -->"
_IN_README = {"fundus": ("own", "both", "both_held", "feduaa"), "oct": ("own", "both", "both_held", "feduaa")}
"""Sets and rows that README shows; the page has all."""
_ABOUT = """# What sharing gives small hospitals

Written by `python -m benchmarks.small_sites --render` from stored runs. Research software, not a medical device.

Of every site *n* training images are drawn by whole patients, and a quarter as many (10 or more) to validate on; the
test images are all that the site has, the same in every draw. The encoder is EfficientNet-Lite0 with the ImageNet
weights of its package, at 224 pixels. Every run is one of the product's own in the plain loop, and its figures are
those of the [verdict](verdict.md) of each site. The control is each site's own head on the same encoder without any
training: what one person could do in an afternoon.

Every grade is in the sums, however few its patients, but for the rows with the default policy: by default a hospital
keeps grades of fewer than {fewest} patients out, encrypted or not, and gains less
([what it may set](analytic.md#what-leaves-and-what-a-total-says)). A site none of whose grades has so many patients has
no part in the sums and counts with its own head. So did, over sites and draws:
{apart}.

The draws share their test images, so "above own" counts draws and is no test of significance. Trained rows follow the
[recipe](small_sites.md) `small_sites`, 8 rounds; its rate was chosen at 60 images a site in a draw of its own, on
training images that this draw left out. Their encoder, from the fourth stage on, is what they share; `feduaa` keeps
heads at home, and `fedbn` its BatchNorm, of which the recipe moves scales and shifts but no statistics, so that
`fedbn` and `fedavg` are nearly one row here.
"""

_WITHHELD = """
Every grade is in these sums, but for the lines with the default policy: by default a hospital keeps grades of fewer
than {fewest} patients out of them, encrypted or not
([why, and what it may set](docs/analytic.md#what-leaves-and-what-a-total-says))."""
_UNASKED = """
A hospital with fewer than {enough} ill or {enough} well validation patients keeps the federated model unasked
([why](docs/verdict.md#for-engineers)). In the photographs' second line those were, over sites and draws, {counts}. Of
these {of} the federated model {words}."""
_DEFAULT = """
With {size} images a site `both` is above the own head in {every} of {draws} draws with every grade, and in {held} by
default; the federated head alone in {every_alone} and {held_alone}. In AUC for referable disease `both` loses
{referable} by default."""

_WHY: Mapping[str, Sequence[str]] = {
    "fundus": (
        "Up to 60 images a site no trained row is above in both figures; at 120 FedUAA is, and with all images (one",
        "draw) every trained row is. A likely reason, not tested here: these rows share the encoder and keep the heads",
        "at home, so a head is fitted on its own site's few images, while the sums fit one on the images of all sites;",
        "that a shared head is what helps, [F1](f1.md) shows. With hundreds of images a head can stand on its own, and",
        "an encoder that has learned eyes gives it more than frozen features do. Whether a site that trained as long",
        "alone would have got as much was not run here.",
        "",
    ),
    "oct": (
        "With 20 scans of skewed classes the trained rows are behind the sums, with 50 they are level, and from 100 on",
        "`feduaa`, `fedbn` and `fedavg` are ahead in referable AUC. The likely reason is that of the photographs, not",
        "tested here: a head at home sees one or two scans of a class that is rare at its site, and with even classes,",
        "below, these rows are level at 20 already. `fedee_tweu` is behind in macro AUC in all draws but one:",
        "its answer is the mean of its exits, of which the first stand on stages that do not train. What each exit",
        "would give alone was not run.",
        "",
    ),
    "oct_even": (
        "With even classes `feduaa`, `fedbn` and `fedavg` are level with the sums at 20 and 50 scans and ahead from",
        "100 on, most clearly in referable AUC; `fedee_tweu` is behind in macro AUC in every draw. Likely reasons",
        "stand above, at the skewed classes.",
        "",
    ),
}
"""Why a set's trained rows do or do not come out above the sums, as far as its figures tell."""

_AIM = """### What was aimed at

With 30 and 60 images a site the sums were to gain {gain:.2f} in both figures, and at no site should the kept model be
worse than the own head beyond chance. The mean of both heads gains, macro AUC / referable AUC:
"""
_AIMED = 0.03
_WORSE = """
A site where a head of its own does well with few images already is not helped by images of other cameras, and has too
few validation patients to see it: so the second aim is missed there.
"""


def write_page(stored: Path, page: Path, readme: Path, analytic: Path) -> None:
    """Write the page, and what README and the page on heads from sums show of it."""
    runs: Runs = _completed(list(read_packed(stored).values()))
    _between(readme, f"{readme_table(runs)}\n{_WITHHELD.format(fewest=MIN_COUNT)}\n{_kept_unasked(runs)}")
    _between(analytic, answers_table([run for run in runs if run["set"] == "fundus"]))
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


def _kept_unasked(runs: Runs) -> str:
    """README's words on who keeps the federated model without a choice."""
    found = unasked([run for run in runs if run["set"] == "fundus"])
    text = _UNASKED.format(enough=LEAST_PATIENTS, counts=found.counts, of=len(found.outcomes), words=found.words)
    return f"\n{fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)}"


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


def _between(page: Path, text: str) -> None:
    write_text(page, between(page.read_text(encoding="utf-8"), _BEGIN, _END, text))


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


def readme_table(runs: Runs) -> str:
    """A line per set of images and row, a column per number of training images a site."""
    lines: list[str] = []
    for name, shown in _IN_README.items():
        there = [run for run in runs if run["set"] == name]
        sizes = sorted({run["size"] for run in there})
        lines += ["", *head(SETS[name], sizes, there)]
        for row in shown:
            source, model = ("both", row) if row == "own" else (row, "federated")
            mine = [run for run in there if run["row"] == source]
            cells = [_beside_own([run for run in mine if run["size"] == size], model, there) for size in sizes]
            lines.append(f"| {ROWS[row]} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def _beside_own(runs: Runs, model: str, all_runs: Runs) -> str:
    """The figures of a cell; of fewer draws than the column has, with the own head's in the same draws."""
    figures = cell_text(runs, model)
    draws = {run["draw"] for run in runs}
    if not runs or draws == {run["draw"] for run in all_runs if run["size"] == runs[0]["size"]}:
        return figures
    return f"{figures} (own {cell_text(runs, 'own')}, {draws_words(len(draws))})"


def _of_set(name: str, runs: Runs) -> list[str]:
    sizes = sorted({run["size"] for run in runs})
    sites = sorted(runs[0]["sites"])
    found = [f"## {SETS[name]}", ""]
    tested = ", ".join(f"{site} {runs[0]['images'][site]['test']}" for site in sites)
    found += [f"Test images: {tested}. Macro AUC / referable AUC, mean of the sites and draws.", ""]
    found += _means(runs, sizes)
    found += _no_choice(runs)
    found += _beside_sums(runs, sizes)
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
            cells = [
                _cell([run for run in mine if run["size"] == size], model, [run for run in runs if run["size"] == size])
                for size in sizes
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(runs: Runs, model: str, column: Runs) -> str:
    """The figures of a cell; of fewer draws than the column has, with own head's and sums' in the same draws."""
    if not runs:
        return ""
    texts, above = [], []
    for figure in FIGURES:
        pairs = [(of_run(run, model, figure), of_run(run, "own", figure)) for run in runs]
        known = [(mine, own) for mine, own in pairs if mine is not None and own is not None]
        if known:
            texts.append(f"{fmean(mine for mine, _ in known):.3f}")
            above.append(f"{sum(mine > own for mine, own in known)}")
    told = "" if model == "own" else f" ({', '.join(above)} of {len(runs)} above own)"
    draws = {run["draw"] for run in runs}
    if draws != {run["draw"] for run in column}:
        sums = [run for run in column if run["row"] == "both" and run["draw"] in draws]
        told += (
            f"; own {cell_text(runs, 'own', 3)}, mean of both heads {cell_text(sums, 'federated', 3)} in these draws"
        )
    return " / ".join(texts) + told


def _beside_sums(runs: Runs, sizes: Sequence[int]) -> list[str]:
    """Trained rows against the mean of own and federated head, in equal draws; nothing where none was run."""
    lines = [
        "### Rows with training against `analytic`",
        "",
        "The trained row's figures less those of the mean of own and federated head in the same draws, mean of the",
        "sites and draws, and in how many draws they are above.",
        "",
        *head("row", sizes, runs),
    ]
    sums = {(run["size"], run["draw"]): run for run in runs if run["row"] == "both"}
    trained = [row for row in ROWS if row not in SUMS and any(run["row"] == row for run in runs)]
    for row in trained:
        cells = []
        for size in sizes:
            there = [run for run in runs if run["row"] == row and run["size"] == size]
            pairs = [(run, sums[size, run["draw"]]) for run in there if (size, run["draw"]) in sums]
            leads = [_leads(pairs, figure) for figure in FIGURES]
            means = " / ".join(f"{fmean(lead):+.3f}" for lead in leads if lead)
            above = ", ".join(str(sum(one > 0 for one in lead)) for lead in leads if lead)
            cells.append(f"{means} ({above} of {len(pairs)} above)" if pairs else "")
        lines.append(f"| {ROWS[row]} | {' | '.join(cells)} |")
    return [*lines, "", *_so_far(runs, trained), "", *_WHY.get(runs[0]["set"], ())] if trained else []


def _so_far(runs: Runs, trained: Sequence[str]) -> list[str]:
    """How many draws the trained rows have, where these are not all, and what came out in each of theirs."""
    sums = {(run["size"], run["draw"]): run for run in runs if run["row"] == "both"}
    ran: dict[tuple[str, int], Runs] = {}
    for run in runs:
        if run["row"] in trained and (run["size"], run["draw"]) in sums:
            ran.setdefault((run["row"], run["size"]), []).append(run)
    whole = Counter(size for size, _ in sums)
    lines = []
    short = any(len(each) < whole[size] for (_, size), each in ran.items())
    if short:
        fewest, most = min(map(len, ran.values())), max(map(len, ran.values()))
        told = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        lines.append(f"Not every draw of the trained rows has run yet: {told} of {draws_words(max(whole.values()))}.")
    for words, better, figures in (("above in both figures", 1, tuple(FIGURES)), ("below in macro AUC", -1, ("auc",))):
        at = {
            row: [size for size in sorted(whole) if _always(ran.get((row, size), []), sums, better, figures)]
            for row in trained
        }
        found = [f"`{row}` at {listed([number_words(size) for size in sizes])}" for row, sizes in at.items() if sizes]
        lines.append(f"In every draw{' that has run' if short else ''}, {words}: {'; '.join(found) or 'none'}.")
    return lines


def _always(runs: Runs, sums: Mapping[tuple[int, int], Any], better: int, figures: Sequence[str]) -> bool:
    pairs = [(run, sums[run["size"], run["draw"]]) for run in runs]
    leads = [one * better > 0 for figure in figures for one in _leads(pairs, figure)]
    return bool(leads) and all(leads)


def _leads(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], figure: str) -> list[float]:
    both = [[of_run(run, "federated", figure) for run in pair] for pair in pairs]
    return [mine - theirs for mine, theirs in both if mine is not None and theirs is not None]


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
