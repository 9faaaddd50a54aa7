"""The paper's Tables 1, 2 and 4 from our runs, the paper's figures beside them; a row that was not run says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedretina.report.text import NONE, count, number, size
from fedretina_papers.markdown import NOT_RUN, chance, interval, signed, spread, table
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.published import AVERAGE, published
from fedretina_papers.stored import Benchmark, Record


def paper_table(benchmark: Benchmark, which: str) -> list[str]:
    """Table 1 or 2: macro AUC of each row that the paper has, per site and over their mean.

    Args:
        benchmark: What was run.
        which: "table1" or "table2".
    """
    paper = published()
    rows = paper.tables[which].rows
    # Table 1 compares methods and names them; Table 2 takes one apart, and its parts have names in print.
    titles = {
        name: printed if which == "table2" else _named(benchmark, name, printed) for name, printed in rows.items()
    }
    return _auc_table(benchmark, titles, which)


def other_rows(benchmark: Benchmark) -> list[str]:
    """The rows that are in none of the paper's tables: combinations, variants, pooled training."""
    known = {name for which in ("table1", "table2") for name in published().tables[which].rows}
    others = {name: benchmark.title(name) for name in benchmark.plan["rows"] if name not in known}
    return _auc_table(benchmark, others, None) if others else []


def elsewhere(benchmark: Benchmark, which: str) -> list[str]:
    """The paper's figures at sites that are none of ours: printed apart, for there is nothing to set beside them."""
    paper = published()
    ours = {paper.site(site) for site in benchmark.sites}
    sites = [site for site in paper.sites if site not in ours]
    printed = paper.tables[which]
    rows = [[name, *(_digits(printed.figure(row, site)) for site in sites)] for row, name in printed.rows.items()]
    return table(["as printed", *sites], rows) if sites else []


def step_table(benchmark: Benchmark) -> list[str]:
    """What each part of the method adds to macro AUC over the mean of the sites, here and in the paper."""
    second = published().tables["table2"]
    rows = []
    for step, (without, with_it) in second.steps.items():
        gaps = benchmark.gaps(with_it, without, MAIN)
        ours, theirs = second.figure(with_it, AVERAGE), second.figure(without, AVERAGE)
        printed = NONE if ours is None or theirs is None else signed(ours - theirs, 4)
        told = f"{signed(fmean(gaps))} ({signed(min(gaps))} to {signed(max(gaps))})" if gaps else NOT_RUN
        rows.append([step, told, printed])
    return table(["part", "adds here, over seeds", "adds in the paper"], rows)


def seed_tests(benchmark: Benchmark, statistics: Record) -> list[str]:
    """Table 4 as the paper has it: p of the paired test over seeds, macro AUC, the paper's p beside."""
    paper = published().tables["table4"]
    head, rows = ["row"], []
    for site in benchmark.sites:
        head += [site, *_beside(site)]
    head += ["mean of the sites", "paper, its average"]
    for name in _compared(benchmark, paper.rows):
        one = statistics["comparisons"].get(name)
        cells = [benchmark.title(name) if name in benchmark.runs else f"{paper.rows[name]}: {NOT_RUN}"]
        for site in benchmark.sites:
            cells.append(_plain(None if one is None else one["sites"].get(site)))
            theirs = published().site(site)
            cells += [] if theirs is None else [_paper_p(paper.figure(name, theirs))]
        rows.append([*cells, _plain(None if one is None else one["mean"]), _paper_p(paper.figure(name, AVERAGE))])
    return table(head, rows)


def mean_tests(
    benchmark: Benchmark, statistics: Record, key: str = MAIN, label: Callable[[str], str] | None = None
) -> list[str]:
    """Differences over the mean of the sites, over seeds, over patients and together, adjusted over the rows.

    Args:
        benchmark: What was run.
        statistics: Its statistics.
        key: The measure.
        label: What a row is called; its title by default.
    """
    rows = []
    for name, one in benchmark.compared(statistics):
        entry = one["mean"]["measures"][key]
        seeds, drawn, together = entry["seeds"], entry["patients"], entry["together"]
        rows.append(
            [
                (label or benchmark.title)(name),
                signed(entry["difference"]),
                interval(seeds),
                chance(seeds["p"]),
                interval(drawn),
                chance(None if drawn is None else drawn["p"]),
                interval(together),
                chance(None if together is None else together["p"]),
                f"**{chance(None if together is None else together['holm'])}**",
            ]
        )
    head = ["row", "difference", "95 % over seeds", "p", "95 % over patients", "p", "95 % together", "p", "Holm"]
    return table(head, rows)


