"""FedEE's tables of variants: batch size and learning rate (7 to 9), and exits that travel (11)."""

from __future__ import annotations

from collections.abc import Sequence

from fedretina.report.text import number
from fedretina_papers.fedee_names import GLOBAL, is_tuning, titles
from fedretina_papers.fedee_results import FedeeResults, as_printed
from fedretina_papers.fedee_tables import printed_for, row_cells
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, table
from fedretina_papers.published_fedee import KEYS, published_fedee
from fedretina_papers.statistics.eta_mean import BY_SIZE

_TUNING_ELSEWHERE = (
    "Not in this plan: `fedee-activity`, the paper's own task for these tables, has them. They show rows of any plan "
    "that are named like `fedee_b16_lr0001`."
)
_GLOBAL_ELSEWHERE = "Not in this plan: exits can travel only where all sites have the same grades."


def tuning_tables(results: FedeeResults) -> list[str]:
    """Tables 7 to 9: FedEE by batch size and learning rate; without such a row, where they are."""
    cells: dict[tuple[int, float], str] = {}
    for name in results.benchmark.plan["rows"]:
        run = next(iter(results.benchmark.runs.get(name, {}).values()), None)
        if is_tuning(name) and run is not None:
            training = run["settings"]["training"]
            cells[int(training["batch_size"]), float(training["learning_rate"])] = name
    if not any(is_tuning(name) for name in results.benchmark.plan["rows"]):
        return ["## Tables 7 to 9: batch size and learning rate", "", _TUNING_ELSEWHERE, ""]
    paper = published_fedee()
    lines = ["## Tables 7 to 9: batch size and learning rate", ""]
    for key in KEYS:
        printed = paper.tuning[key]
        rates = sorted({rate for row in printed.values() for rate in row} | {rate for _, rate in cells})
        rows = []
        for batch in sorted({*printed, *(batch for batch, _ in cells)}):
            row = [str(batch)]
            for rate in rates:
                name = cells.get((batch, rate))
                row.append(NOT_RUN if name is None else results.over_seeds(name, results.figure(key)).cell())
                if results.printed == "pamap2":
                    row.append(as_printed(printed.get(batch, {}).get(rate)))
            rows.append(row)
        head = ["batch"]
        for rate in rates:
            head += [f"{rate:g}", *(["paper"] if results.printed == "pamap2" else [])]
        lines += [f"**{sentence_case(titles(results)[key])}**", "", *table(head, rows)]
    return [*lines, *_range_words(results, list(cells.values()))]


def _range_words(results: FedeeResults, names: Sequence[str]) -> list[str]:
    """How far the cells lie apart; the paper speaks of less than 1 %."""
    told = []
    for key in KEYS:
        means = [mean for name in names if (mean := results.over_seeds(name, results.figure(key)).mean) is not None]
        if len(means) > 1:
            told.append(f"{titles(results)[key]} {number(max(means) - min(means), 3)}")
    if not told:
        return []
    return [f"From the lowest to the highest cell: {listed(told)}. The paper speaks of less than 0.01.", ""]


def personal_table(results: FedeeResults) -> list[str]:
    """Table 11: exits that stay at their site against exits that travel; without such a row, why."""
    if GLOBAL not in results.benchmark.plan["rows"]:
        return ["## Table 11: exits that travel", "", _GLOBAL_ELSEWHERE, ""]
    paper = published_fedee()
    beside = results.printed == "pamap2"
    head = ["row", "seeds"]
    for key in KEYS:
        head += [titles(results)[key], *(["paper"] if beside else [])]
    printed = printed_for(results, BY_SIZE).get("FedAvg", {})
    rows = [
        [method, *row_cells(results, name, printed.get(method, {}), beside, BY_SIZE)]
        for method, name in paper.rows["FedAvg"].items()
    ]
    rows.append(["Global EE", *row_cells(results, GLOBAL, paper.table11, beside, BY_SIZE)])
    return ["## Table 11: exits that travel", "", *table(head, rows)]
