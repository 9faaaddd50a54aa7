"""Figures of the stored runs of `benchmarks.small_sites`, and how their tables name rows, sizes and draws."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.small_sites import HELD
from fedretina_papers.markdown import listed

FIGURES = {"auc": "macro AUC", "referable_auc": "referable AUC"}
SETS = {
    "fundus": "Fundus photographs",
    "oct": "OCT scans, clients of skewed classes",
    "oct_even": "OCT scans, clients of even classes",
}
ROWS = {
    "own": "own head, nothing shared",
    "federated": "`analytic`, the federated head",
    "both": "`analytic`, the mean of own and federated head",
    "federated_held": "`analytic`, the federated head, with the default policy",
    "both_held": "`analytic`, the mean of both heads, with the default policy",
    "kept": "what validation keeps of own head and `analytic`",
}
SUMS = ("federated", "both", *HELD)
"""The rows that were run; the others are read off them."""
Runs = list[dict[str, Any]]


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


def mean(runs: Runs, model: str, figure: str) -> float:
    """Of a figure that every run has, as every fundus site has; not a number where there is no run."""
    values = [one for run in runs if (one := of_run(run, model, figure)) is not None]
    return fmean(values) if values else math.nan


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


def head(first: str, sizes: Sequence[int], runs: Runs) -> list[str]:
    """The head of a table with a column for each number of training images."""
    return [f"| {first} | {' | '.join(size_words(size, runs) for size in sizes)} |", f"|---|{'---|' * len(sizes)}"]


def size_words(size: int, runs: Runs) -> str:
    """A number of training images a site, with the number of draws that it has."""
    return f"{number_words(size)} ({draws_words(len({run['draw'] for run in runs if run['size'] == size}))})"


def number_words(size: int) -> str:
    """A number of training images a site."""
    return "all" if size > 100_000 else f"n = {size}"


def draws_words(count: int) -> str:
    """A number of draws."""
    return f"{count} draws" if count > 1 else "1 draw"