def disease_tests(benchmark: Benchmark, statistics: Record) -> list[str]:
    """Referable disease: DeLong's z combined over the sites, beside the bootstrap of the same figure."""
    rows = []
    for name, one in benchmark.compared(statistics):
        test, drawn = one["mean"]["delong"], one["mean"]["measures"][DISEASE]["patients"]
        rows.append(
            [
                benchmark.title(name),
                signed(test["difference"]),
                number(test["z"]),
                chance(test["p"]),
                f"**{chance(test['holm'])}**",
                interval(drawn),
                chance(None if drawn is None else drawn["p"]),
                chance(None if drawn is None else drawn["holm"]),
            ]
        )
    return table(["row", "difference", "z", "p", "Holm", "95 % over patients", "p", "Holm"], rows)


def site_tests(benchmark: Benchmark, statistics: Record, key: str) -> list[str]:
    """Differences at each site, interval and Holm's p: over patients and seeds together, or over patients by DeLong."""
    rows = []
    for name, one in benchmark.compared(statistics):
        cells = [benchmark.title(name)]
        for site in benchmark.sites:
            there = one["sites"].get(site)
            entry = None if there is None else there["measures"][key]
            if there is None or entry is None or entry["difference"] is None:
                cells.append(NONE)
                continue
            test = there["delong"] if key == DISEASE else entry["together"]
            adjusted = NONE if test is None else chance(test["holm"])
            span = interval(entry["patients"] if key == DISEASE else entry["together"])
            cells.append(f"{signed(entry['difference'])} ({span}); {adjusted}")
        rows.append(cells)
    return table(["row", *benchmark.sites], rows)


def left_out(benchmark: Benchmark) -> list[str]:
    """What the paper does not tell: other figures over the mean of the sites, the worst site, bytes, seconds."""
    others = [key for key in MEASURES if key != MAIN]
    head = ["row", *(MEASURES[key].title for key in others), "AUC of raw logits", "worst site's macro AUC"]
    rows = []
    for name, seeds in benchmark.runs.items():
        worst = [min(found) for found in (_site_values(benchmark, name, seed) for seed in seeds) if found]
        up, down, seconds = (
            _mean([run[key] for run in seeds.values()]) for key in ("bytes_up", "bytes_down", "seconds")
        )
        cells = [spread(benchmark.by_seed(name, key)) for key in (*others, "auc_logits")]
        rows.append([benchmark.title(name), *cells, spread(worst), size(up), size(down), count(seconds)])
    return table([*head, "sent up", "sent down", "seconds"], rows)


def per_site(benchmark: Benchmark, key: str) -> list[str]:
    """One figure at each site and over their mean, a row a method."""
    rows = [
        [benchmark.title(name), *(spread(benchmark.by_seed(name, key, site)) for site in (*benchmark.sites, None))]
        for name in benchmark.runs
    ]
    return table(["row", *benchmark.sites, "mean of the sites"], rows)


def _auc_table(benchmark: Benchmark, titles: Mapping[str, str], which: str | None) -> list[str]:
    paper = published()
    head = ["row"]
    for site in benchmark.sites:
        head += [site, *(_beside(site) if which else [])]
    head += ["mean of the sites", *(["paper, its average"] if which else [])]
    rows = []
    for name, title in titles.items():
        there = name in benchmark.runs
        cells = [title]
        for site in benchmark.sites:
            cells.append(spread(benchmark.by_seed(name, MAIN, site)) if there else NOT_RUN)
            theirs = paper.site(site)
            if which and theirs is not None:
                cells.append(_digits(paper.tables[which].figure(name, theirs)))
        cells.append(spread(benchmark.by_seed(name, MAIN)) if there else NOT_RUN)
        rows.append([*cells, *([_digits(paper.tables[which].figure(name, AVERAGE))] if which else [])])
    return table(head, rows)


def _named(benchmark: Benchmark, name: str, printed: str) -> str:
    return benchmark.title(name) if name in benchmark.runs else printed


def _beside(site: str) -> list[str]:
    theirs = published().site(site)
    return [] if theirs is None else [f"paper, {theirs}"]


def _compared(benchmark: Benchmark, printed: Mapping[str, str]) -> list[str]:
    """The paper's rows in its order, then ours that the paper has not."""
    others = [name for name in benchmark.rivals if name not in printed]
    return [*(name for name in printed if name != benchmark.reference), *others]


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known: a run that was interrupted has no time of its own."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _plain(cell: Mapping[str, Any] | None) -> str:
    return NONE if cell is None else chance(cell["measures"][MAIN]["seeds"]["p"])


def _paper_p(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _digits(value: float | None) -> str:
    return number(value, 4)


def _site_values(benchmark: Benchmark, name: str, seed: int) -> Sequence[float]:
    found = [benchmark.figure(name, seed, site, MAIN) for site in benchmark.sites]
    return [value for value in found if value is not None]
