"""FedEE's tables of what u is good for: cases to refer, sets of grades, other sites' images, calibration."""

from __future__ import annotations

from collections.abc import Sequence

from fedretina.report.text import NONE, number, percent
from fedretina_papers.fedee_names import LESS_IS_BETTER, label, shown_rows
from fedretina_papers.fedee_results import FedeeResults, spoken
from fedretina_papers.markdown import NOT_RUN, table


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
                (one, site["images"])
                for run in results.runs(name).values()
                for site in run["sites"].values()
                if (one := site["refer"][str(level)]["validated"])
            ]
            left = [(one["accuracy"], (1 - one["rate"]) * size) for one, size in validated]
            rows.append(
                [
                    label(results, name),
                    percent(_mean([one["with_doctor"] for one in all_sites])),
                    NONE if low is None else f"{percent(low)} to {percent(high)}",
                    percent(_mean([one["kept"] for one in all_sites])),
                    percent(_weighted([(one["rate"], size) for one, size in validated])),
                    percent(_weighted(left)),
                    f"{sum(one['accuracy'] is None for one, _ in validated)} of {len(validated)}",
                ]
            )
        head = ["row", "referred, doctor counts as right", f"95 % over {results.unit}s", "referred, kept cases alone"]
        head += ["referred by validation's threshold", "accuracy of the cases that are then kept"]
        head += ["keeps none, sites times seeds"]
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
        [label(results, name), *(results.over_seeds(name, results.figure(key)).cell() for key in LESS_IS_BETTER)]
        for name in shown_rows(results)
    ]
    return table(["row", *LESS_IS_BETTER.values()], rows)


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


def _below(results: FedeeResults, name: str) -> str:
    """Cells where the whole interval of the coverage lies below what was asked."""
    asked = 1 - float(results.figures["asked"]["alpha"])
    cells = [site["sets"] for run in results.runs(name).values() for site in run["sites"].values()]
    return f"{sum(one['high'] < asked for one in cells)} of {len(cells)}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _weighted(pairs: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, size) for value, size in pairs if value is not None and size > 0]
    return sum(value * size for value, size in known) / sum(size for _, size in known) if known else None
