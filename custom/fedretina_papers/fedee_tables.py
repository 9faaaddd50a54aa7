"""FedEE's tables from our runs: methods under strategies, sites, cases to refer, sets of grades, variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import pandas as pd

from fedretina.report.text import NONE, number, percent
from fedretina_papers.engine.records import BY_SIZE, PLAIN, OfRun, Records
from fedretina_papers.engine.table import Column, Line, mean_number, mean_percent, mean_sd, render, taken
from fedretina_papers.fedee_results import ETAS, FURTHER, GLOBAL, LESS_IS_BETTER, FedeeResults
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, several, table
from fedretina_papers.published import KEYS, METHODS, Printed, published_fedee

_ALIKE = 0.0005  # means that print the same
_ALSO = ("ece", "brier")
_CONSTANT = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "brier": "Brier score", "nll": "NLL"}
_HIGHER = {"accuracy", "misdetection", "selective"}


def strategy_table(
    results: FedeeResults,
    strategies: Sequence[str] | None = None,
    eta: float = BY_SIZE,
    helping: Sequence[Column] = (),
) -> list[str]:
    """Tables 3, 5, 10 and 13: every method under every strategy, and below them the rows that the paper has not.

    Args:
        results: What was run.
        strategies: Which; all by default.
        eta: e weighs sites by their test images (Tables 3, 5 and 10), 1 weighs them alike (Table 13).
        helping: Whether a row helps; see `engine.tested.helps`.
    """
    theirs = _printed_for(results, eta)
    lines, absent = [], []
    for strategy, methods in published_fedee().rows.items():
        if strategies is None and not theirs and not set(methods.values()) & set(results.benchmark.runs):
            absent.append(strategy)
        elif strategies is None or strategy in strategies:
            lines += [Line((strategy, method), methods[method]) for method in METHODS]
    lines += [Line(("not in the paper", results.benchmark.title(name)), name) for name in _others(results)]
    printed = {
        methods[method]: theirs.get(strategy, {}).get(method, {})
        for strategy, methods in published_fedee().rows.items()
        for method in METHODS
    }
    columns = [*_columns(results, printed if theirs else None, eta), *helping]
    made = render(results.records, ["strategy", "method"], lines, columns)
    return [*made, f"{NOT_RUN.capitalize()}: {listed(absent)}.", ""] if absent else made


def _others(results: FedeeResults) -> list[str]:
    placed = (*published_fedee().rows.values(), *FURTHER.values())
    known = {GLOBAL, *results.benchmark.apart, *(name for methods in placed for name in methods.values())}
    return [name for name in results.benchmark.plan["rows"] if name not in known]


def site_table(results: FedeeResults, key: str) -> list[str]:
    """A figure at each site, weighted by size, plain, and at the worst site."""
    figure = results.figure(key)

    def worst(line: Line) -> str:
        """The site where the mean over seeds is worst, the first by name of equals."""
        there = results.records.of_row(line.row, figure).dropna()
        if there.empty:
            return NONE
        means = there.groupby(level="site").mean()
        site = means.idxmin() if key in _HIGHER else means.idxmax()
        return f"{mean_sd(there.xs(site, level='site').tolist(), 3)} ({site})"

    each = [Column(site, figure, site, mean_sd) for site in results.benchmark.sites]
    over = [Column("by size", figure, BY_SIZE, mean_sd), Column("plain", figure, PLAIN, mean_sd)]
    columns = [*each, *over, Column("worst site", told=worst), *_taken(results)]
    return render(results.records, ["row"], _lines(results), columns)


def undefined_table(results: FedeeResults) -> list[str]:
    """Where misdiagnosis detection is undefined, and what the authors' rule makes of it; nothing where it is not."""

    def missing(line: Line) -> pd.Series:
        return results.records.of_row(line.row, "misdetection").isna()

    def lift(line: Line) -> str:
        ours, theirs = (results.mean(line.row, key) for key in ("misdetection", "misdetection_fedee"))
        return number(None if ours is None or theirs is None else theirs - ours, 3)

    lines = [line for line in _lines(results) if missing(line).any()]
    columns = [
        _by_size("mean of the defined", "misdetection"),
        Column("sites without it", told=lambda line: str(missing(line).sum())),
        Column("of", told=lambda line: str(len(missing(line)))),
        _by_size("as the authors count", "misdetection_fedee"),
        Column("lifts by", told=lift),
        *_taken(results),
    ]
    return render(results.records, ["row"], lines, columns) if lines else []


