"""Renders docs/small_sites_study.md from the stored runs of `benchmarks.small_sites`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from benchmarks.common import ROOT
from benchmarks.render import machine_line
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.training import LEAST_PATIENTS
from fedretina.storage import write_text
from fedretina_papers.engine.table import bytes_told, listing
from fedretina_papers.markdown import listed
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "small_sites_study.md"
SETS = {
    "fundus": "Fundus photographs",
    "oct": "OCT scans, clients of skewed classes",
    "oct_even": "OCT scans, clients of even classes",
}
ROWS = {
    "federated": "`analytic`, the federated head",
    "both": "`analytic`, the mean of own and federated head",
    "federated_held": "`analytic`, the federated head, with the default policy",
    "both_held": "`analytic`, the mean of both heads, with the default policy",
}
Runs = list[dict[str, Any]]
_ABOUT = """# What the verdict keeps at sites with few images

Written by `python -m benchmarks.small_sites --render` from stored runs. Research software, not a medical device.

At the end of a run each site's [verdict](verdict.md) chooses between its own head and the federated model, by its
validation images; with fewer than {least} ill or {least} well validation patients it keeps the federated model unasked.
How often is what it keeps better than the site's own head, and how often worse? The tables count that, and rank no
rows: each stands beside its control, the own head from the site's own sums, which sends nothing. How good the heads
are, beside the commonest grade, heads trained alone, FedAvg and all images in one place, stands for the same sites in
P1 ([photographs](p1_photographs.md), [scans](p1.md)), and for more and smaller ones in [F1](f1.md) and [O1](o1.md).

Of every site *n* training images are drawn by whole patients, and a quarter as many (10 or more) to validate on; the
test images are all that the site has, the same in every draw. The encoder is EfficientNet-Lite0 with the ImageNet
weights of its package, at 224 pixels, and does not train. Every run is one of the product's own in the plain loop.

A kept model counts as better than the own head, or worse, where the 95 % interval of the difference over test patients
says so: by referable AUC where the site's grades have one, else by macro AUC. Of equal models one in forty would be
called better, and one in forty worse. The interval is of 200 draws of patients; a hospital's report has 1000.

