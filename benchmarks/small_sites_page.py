"""Renders docs/small_sites_study.md from the stored runs of `benchmarks.small_sites`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks.common import ROOT
from benchmarks.render import machine_line
from benchmarks.small_sites import HELD
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.storage import write_text
from fedretina_papers.markdown import listed
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "small_sites_study.md"
README = ROOT / "README.md"
ANALYTIC = ROOT / "docs" / "analytic.md"
_BEGIN, _END = "<!-- from benchmarks/small_sites_page.py -->", "<!-- end -->"
FIGURES = {"auc": "macro AUC", "referable_auc": "referable AUC"}
_SETS = {
    "fundus": "Fundus photographs",
    "oct": "OCT scans, clients of skewed classes",
    "oct_even": "OCT scans, clients of even classes",
}
_ROWS = {
    "own": "own head, nothing shared",
    "federated": "`analytic`, the federated head",
    "both": "`analytic`, the mean of own and federated head",
    "federated_held": "`analytic`, the federated head, with the default policy",
    "both_held": "`analytic`, the mean of both heads, with the default policy",
    "kept": "what validation keeps of own head and `analytic`",
    "feduaa": "`feduaa`, with `recipe: small_sites`",
    "fedbn": "`fedbn`, with `recipe: small_sites`",
    "fedavg": "`fedavg`, with `recipe: small_sites`",
    "fedee_tweu": "`fedee_tweu`, with `recipe: small_sites`",
}
_SUMS = ("federated", "both", *HELD)
"""The rows that train nothing."""
_IN_README = {"fundus": ("own", "both", "both_held", "feduaa"), "oct": ("own", "both")}
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
([what it may set](analytic.md#what-leaves-and-what-a-total-says)). These rows were run on photographs. A site none of
whose grades has so many patients has no part in the sums and counts with its own head, as {apart}.

The draws share their test images, so "above own" counts draws and is no test of significance. Trained rows follow the
[recipe](small_sites.md) `small_sites`, 8 rounds; its rate was chosen at 60 images a site in a draw of its own, on
training images that this draw left out. Their encoder, from the fourth stage on, is what they share; `feduaa` keeps
heads at home, and `fedbn` its BatchNorm, of which the recipe moves scales and shifts but no statistics, so that
`fedbn` and `fedavg` are nearly one row here.
"""

_WITHHELD = """
Every grade is in these sums, but for the line with the default policy: by default a hospital keeps grades of fewer than
{fewest} patients out of them, encrypted or not
([why, and what it may set](docs/analytic.md#what-leaves-and-what-a-total-says)). On scans that was not run."""
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
}
"""Why a set's trained rows do or do not come out above the sums, as far as its figures tell."""

Runs = list[dict[str, Any]]


def write_page(stored: Path, page: Path, readme: Path, analytic: Path) -> None:
    """Write the page, and what README and the page on heads from sums show of it."""
    runs: Runs = _completed(list(read_packed(stored).values()))
    _between(readme, f"{readme_table(runs)}\n{_WITHHELD.format(fewest=MIN_COUNT)}\n{_kept_unasked(runs)}")
    _between(analytic, answers_table([run for run in runs if run["set"] == "fundus"]))
    parts = [_ABOUT.format(fewest=MIN_COUNT, apart=_apart(list(read_packed(stored).values())))]
    for name in sorted({run["set"] for run in runs}, key=list(_SETS).index):
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


class _Unasked(NamedTuple):
    """The mean of both heads at sites with too few validation patients to choose by: kept without a choice.

    Attributes:
        counts: How many sites and draws at each size where there are any, of how many, in words.
        always: Sizes at which it was every site in every draw.
        outcomes: See `kept_outcome`, of each such site and draw.
    """

    counts: str
    always: Sequence[int]
    outcomes: Sequence[int]

    @property
    def words(self) -> str:
        """How it fared, to stand behind "it"."""
        better, worse = self.outcomes.count(1), self.outcomes.count(-1)
        return f"was better than the own head beyond its interval in {better}, and worse in {worse}"