def eta_table(results: FedeeResults, key: str) -> list[str]:
    """Equation 12: a figure between the plain mean and the one by size, of the paper's rows and the controls."""
    figure = results.figure(key)
    columns = [Column("e" if eta == BY_SIZE else f"{eta:g}", figure, eta, mean_sd) for eta in ETAS]
    lines = [*_lines(results, "FedAvg"), *_control_lines(results)]
    return render(results.records, ["row"], lines, [*columns, *_taken(results)])


def win_words(results: FedeeResults, eta: float = BY_SIZE) -> list[str]:
    """In how many cells of the strategy table FedEE has the highest mean, and where another has."""
    told = []
    for key in KEYS:
        first, whole, beaten = 0, 0, []
        for strategy, methods in published_fedee().rows.items():
            every = {method: results.mean(name, key, eta) for method, name in methods.items()}
            means = {method: mean for method, mean in every.items() if mean is not None}
            if "FedEE" not in means or len(means) < 2:
                continue
            whole += 1
            best = max(means, key=lambda one: means[one])
            gap = means[best] - means["FedEE"]
            first += gap < _ALIKE
            if gap >= _ALIKE:
                beaten.append(f"{best} under {strategy} by {number(gap, 3)}")
        if whole:
            said = f"**{sentence_case(results.titles[key])}**: FedEE has the highest mean under {first} of "
            said += several(whole, "strategy").replace("strategys", "strategies")
            told.append(said + (f"; it trails {listed(beaten)}." if beaten else "."))
    return told


def estimator_tables(results: FedeeResults) -> tuple[dict[str, list[str]], list[str]]:
    """A table a measure, estimators down and strategies across, by the sites' sizes, and what each took.

    Beside them the strategies that are left out.

    Nothing where none of the estimators that the paper has not was run.
    """

    def cells(column: Column) -> list[list[str]]:
        return [
            [method, *(column.cell(results.records, Line((), by[strategy])) for strategy in shown)]
            for method, by in rows.items()
        ]

    rows, ran = rows_of_estimators(), results.benchmark.runs
    if not any(name in ran for further in FURTHER.values() for name in further.values()):
        return {}, []
    shown = [strategy for strategy in FURTHER if any(by[strategy] in ran for by in rows.values())]

    def best(strategy: str, key: str) -> str:
        every = {method: results.mean(by[strategy], key) for method, by in rows.items() if by[strategy] in ran}
        means = {method: mean for method, mean in every.items() if mean is not None}
        return (min if key in _ALSO else max)(means, key=lambda one: means[one], default=NONE)

    made = {}
    for key, title in {**results.titles, **{key: LESS_IS_BETTER[key] for key in _ALSO}}.items():
        ours = cells(_by_size("", results.figure(key)))
        made[title] = table(["estimator", *shown], [*ours, ["best mean", *(best(one, key) for one in shown)]])
    for column in _taken(results):
        made[column.title] = table(["estimator", *shown], cells(column))
    return made, [strategy for strategy in FURTHER if strategy not in shown]


def rows_of_estimators() -> dict[str, dict[str, str]]:
    """Name of our row by estimator and strategy."""
    paper = published_fedee().rows
    found = {method: {strategy: paper[strategy][method] for strategy in FURTHER} for method in METHODS}
    return found | {
        method: {strategy: further[method] for strategy, further in FURTHER.items()}
        for method in next(iter(FURTHER.values()))
    }


def constant_table(results: FedeeResults) -> list[str]:
    """Accuracy, balanced accuracy, Brier score and NLL beside those of an answer that is always the same."""
    lines = _lines(results)
    if not lines:
        return []

    def no_better(line: Line) -> str:
        ours, constant = (results.records.of_row(line.row, key) for key in ("accuracy", "constant.accuracy"))
        return f"{(ours <= constant).sum()} of {len(ours)}"

    columns = [_by_size(title, key) for key, title in _CONSTANT.items()]
    same = [_by_size("", f"constant.{key}").cell(results.records, lines[0]) for key in _CONSTANT]
    columns += [Column("accuracy not above it, sites times seeds", told=no_better), *_taken(results)]
    made = render(results.records, ["row"], lines, columns)
    return [*made[:2], f"| the same answer to all | {' | '.join([*same, NONE, '0', '0 bytes'])} |", *made[2:]]