Every grade is in the sums, however few its patients, but for the rows with the default policy: by default a hospital
keeps grades of fewer than {fewest} patients out, encrypted or not
([what it may set](analytic.md#what-leaves-and-what-a-total-says)). A site none of whose grades has so many patients has
no part in the sums and keeps its own head. So did, over sites and draws:
{apart}.
"""
_WORSE = """
A site where a head of its own does well with few images already is not helped by images of other cameras, and has too
few validation patients to see it. It was an aim that at no site the kept model should be worse than the own head beyond
chance: it is missed there.
"""


class Unasked(NamedTuple):
    """The mean of both heads at sites with too few validation patients to choose by: kept without a choice.

    Attributes:
        counts: How many sites and draws at each size where there are any, of how many, in words.
        always: Sizes at which it was every site in every draw.
        outcomes: See `kept_outcome`, of each such site and draw.
        worse: Of each site of which one is -1, how many are.
    """

    counts: str
    always: Sequence[int]
    outcomes: Sequence[int]
    worse: Mapping[str, int]

    @property
    def words(self) -> str:
        """How it fared, to stand behind "it"."""
        better, worse = self.outcomes.count(1), self.outcomes.count(-1)
        where = f" ({listed([f'{count} at {site}' for site, count in self.worse.items()])})" if worse else ""
        return f"was better than the own head beyond its interval in {better}, and worse in {worse}{where}"


def unasked(runs: Runs) -> Unasked:
    """See `Unasked`, of all sites of some runs."""
    by_size: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for run in (run for run in runs if run["row"] == "both"):
        by_size.setdefault(run["size"], []).extend(run["sites"].items())
    few = {
        size: [(name, kept_outcome(site)) for name, site in by_size[size] if site["reason"] == "too_few_patients"]
        for size in sorted(by_size)
    }
    outcomes = [one for found in few.values() for one in found]
    return Unasked(
        listed([f"{len(one)} of {len(by_size[size])} at {number_words(size)}" for size, one in few.items() if one]),
        [size for size, found in few.items() if len(found) == len(by_size[size])],
        [outcome for _, outcome in outcomes],
        dict(sorted(Counter(name for name, outcome in outcomes if outcome < 0).items())),
    )


def kept_outcome(verdict: Mapping[str, Any]) -> int:
    """1 where the kept model is better than the own head beyond its interval, -1 where it is worse, else 0."""
    if verdict["kept"] != "federated":
        return 0  # it is the own head
    known = verdict["test"]["differences"].get("own", {})
    interval = next((known[figure] for figure in ("referable_auc", "auc") if known.get(figure)), None)
    if interval is None or interval["low"] is None:
        return 0  # it cannot be told: in draws of its test patients a grade is missing
    return int(interval["low"] > 0) - int(interval["high"] < 0)


def counted(outcomes: Sequence[int]) -> str:
    """How many of `kept_outcome` are better, and how many worse; nothing of none."""
    if not outcomes:
        return ""
    return f"{outcomes.count(1)} better, {outcomes.count(-1)} worse of {len(outcomes)}"


def table(first: str, held: Mapping[str, Mapping[int, Sequence[int]]], runs: Mapping[str, Runs]) -> list[str]:
    """A table with a column for each number of training images, and for what a row takes.

    Args:
        first: Title of its first column.
        held: `kept_outcome` by line and number of training images.
        runs: Of each line. No row takes a training pass, for its heads come from sums.
    """

    def cell(size: int, line: str) -> str:
        return counted(held[line][size])

    def sent(line: str) -> str:
        each = {run["bytes_up"] / len(run["sent"]) for run in runs[line] if run["sent"]}
        return bytes_told([max(each, default=0)])

    sizes = next(iter(held.values()))
    every = [run for of in runs.values() for run in of]
    columns: dict[str, Callable[[str], str]] = {
        first: str,
        **{size_words(size, every): partial(cell, size) for size in sizes},
        "training passes": lambda line: "0",
        "sent per site that took part": sent,
    }
    return listing(held, columns, right=())


def size_words(size: int, runs: Runs) -> str:
    """A number of training images a site, with the number of draws that it has."""
    return f"{number_words(size)} ({draws_words(len({run['draw'] for run in runs if run['size'] == size}))})"


def number_words(size: int) -> str:
    """A number of training images a site."""
    return "all" if size > 100_000 else f"n = {size}"


def draws_words(count: int) -> str:
    """A number of draws."""
    return f"{count} draws" if count > 1 else "1 draw"


def write_page(stored: Path, page: Path) -> None:
    """Write the page."""
    held = list(read_packed(stored).values())
    runs = _completed(held)
    parts = [_ABOUT.format(least=LEAST_PATIENTS, fewest=MIN_COUNT, apart=_apart(held))]
    for name in sorted({run["set"] for run in runs}, key=list(SETS).index):
        parts += _of_set(name, [run for run in runs if run["set"] == name])
    used = sorted(Counter(run["machine"]["processor"] for run in runs).items())
    parts.append(f"Processors: {', '.join(f'{name} ({count} runs)' for name, count in used)}. The last:\n")
    parts.append(machine_line(runs[-1]["machine"]))
    write_text(page, "\n".join(parts) + "\n")


def _completed(runs: Runs) -> Runs:
    """A site that could have no part in the sums keeps its own head, and counts with it."""
    apart = [{site: {"kept": "own"} for site in run["images"].keys() - run["sites"].keys()} for run in runs]
    return [
        {**run, "sites": {**run["sites"], **own}, "sent": list(run["sites"])}
        for run, own in zip(runs, apart, strict=True)
    ]


def _no_choice(runs: Runs) -> list[str]:
    """How often there are too few validation patients to choose by, and what came of it."""
    found = unasked(runs)
    if not found.outcomes:
        return []
    sizes = listed([number_words(size) for size in found.always])
    same = f" So at {sizes} nothing is chosen." if sizes else ""
    return [
        f"With fewer than {LEAST_PATIENTS} ill or {LEAST_PATIENTS} well validation patients the federated model is",
        f"kept unasked: with `both`, over sites and draws, {found.counts}.{same}",
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


def _of_set(name: str, runs: Runs) -> list[str]:
    sizes = sorted({run["size"] for run in runs})
    sites = sorted(runs[0]["sites"])
    tested = ", ".join(f"{site} {runs[0]['images'][site]['test']}" for site in sites)
    found = [f"## {SETS[name]}", "", f"Test images: {tested}.", ""]
    found += _outcomes(runs, sizes)
    found += _no_choice(runs)
    found += ["By site, `analytic` answering with the mean of both heads, every grade in the sums:", ""]
    both = [run for run in runs if run["row"] == "both"]
    by_site = {
        site: {size: [kept_outcome(run["sites"][site]) for run in both if run["size"] == size] for size in sizes}
        for site in sites
    }
    found += table("site", by_site, dict.fromkeys(sites, both))
    kept = {site: [kept_outcome(run["sites"][site]) for run in both] for site in sites}
    worse = listed([f"{outcomes.count(-1)} of {len(outcomes)} at {site}" for site, outcomes in kept.items()])
    words = f"Over all sizes and draws it was worse beyond its interval in {worse}."
    aim = _WORSE.splitlines() if name == "fundus" else []  # the aim was set for photographs
    return [*found, fill(words, 120, break_long_words=False), *aim, ""]


def _outcomes(runs: Runs, sizes: Sequence[int]) -> list[str]:
    of = {title: mine for row, title in ROWS.items() if (mine := [run for run in runs if run["row"] == row])}
    held = {
        title: {
            size: [kept_outcome(site) for run in mine if run["size"] == size for site in run["sites"].values()]
            for size in sizes
        }
        for title, mine in of.items()
    }
    return table("row", held, of)