def _unasked(runs: Runs) -> _Unasked:
    by_size: dict[int, list[Mapping[str, Any]]] = {}
    for run in (run for run in runs if run["row"] == "both"):
        by_size.setdefault(run["size"], []).extend(run["sites"].values())
    few = {size: [site for site in by_size[size] if site["reason"] == "too_few_patients"] for size in sorted(by_size)}
    return _Unasked(
        listed([f"{len(found)} of {len(by_size[size])} at {_number(size)}" for size, found in few.items() if found]),
        [size for size, found in few.items() if len(found) == len(by_size[size])],
        [kept_outcome(site) for found in few.values() for site in found],
    )


def _kept_unasked(runs: Runs) -> str:
    """README's words on who keeps the federated model without a choice."""
    found = _unasked([run for run in runs if run["set"] == "fundus"])
    text = _UNASKED.format(enough=LEAST_PATIENTS, counts=found.counts, of=len(found.outcomes), words=found.words)
    return f"\n{fill(text.strip(), 120, break_long_words=False, break_on_hyphens=False)}"


def _no_choice(runs: Runs) -> list[str]:
    """Why "what validation keeps" is the row of the mean of both heads where sites are small."""
    found = _unasked(runs)
    if not found.outcomes:
        return []
    sizes = listed([_number(size) for size in found.always])
    same = f" So at {sizes} that row is the mean of both heads." if sizes else ""
    return [
        f"With fewer than {LEAST_PATIENTS} ill or {LEAST_PATIENTS} well validation patients the federated model is",
        f'kept unasked. In "what validation keeps" that was so, over sites and draws, for {found.counts}.{same}',
        f"Of these {len(found.outcomes)} it {found.words}.",
        "",
    ]