def member_tables(results: FedeeResults) -> dict[str, list[str]]:
    """Each exit alone, the final head last: its accuracy, and whether its own u notices out-of-distribution images.

    Nothing where no row answers with several members.
    """
    outside = {f"AUROC of {name}": f"strangers.{name}" for name in results.benchmark.plan.get("strangers") or ()}
    made = {}
    for title, key in {"accuracy": "accuracy", **outside}.items():
        figures: list[str] = []
        while f"members.{len(figures)}.{key}" in results.records.sites:
            figures.append(f"members.{len(figures)}.{key}")
        lines = [line for line in _lines(results) if any(results.records.values(line.row, one) for one in figures)]
        widest = [one for one in figures if any(results.records.values(line.row, one) for line in lines)]
        columns = [Column(str(at), one, BY_SIZE, mean_number) for at, one in enumerate(widest, 1)]
        if lines:
            made[title] = render(results.records, ["row"], lines, [*columns, *_taken(results)])
    return made


def refer_table(results: FedeeResults, level: float) -> list[str]:
    """Figure 5: how many cases a doctor must see until the accuracy is as asked."""
    at, records = f"refer.{level}", results.records

    def span(line: Line) -> str:
        low, high = (records.values(line.row, OfRun(f"{at}.interval.{end}")) for end in ("low", "high"))
        return f"{percent(fmean(low))} to {percent(fmean(high))}" if low else NONE

    def validated(line: Line, kept: bool) -> str:
        rate, accuracy = (records.of_row(line.row, f"{at}.validated.{key}") for key in ("rate", "accuracy"))
        size = records.of_row(line.row, "images")
        values, weights = (accuracy, (1 - rate) * size) if kept else (rate, size)
        weights = weights.where(values.notna() & (weights > 0)).dropna()
        return percent((values[weights.index] * weights).sum() / weights.sum() if len(weights) else None)

    def none_kept(line: Line) -> str:
        asked = records.of_row(line.row, f"{at}.validated.rate").notna()
        return f"{(asked & records.of_row(line.row, f'{at}.validated.accuracy').isna()).sum()} of {asked.sum()}"

    columns = [
        Column("referred, doctor counts as right", OfRun(f"{at}.with_doctor"), show=mean_percent),
        Column(f"95 % over {results.unit}s", told=span),
        Column("referred, kept cases alone", OfRun(f"{at}.kept"), show=mean_percent),
        Column("referred by validation's threshold", told=lambda line: validated(line, kept=False)),
        Column("accuracy of the cases that are then kept", told=lambda line: validated(line, kept=True)),
        Column("keeps none, sites times seeds", told=none_kept),
        *_taken(results),
    ]
    return render(records, ["row"], _lines(results), columns)


def sets_table(results: FedeeResults) -> list[str]:
    """Split-conformal sets at each site: coverage and size."""
    asked, records = 1 - float(results.figures["asked"]["alpha"]), results.records

    def cell(line: Line, site: str) -> str:
        coverage, size = (records.values(line.row, f"sets.{key}", site) for key in ("coverage", "size"))
        return f"{percent(fmean(coverage))}; {number(fmean(size), 2)}" if coverage else NONE

    def below(line: Line) -> str:
        """Cells where the whole interval of the coverage lies below what was asked."""
        high = records.of_row(line.row, "sets.high")
        return f"{(high < asked).sum()} of {len(high)}"

    each = [Column(site, told=lambda line, site=site: cell(line, site)) for site in results.benchmark.sites]  # type: ignore[misc]
    below_all = Column("clearly below, sites times seeds", told=below)
    return render(records, ["row"], _lines(results), [*each, below_all, *_taken(results)])


def calibration_table(results: FedeeResults) -> list[str]:
    """AURC, ECE, Brier score and NLL, by the sites' sizes."""
    return render(results.records, ["row"], _lines(results), [*_less(results), *_taken(results)])


def others_table(results: FedeeResults, records: Records) -> list[str]:
    """Figure 6: AUROC with which u tells other sites' images from a site's own, the mean over pairs of sites.

    Args:
        results: What was run.
        records: The runs' own records.
    """
    lines = [line for line in _lines(results) if records.values(line.row, other_sites)]
    columns = [Column("AUROC, another site's images", other_sites, show=mean_sd), *taken(records)]
    return render(records, ["row"], lines, columns) if lines else [f"{NOT_RUN.capitalize()}.", ""]


def other_sites(records: Records) -> pd.Series:
    """AUROC of other sites' images, the plain mean over pairs of sites, by row and seed."""
    pairs = records.sites.filter(regex=r"^others\..+\.auroc$").stack()
    return pairs.groupby(level=["row", "seed"], sort=False).mean()


