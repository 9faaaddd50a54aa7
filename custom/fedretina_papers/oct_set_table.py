"""The OCT paper's Table 8 from our runs: each set on its own, trained on and left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedretina.report.text import NONE, count, number
from fedretina_papers.faced_table import notes, over_seeds
from fedretina_papers.markdown import NOT_RUN, listed, signed, table
from fedretina_papers.oct_runs import OctFigures, OctResults
from fedretina_papers.published_oct import OctTable, published_oct

_BASE = "oct_centralised"
_UNSEEN = "octid"
"""The set that the paper never trained on."""

BySeed = Mapping[int, float]


class _Part(NamedTuple):
    """One half of the table.

    Attributes:
        title: Above it.
        accuracy: Accuracy in per cent by seed, of a row at a set.
        printed: Whether the paper trained on a set as this half says.
        average: Heading of the paper's average; empty where it has none.
    """

    title: str
    accuracy: Callable[[OctResults, str, str], BySeed]
    printed: Callable[[str], bool]
    average: str


def set_table(results: OctResults) -> list[str]:
    """Table 8: accuracy at each set, trained on and left out, their average, and the gain over pooled images.

    A method's own run shows the sets that it trained on; those that it never saw are shown from its own run and from
    the variant `NAME_without_SET`, which trained on all others.
    """
    paper = published_oct().tables["table8"]
    asked = tuple(f"{name}_without_" for name in paper.rows)
    runs = [one for name, many in results.runs.items() if name in paper.rows or name.startswith(asked) for one in many]
    shown = {origin for one in runs for origin in one.accuracy}
    printed = [one for one in next(iter(paper.printed.values())) if one != "average"]
    origins = [*(one for one in printed if one in shown), *sorted(shown - set(printed))]
    parts = (
        _Part("Trained on", _trained, lambda origin: origin != _UNSEEN, "paper, with OCTID"),
        _Part("Left out of training", _left_out, lambda origin: origin == _UNSEEN, ""),
    )
    lines = [line for part in parts for line in _half(results, paper, origins, part)]
    sizes = {origin: results.values(published_oct().proposed, _images(origin)) for origin in origins}
    told = [f"{origin} {count(max(found))}" for origin, found in sizes.items() if found]
    lines += [f"Test images: {listed(told)}.", ""] if told else []
    return [
        *lines,
        "A site that knows only some classes, or merges them, is asked among its own, an easier question than the "
        "whole. The average is the plain mean of the sets of its table, however many images each has, and stands where "
        "a row has all of them; the paper's is over Kermany, Duke and OCTID. An improvement is a difference of "
        "accuracies in percentage points, seed by seed; the paper's is worked out from its rounded figures.",
        "",
        *notes(paper),
    ]


def _half(results: OctResults, paper: OctTable, origins: Sequence[str], part: _Part) -> list[str]:
    if not any(part.accuracy(results, name, one) for name in paper.rows for one in origins):
        return _nothing(paper, origins, part)
    known = [one for one in origins if any(part.accuracy(results, name, one) for name in paper.rows)]
    beside = [one for one in origins if one in next(iter(paper.printed.values()))]
    head = ["row"]
    for origin in origins:
        head += [origin, *(["paper"] if origin in beside else [])]
    head += ["average", *([part.average] if part.average else [])]
    rows = []
    for name, said in paper.rows.items():
        cells = [said]
        for origin in origins:
            found = part.accuracy(results, name, origin)
            cells.append(over_seeds(list(found.values()), 1) if found or _silent(results, name, part) else NOT_RUN)
            cells += [_printed(paper.figure(name, origin), part.printed(origin))] if origin in beside else []
        cells.append(over_seeds(list(_average(results, name, known, part).values()), 1))
        cells += [number(paper.figure(name, "average"), 1)] if part.average else []
        rows.append(cells)
    best = published_oct().proposed
    cells = [f"improvement: {paper.rows[best]} less {paper.rows[_BASE]}, points"]
    for origin in origins:
        cells.append(_gained(part.accuracy(results, best, origin), part.accuracy(results, _BASE, origin)))
        theirs = _less(paper.figure(best, origin), paper.figure(_BASE, origin))
        cells += [_printed(theirs, part.printed(origin), sign=True)] if origin in beside else []
    cells.append(_gained(_average(results, best, known, part), _average(results, _BASE, known, part)))
    if part.average:
        cells.append(signed(_less(paper.figure(best, "average"), paper.figure(_BASE, "average")), 1))
    return [f"**{part.title}**, accuracy (%):", "", *table(head, [*rows, cells])]


def _nothing(paper: OctTable, origins: Sequence[str], part: _Part) -> list[str]:
    """What stands where no run has a figure of a half: the paper's own, in words."""
    sets = [one for one in next(iter(paper.printed.values())) if one != "average" and part.printed(one)]
    told = [
        f"{said} {listed([f'{number(paper.figure(name, one), 1)} at {_as_printed(one)}' for one in sets])}"
        for name, said in paper.rows.items()
    ]
    return [f"**{part.title}**, accuracy (%): no run of ours. The paper prints {'; '.join(told)}.", ""]


def _as_printed(origin: str) -> str:
    return origin.upper() if origin == _UNSEEN else origin.capitalize()


def _silent(results: OctResults, name: str, part: _Part) -> bool:
    """Whether a row was run and has nothing to say of a set here: it trained on it, or it did not."""
    return part.accuracy is _trained and name in results.runs


def _printed(value: float | None, here: bool, sign: bool = False) -> str:
    if not here:
        return NONE
    return signed(value, 1) if sign else number(value, 1)


def _average(results: OctResults, name: str, origins: Sequence[str], part: _Part) -> BySeed:
    """Plain mean of the sets, in the seeds that have them all."""
    found = [part.accuracy(results, name, origin) for origin in origins]
    seeds = sorted(set.intersection(*(set(one) for one in found))) if found else []
    return {seed: fmean(one[seed] for one in found) for seed in seeds}


def _gained(ours: BySeed, base: BySeed) -> str:
    """Mean difference over the seeds that both have, smallest and largest in brackets."""
    found = [ours[seed] - base[seed] for seed in sorted(set(ours) & set(base))]
    if not found:
        return NONE
    ends = f" ({signed(min(found), 1)} to {signed(max(found), 1)})" if len(found) > 1 else ""
    return f"{signed(fmean(found), 1)}{ends}"


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _images(origin: str) -> Callable[[OctFigures], float | None]:
    return lambda one: one.images.get(origin)


def _trained(results: OctResults, name: str, origin: str) -> BySeed:
    return {
        one.run.seed: 100 * one.accuracy[origin]
        for one in results.runs.get(name, ())
        if origin in one.accuracy and origin not in one.unseen
    }


def _left_out(results: OctResults, name: str, origin: str) -> BySeed:
    for run in (name, f"{name}_without_{origin}"):
        found = {one.run.seed: 100 * one.accuracy[origin] for one in results.runs.get(run, ()) if origin in one.unseen}
        if found:
            return found
    return {}
