"""FedEE's tables of answers from our runs, the paper's figures beside them where a data set matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedretina.report.text import NONE, number
from fedretina_papers.fedee_names import (
    FURTHER,
    GLOBAL,
    LESS_IS_BETTER,
    eta_steps,
    is_tuning,
    label,
    shown_rows,
    titles,
)
from fedretina_papers.fedee_results import HIGHER, FedeeResults, as_printed, spoken
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, several, table
from fedretina_papers.published_fedee import KEYS, METHODS, Printed, published_fedee
from fedretina_papers.statistics.eta_mean import BY_SIZE, PLAIN

_ALIKE = 0.0005  # means that print the same


def main_table(results: FedeeResults) -> list[str]:
    """Table 3: the four methods under FedAvg, by the sites' sizes."""
    return strategy_table(results, ["FedAvg"])


def strategy_table(results: FedeeResults, strategies: Sequence[str] | None = None, eta: float = BY_SIZE) -> list[str]:
    """Tables 5, 10 and 13: every method under every strategy.

    Args:
        results: What was run.
        strategies: Which; all by default.
        eta: e weighs sites by their test images (Tables 5 and 10), 1 weighs them alike (Table 13).
    """
    paper = published_fedee()
    theirs = printed_for(results, eta)
    head = ["strategy", "method", "seeds"]
    for key in KEYS:
        head += [titles(results)[key], *(["paper"] if theirs else [])]
    rows, absent = [], []
    for strategy, methods in paper.rows.items():
        if strategies is not None and strategy not in strategies:
            continue
        if strategies is None and not theirs and not set(methods.values()) & set(results.benchmark.runs):
            absent.append(strategy)
            continue
        for method in METHODS:
            printed = theirs.get(strategy, {}).get(method, {})
            rows.append([strategy, method, *row_cells(results, methods[method], printed, bool(theirs), eta)])
    lines = table(head, rows)
    return [*lines, f"{NOT_RUN.capitalize()}: {listed(absent)}.", ""] if absent else lines


def other_table(results: FedeeResults) -> list[str]:
    """Rows of the plan that are in no other table; nothing where there are none."""
    placed = (*published_fedee().rows.values(), *FURTHER.values())
    known = {GLOBAL, *(name for methods in placed for name in methods.values())}
    names = [name for name in results.benchmark.plan["rows"] if name not in known and not is_tuning(name)]
    if not names:
        return []
    head = ["row", "seeds", *titles(results).values(), *LESS_IS_BETTER.values()]
    rows = []
    for name in names:
        cells = row_cells(results, name, {}, False, BY_SIZE)
        extra = [results.over_seeds(name, results.figure(key)).cell() for key in LESS_IS_BETTER]
        rows.append([results.benchmark.title(name), *cells, *extra])
    return table(head, rows)


def site_table(results: FedeeResults, key: str) -> list[str]:
    """A figure at each site, weighted by size, plain, and at the worst site."""
    figure, higher = results.figure(key), key in HIGHER
    head = ["row", *results.benchmark.sites, "by size", "plain", "worst site"]
    rows = []
    for name in shown_rows(results):
        site, values = results.worst(name, figure, higher)
        rows.append(
            [
                label(results, name),
                *(spoken(results.at_site(name, figure, one)) for one in results.benchmark.sites),
                results.over_seeds(name, figure, BY_SIZE).cell(),
                results.over_seeds(name, figure, PLAIN).cell(),
                f"{spoken(values)} ({site})" if site else NONE,
            ]
        )
    return table(head, rows)


def undefined_table(results: FedeeResults) -> list[str]:
    """Where misdiagnosis detection is undefined, and what the authors' rule makes of it."""
    head = ["row", "mean of the defined", "sites without it", "of", "as the authors count", "lifts by"]
    rows = []
    for name in shown_rows(results):
        ours = results.over_seeds(name, results.figure("misdetection"))
        theirs = results.over_seeds(name, results.figure("misdetection_fedee"))
        if ours.missing:
            gap = None if ours.mean is None or theirs.mean is None else theirs.mean - ours.mean
            cells = [ours.cell(), str(ours.missing), str(ours.cells), theirs.cell(), number(gap, 3)]
            rows.append([label(results, name), *cells])
    if not rows:
        return ["It is defined for every row, seed and site: each has right and wrong answers.", ""]
    return table(head, rows)


def eta_table(results: FedeeResults) -> list[str]:
    """Equation 12: each figure between the plain mean and the one by size."""
    etas = eta_steps()
    lines = []
    for key, title in {**titles(results), **LESS_IS_BETTER}.items():
        rows = [
            [label(results, name), *(results.over_seeds(name, results.figure(key), eta).cell() for eta in etas)]
            for name in shown_rows(results, under="FedAvg")
        ]
        head = ["row", *("e" if eta == BY_SIZE else f"{eta:g}" for eta in etas)]
        lines += [f"**{sentence_case(title)}** over η", "", *table(head, rows)]
    return lines


def win_words(results: FedeeResults, eta: float = BY_SIZE) -> list[str]:
    """In how many cells of the strategy table FedEE has the highest mean, and where another has."""
    paper = published_fedee()
    lines = []
    for key in KEYS:
        first, whole, beaten = 0, 0, []
        for strategy, methods in paper.rows.items():
            means = {
                method: mean
                for method, name in methods.items()
                if (mean := results.over_seeds(name, results.figure(key), eta).mean) is not None
            }
            if "FedEE" not in means or len(means) < 2:
                continue
            whole += 1
            best = max(means, key=lambda one: means[one])
            gap = means[best] - means["FedEE"]
            first += gap < _ALIKE
            if gap >= _ALIKE:
                beaten.append(f"{best} under {strategy} by {number(gap, 3)}")
        if whole:
            said = f"**{sentence_case(titles(results)[key])}**: FedEE has the highest mean under {first} of "
            said += several(whole, "strategy").replace("strategys", "strategies")
            lines.append(f"- {said}" + (f"; it trails {listed(beaten)}." if beaten else "."))
    return [*lines, ""] if lines else []


def row_cells(results: FedeeResults, name: str, printed: Mapping[str, Printed], beside: bool, eta: float) -> list[str]:
    """Cells of a row from its count of seeds on, the paper's figures between ours where they are to stand there."""
    there = name in results.benchmark.runs
    cells = [str(len(results.benchmark.runs[name])) if there else NONE]
    for key in KEYS:
        cells.append(results.over_seeds(name, results.figure(key), eta).cell() if there else NOT_RUN)
        cells += [as_printed(printed.get(key))] if beside else []
    return cells


def printed_for(results: FedeeResults, eta: float) -> Mapping[str, Mapping[str, Mapping[str, Printed]]]:
    """What the paper prints for this data set under this mean, by strategy, method and key; else nothing."""
    paper, ours = published_fedee(), results.printed
    if eta == BY_SIZE:
        return {} if ours is None else paper.table10[ours]
    return paper.table13 if ours == "physionet2016" else {}