def tuning_tables(results: FedeeResults) -> tuple[dict[str, list[str]], list[str]]:
    """Tables 7 to 9: FedEE by batch size and learning rate, and what each took; and how far the cells lie apart."""
    cells: dict[tuple[int, float], str] = {}
    for name in results.benchmark.apart:
        run = next(iter(results.benchmark.runs.get(name, {}).values()), None)
        if run is not None:
            training = run["settings"]["training"]
            cells[int(training["batch_size"]), float(training["learning_rate"])] = name
    if not results.benchmark.apart:
        return {}, []
    made, apart = {}, []
    for key in KEYS:
        printed = published_fedee().tuning[key] if results.printed == "pamap2" else {}
        rates = sorted({rate for row in published_fedee().tuning[key].values() for rate in row} | {r for _, r in cells})
        column, head, rows = _by_size("", results.figure(key)), ["batch"], []
        for rate in rates:
            head += [f"{rate:g}", *(["paper"] if printed else [])]
        for batch in sorted({*published_fedee().tuning[key], *(batch for batch, _ in cells)}):
            row = [str(batch)]
            for rate in rates:
                row.append(column.cell(results.records, Line((), cells.get((batch, rate), ""))))
                row += [as_printed(printed.get(batch, {}).get(rate))] if printed else []
            rows.append(row)
        made[results.titles[key]] = table(head, rows)
        means = [mean for name in cells.values() if (mean := results.mean(name, key)) is not None]
        apart += [f"{results.titles[key]} {number(max(means) - min(means), 3)}"] if len(means) > 1 else []
    batches, rates = sorted({batch for batch, _ in cells}), sorted({rate for _, rate in cells})
    for column in _taken(results):
        took = [
            [f"{batch}", *(column.cell(results.records, Line((), cells.get((batch, rate), ""))) for rate in rates)]
            for batch in batches
        ]
        made[column.title] = table(["batch", *(f"{rate:g}" for rate in rates)], took)
    return made, apart


def personal_table(results: FedeeResults) -> list[str]:
    """Table 11: exits that stay at their site against exits that travel; nothing without such a row."""
    if GLOBAL not in results.benchmark.plan["rows"]:
        return []
    paper = published_fedee()
    theirs = _printed_for(results, BY_SIZE).get("FedAvg", {})
    lines = [Line((method,), name) for method, name in paper.rows["FedAvg"].items()]
    printed = {line.row: theirs.get(line.lead[0], {}) for line in lines} | {GLOBAL: paper.table11}
    columns = _columns(results, printed if results.printed == "pamap2" else None, BY_SIZE)
    lines += [Line(("Global EE",), GLOBAL), *_control_lines(results)]
    return render(results.records, ["row"], lines, columns)


def as_printed(one: Printed | None) -> str:
    """A figure of the paper."""
    return NONE if one is None else f"{one.mean:.3f} ± {one.std:g}"


def _lines(results: FedeeResults, under: str | None = None) -> list[Line]:
    return [Line((results.label(name),), name) for name in results.shown(under)]


def _control_lines(results: FedeeResults) -> list[Line]:
    """The controls that were run."""
    shown = [name for name in results.benchmark.controls if name in results.benchmark.runs]
    return [Line((results.label(name),), name) for name in shown]


def _taken(results: FedeeResults) -> list[Column]:
    return taken(Records(results.benchmark.runs))


def _by_size(title: str, figure: str) -> Column:
    return Column(title, figure, BY_SIZE, mean_sd)


def _less(results: FedeeResults) -> list[Column]:
    return [_by_size(title, results.figure(key)) for key, title in LESS_IS_BETTER.items()]


def _columns(results: FedeeResults, printed: Mapping[str, Mapping[str, Printed]] | None, eta: float) -> list[Column]:
    """The count of seeds and the paper's three figures, those that it prints between ours where they stand beside."""
    ran = results.benchmark.runs
    found = [Column("seeds", told=lambda line: str(len(ran[line.row])) if line.row in ran else NONE)]
    for key in KEYS:
        found.append(Column(results.titles[key], results.figure(key), eta, mean_sd))
        if printed is not None:
            found.append(Column("paper", told=lambda line, key=key: as_printed(printed.get(line.row, {}).get(key))))  # type: ignore[misc]
    return [*found, *_taken(results)]


def _printed_for(results: FedeeResults, eta: float) -> Mapping[str, Mapping[str, Mapping[str, Printed]]]:
    """What the paper prints for this data set under this mean, by strategy, method and key; else nothing."""
    paper, ours = published_fedee(), results.printed
    if eta == BY_SIZE:
        return {} if ours is None else paper.table10[ours]
    return paper.table13 if ours == "physionet2016" else {}
