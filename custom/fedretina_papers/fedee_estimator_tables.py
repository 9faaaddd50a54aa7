"""Every way to ask for uncertainty under every strategy: the paper's four, temperature, and evidence."""

from __future__ import annotations

from collections.abc import Mapping

from fedretina.report.text import NONE
from fedretina_papers.fedee_names import FURTHER, LESS_IS_BETTER, titles
from fedretina_papers.fedee_results import FedeeResults, spoken
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, table
from fedretina_papers.published_fedee import METHODS, published_fedee
from fedretina_papers.statistics.eta_mean import BY_SIZE

_ALSO = ("ece", "brier")


def estimator_tables(results: FedeeResults) -> list[str]:
    """A table a measure, estimators down and strategies across, by the sites' sizes.

    Args:
        results: What was run; nothing is shown where none of the estimators that the paper has not was.
    """
    rows = rows_of_estimators()
    ran = results.benchmark.runs
    if not any(name in ran for further in FURTHER.values() for name in further.values()):
        return []
    shown = [strategy for strategy in FURTHER if any(by[strategy] in ran for by in rows.values())]
    absent = [strategy for strategy in FURTHER if strategy not in shown]
    lines = ["## Every estimator under every strategy", ""]
    figures = {**titles(results), **{key: LESS_IS_BETTER[key] for key in _ALSO}}
    for key, title in figures.items():
        cells = [[method, *(_cell(results, by[strategy], key) for strategy in shown)] for method, by in rows.items()]
        best = _best(results, rows, shown, key)
        lines += [f"**{sentence_case(title)}**", "", *table(["estimator", *shown], [*cells, ["best mean", *best]])]
    lines += [
        "Temperature scales the logits of Backbone's runs. EU and TWEU are evidential heads, trained without and with "
        "a temperature: another loss, so that their accuracy differs too.",
        "",
    ]
    return [*lines, f"{NOT_RUN.capitalize()}: {listed(absent)}.", ""] if absent else lines


def rows_of_estimators() -> dict[str, dict[str, str]]:
    """Name of our row by estimator and strategy."""
    paper = published_fedee().rows
    found = {method: {strategy: paper[strategy][method] for strategy in FURTHER} for method in METHODS}
    return found | {
        method: {strategy: further[method] for strategy, further in FURTHER.items()}
        for method in next(iter(FURTHER.values()))
    }


def _cell(results: FedeeResults, name: str, key: str) -> str:
    if name not in results.benchmark.runs:
        return NOT_RUN
    return spoken(list(results.over_seeds(name, results.figure(key), BY_SIZE).values.values()))


def _best(results: FedeeResults, rows: Mapping[str, Mapping[str, str]], shown: list[str], key: str) -> list[str]:
    """The estimator with the best mean under each strategy: least of `_ALSO`, most of the others."""
    found = []
    for strategy in shown:
        means = {
            method: mean
            for method, by in rows.items()
            if by[strategy] in results.benchmark.runs
            and (mean := results.over_seeds(by[strategy], results.figure(key), BY_SIZE).mean) is not None
        }
        best = (min if key in _ALSO else max)(means, key=lambda one: means[one], default=None)
        found.append(best or NONE)
    return found