def _between(page: Path, text: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    write_text(page, f"{before}{_BEGIN}\n{text}\n{_END}{after}")


def _apart(runs: Runs) -> str:
    """How often a site had no part in the sums, in words."""
    held = [run for run in runs if run["row"] == "both_held"]
    found = {
        size: sum(len(run["images"].keys() - run["sites"].keys()) for run in held if run["size"] == size)
        for size in sorted({run["size"] for run in held})
    }
    of = {size: sum(len(run["images"]) for run in held if run["size"] == size) for size in found}
    return (
        listed([f"{count} of {of[size]} did at {_number(size)}" for size, count in found.items() if count])
        or "none did"
    )


def answers_table(runs: Runs) -> str:
    """What heads from sums answer with, side by side, with and without grades of few patients: macro AUC."""
    columns = {
        "own": ("both", "own"),
        "federated": ("federated", "federated"),
        "`both`": ("both", "federated"),
        "by validation": ("both", "kept"),
        "federated, by default": ("federated_held", "federated"),
        "`both`, by default": ("both_held", "federated"),
    }
    lines = [f"| images a site | {' | '.join(columns)} |", f"|{'---|' * (1 + len(columns))}"]
    sizes = sorted({run["size"] for run in runs})
    at = {
        (row, size): [run for run in runs if (run["row"], run["size"]) == (row, size)]
        for row in _ROWS
        for size in sizes
    }
    for size in sizes:
        means = [f"{_mean(at[row, size], model, 'auc'):.3f}" for row, model in columns.values()]
        lines.append(f"| {_size(size, runs).removeprefix('n = ')} | {' | '.join(means)} |")
    above = {
        row: sum(_mean([run], "federated", "auc") > _mean([run], "own", "auc") for run in at[row, sizes[0]])
        for row in _SUMS
    }
    losses = [
        _mean(at["both", size], "federated", "referable_auc")
        - _mean(at["both_held", size], "federated", "referable_auc")
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


def _mean(runs: Runs, model: str, figure: str) -> float:
    """Of a figure that every run has, as every fundus site has; not a number where there is no run."""
    values = [one for run in runs if (one := of_run(run, model, figure)) is not None]
    return fmean(values) if values else math.nan


def readme_table(runs: Runs) -> str:
    """A line per set of images and row, a column per number of training images a site."""
    lines: list[str] = []
    for name, shown in _IN_README.items():
        there = [run for run in runs if run["set"] == name]
        sizes = sorted({run["size"] for run in there})
        lines += ["", *_head(_SETS[name], sizes, there)]
        for row in shown:
            source, model = ("both", row) if row == "own" else (row, "federated")
            mine = [run for run in there if run["row"] == source]
            cells = [_beside_own([run for run in mine if run["size"] == size], model, there) for size in sizes]
            lines.append(f"| {_ROWS[row]} | {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def _beside_own(runs: Runs, model: str, all_runs: Runs) -> str:
    """The figures of a cell; of fewer draws than the column has, with the own head's in the same draws."""
    figures = _figures(runs, model)
    draws = {run["draw"] for run in runs}
    if not runs or draws == {run["draw"] for run in all_runs if run["size"] == runs[0]["size"]}:
        return figures
    return f"{figures} (own {_figures(runs, 'own')}, {_draws(len(draws))})"


def _figures(runs: Runs, model: str, digits: int = 2) -> str:
    """Mean of sites and draws of each figure."""
    means = ([one for run in runs if (one := of_run(run, model, figure)) is not None] for figure in FIGURES)
    return " / ".join(f"{fmean(values):.{digits}f}" for values in means if values)


def _of_set(name: str, runs: Runs) -> list[str]:
    sizes = sorted({run["size"] for run in runs})
    sites = sorted(runs[0]["sites"])
    found = [f"## {_SETS[name]}", ""]
    tested = ", ".join(f"{site} {runs[0]['images'][site]['test']}" for site in sites)
    found += [f"Test images: {tested}. Macro AUC / referable AUC, mean of the sites and draws.", ""]
    found += _means(runs, sizes)
    found += _no_choice(runs)
    found += _beside_sums(runs, sizes)
    found += ["### The model that is kept against the own head, site by site", ""]
    found += _outcomes(runs, sizes)
    found += ["### By site", "", "Own head, then what `analytic` answers with (mean of both heads).", ""]
    found += _by_site([run for run in runs if run["row"] == "both"], sizes, sites)
    found += ["### What it cost", ""]
    found += _costs(runs)
    return found


def value(run: Mapping[str, Any], site: str, model: str, figure: str) -> float | None:
    """A figure of a site's test images; "kept" is the model that the site's validation kept."""
    verdict = run["sites"][site]
    wanted = verdict["kept"] if model == "kept" else model
    found: float | None = verdict["test"]["models"].get(wanted, {}).get(figure)
    return found


def of_run(run: Mapping[str, Any], model: str, figure: str) -> float | None:
    """A figure of a run, mean of the sites that have it."""
    values = [one for site in run["sites"] if (one := value(run, site, model, figure)) is not None]
    return fmean(values) if values else None


def _means(runs: Runs, sizes: Sequence[int]) -> list[str]:
    lines = _head("row", sizes, runs)
    for row, title in _ROWS.items():
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
        told += f"; own {_figures(runs, 'own', 3)}, mean of both heads {_figures(sums, 'federated', 3)} in these draws"
    return " / ".join(texts) + told


def _beside_sums(runs: Runs, sizes: Sequence[int]) -> list[str]:
    """Trained rows against the mean of own and federated head, in equal draws; nothing where none was run."""
    lines = [
        "### Rows with training against `analytic`",
        "",
        "The trained row's figures less those of the mean of own and federated head in the same draws, mean of the",
        "sites and draws, and in how many draws they are above.",
        "",
        *_head("row", sizes, runs),
    ]
    sums = {(run["size"], run["draw"]): run for run in runs if run["row"] == "both"}
    trained = [row for row in _ROWS if row not in _SUMS and any(run["row"] == row for run in runs)]
    for row in trained:
        cells = []
        for size in sizes:
            there = [run for run in runs if run["row"] == row and run["size"] == size]
            pairs = [(run, sums[size, run["draw"]]) for run in there if (size, run["draw"]) in sums]
            leads = [_leads(pairs, figure) for figure in FIGURES]
            means = " / ".join(f"{fmean(lead):+.3f}" for lead in leads if lead)
            above = ", ".join(str(sum(one > 0 for one in lead)) for lead in leads if lead)
            cells.append(f"{means} ({above} of {len(pairs)} above)" if pairs else "")
        lines.append(f"| {_ROWS[row]} | {' | '.join(cells)} |")
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
    if any(len(each) < whole[size] for (_, size), each in ran.items()):
        fewest, most = min(map(len, ran.values())), max(map(len, ran.values()))
        told = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        lines.append(f"Not every draw of the trained rows has run yet: {told} of {_draws(max(whole.values()))}.")
    for words, better, figures in (("above in both figures", 1, tuple(FIGURES)), ("below in macro AUC", -1, ("auc",))):
        at = {
            row: [size for size in sorted(whole) if _always(ran.get((row, size), []), sums, better, figures)]
            for row in trained
        }
        found = [f"`{row}` at {listed([_number(size) for size in sizes])}" for row, sizes in at.items() if sizes]
        lines.append(f"In every draw that has run, {words}: {'; '.join(found) or 'none'}.")
    return lines


def _always(runs: Runs, sums: Mapping[tuple[int, int], Any], better: int, figures: Sequence[str]) -> bool:
    pairs = [(run, sums[run["size"], run["draw"]]) for run in runs]
    leads = [one * better > 0 for figure in figures for one in _leads(pairs, figure)]
    return bool(leads) and all(leads)


def _leads(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], figure: str) -> list[float]:
    both = [[of_run(run, "federated", figure) for run in pair] for pair in pairs]
    return [mine - theirs for mine, theirs in both if mine is not None and theirs is not None]


def _by_site(runs: Runs, sizes: Sequence[int], sites: Sequence[str]) -> list[str]:
    lines = _head("site", sizes, runs)
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
            cells.append("; ".join(texts))
        lines.append(f"| {site} | {' | '.join(cells)} |")
    return [*lines, ""]


def _outcomes(runs: Runs, sizes: Sequence[int]) -> list[str]:
    lines = [
        "Sites and draws in which the kept model was better than the own head beyond its 95 % interval over test",
        "patients, and worse beyond it, by referable AUC where the site's grades have one, else by macro AUC. Of equal",
        "models one in forty would be called better, and one in forty worse.",
        "",
        *_head("row", sizes, runs),
    ]
    for row in (row for row in _ROWS if any(run["row"] == row for run in runs)):
        mine = [run for run in runs if run["row"] == row]
        cells = [
            _counted([kept_outcome(site) for run in mine if run["size"] == size for site in run["sites"].values()])
            for size in sizes
        ]
        lines.append(f"| {_ROWS[row]} | {' | '.join(cells)} |")
    return [*lines, ""]


def kept_outcome(verdict: Mapping[str, Any]) -> int:
    """1 where the kept model is better than the own head beyond its interval, -1 where it is worse, else 0."""
    if verdict["kept"] != "federated":
        return 0  # it is the own head
    known = verdict["test"]["differences"].get("own", {})
    interval = next((known[figure] for figure in ("referable_auc", "auc") if known.get(figure)), None)
    if interval is None or interval["low"] is None:
        return 0  # it cannot be told: in draws of its test patients a grade is missing
    return int(interval["low"] > 0) - int(interval["high"] < 0)


def _counted(outcomes: Sequence[int]) -> str:
    if not outcomes:
        return ""
    return f"{outcomes.count(1)} better, {outcomes.count(-1)} worse of {len(outcomes)}"


def _costs(runs: Runs) -> list[str]:
    lines = ["| row | seconds a run, median, all sites in one process | bytes up a run |", "|---|---|---|"]
    for row in (row for row in _ROWS if row not in HELD and any(run["row"] == row for run in runs)):
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


def _head(first: str, sizes: Sequence[int], runs: Runs) -> list[str]:
    """The head of a table with a column for each number of training images."""
    return [f"| {first} | {' | '.join(_size(size, runs) for size in sizes)} |", f"|---|{'---|' * len(sizes)}"]


def _size(size: int, runs: Runs) -> str:
    return f"{_number(size)} ({_draws(len({run['draw'] for run in runs if run['size'] == size}))})"


def _number(size: int) -> str:
    return "all" if size > 100_000 else f"n = {size}"


def _draws(count: int) -> str:
    return f"{count} draws" if count > 1 else "1 draw"
