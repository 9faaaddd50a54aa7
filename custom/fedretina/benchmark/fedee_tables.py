"""FedEE's tables of answers from our runs, the paper's figures beside them where a data set matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedretina.benchmark.fedee_names import FURTHER, GLOBAL, TITLES, eta_steps, is_tuning, label, shown_rows
from fedretina.benchmark.fedee_results import (
    BY_SIZE,
    HIGHER,
    PLAIN,
    FedeeResults,
    as_printed,
    spoken,
)
from fedretina.benchmark.markdown import NOT_RUN, listed, several, table
from fedretina.benchmark.published_fedee import KEYS, METHODS, Printed, published_fedee
from fedretina.report.numbers import NONE, number, percent

_ALIKE = 0.0005  # means that print the same
_CALIBRATION = {"aurc": "AURC", "ece": "ECE", "brier": "Brier score", "nll": "NLL"}


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
        head += [TITLES[key], *(["paper"] if theirs else [])]
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
    head = ["row", "seeds", *TITLES.values(), *_CALIBRATION.values()]
    rows = []
    for name in names:
        cells = row_cells(results, name, {}, False, BY_SIZE)
        extra = [results.over_seeds(name, results.figure(key)).cell() for key in _CALIBRATION]
        rows.append([results.benchmark.title(name), *cells, *extra])
    return table(head, rows)


def site_table(results: FedeeResults, key: str) -> list[str]:
    """One of `KEYS` at each site, weighted by size, plain, and at the worst site."""
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


def refer_table(results: FedeeResults) -> list[str]:
    """Figure 5: how many cases a doctor must see until the accuracy is as asked."""
    lines = []
    for level in results.figures["asked"]["level"]:
        rows = []
        for name in shown_rows(results):
            all_sites = [run["refer"][str(level)] for run in results.runs(name).values()]
            spans = [one["interval"] for one in all_sites if one["interval"] and one["interval"]["low"] is not None]
            low, high = (_mean([one[end] for one in spans]) for end in ("low", "high"))
            validated = [
                (site["refer"][str(level)]["validated"], site["images"])
                for run in results.runs(name).values()
                for site in run["sites"].values()
            ]
            rows.append(
                [
                    label(results, name),
                    percent(_mean([one["with_doctor"] for one in all_sites])),
                    NONE if low is None else f"{percent(low)} to {percent(high)}",
                    percent(_mean([one["kept"] for one in all_sites])),
                    percent(_weighted([(one["rate"], size) for one, size in validated if one])),
                    percent(_weighted([(one["accuracy"], size) for one, size in validated if one])),
                ]
            )
        head = ["row", "referred, doctor counts as right", "95 % over patients", "referred, kept cases alone"]
        head += ["referred by validation's threshold", "accuracy of the cases that are then kept"]
        lines += [f"**Accuracy of {percent(level)}**", "", *table(head, rows)]
    return lines


def sets_table(results: FedeeResults) -> list[str]:
    """Split-conformal sets at each site: coverage and size."""
    rows = []
    for name in shown_rows(results):
        cells = [label(results, name)]
        for site in results.benchmark.sites:
            there = [run["sites"][site]["sets"] for run in results.runs(name).values() if site in run["sites"]]
            coverage, size = ([one[key] for one in there] for key in ("coverage", "size"))
            cells.append(f"{percent(_mean(coverage))}; {number(_mean(size), 2)}" if there else NONE)
        below = _below(results, name)
        rows.append([*cells, below])
    return table(["row", *results.benchmark.sites, "clearly below, sites times seeds"], rows)


def calibration_table(results: FedeeResults) -> list[str]:
    """AURC, ECE, Brier score and NLL, by the sites' sizes."""
    rows = [
        [label(results, name), *(results.over_seeds(name, results.figure(key)).cell() for key in _CALIBRATION)]
        for name in shown_rows(results)
    ]
    return table(["row", *_CALIBRATION.values()], rows)


def eta_table(results: FedeeResults) -> list[str]:
    """Equation 12: each figure between the plain mean and the one by size."""
    etas = eta_steps()
    lines = []
    for key in KEYS:
        rows = [
            [label(results, name), *(results.over_seeds(name, results.figure(key), eta).cell() for eta in etas)]
            for name in shown_rows(results, under="FedAvg")
        ]
        head = ["row", *("e" if eta == BY_SIZE else f"{eta:g}" for eta in etas)]
        lines += [f"**{TITLES[key].capitalize()}** over η", "", *table(head, rows)]
    return lines


def others_table(results: FedeeResults) -> list[str]:
    """Figure 6: AUROC with which u tells other sites' images from a site's own, the mean over pairs of sites."""
    rows = []
    for name in shown_rows(results):
        values = []
        for record in results.benchmark.runs.get(name, {}).values():
            pairs = [one["auroc"] for site in record["sites"].values() for one in site.get("others", {}).values()]
            known = [value for value in pairs if value is not None]
            values += [sum(known) / len(known)] if known else []
        if values:
            rows.append([label(results, name), spoken(values)])
    return table(["row", "AUROC, another site's images"], rows) if rows else [f"{NOT_RUN.capitalize()}.", ""]


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
            said = f"**{TITLES[key].capitalize()}**: FedEE has the highest mean under {first} of "
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


def _below(results: FedeeResults, name: str) -> str:
    """Cells where the whole interval of the coverage lies below what was asked."""
    asked = 1 - float(results.figures["asked"]["alpha"])
    cells = [site["sets"] for run in results.runs(name).values() for site in run["sites"].values()]
    return f"{sum(one['high'] < asked for one in cells)} of {len(cells)}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _weighted(pairs: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, size) for value, size in pairs if value is not None]
    return sum(value * size for value, size in known) / sum(size for _, size in known) if known else None
