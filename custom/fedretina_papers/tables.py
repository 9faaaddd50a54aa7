"""FedUAA's Tables 1, 2 and 4 from our runs, the paper's figures beside them; a row that was not run says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedretina.report.text import NONE, number
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, by_site, bytes_told, mean_count, of_both, render, taken
from fedretina_papers.engine.tested import helps, tested
from fedretina_papers.markdown import NOT_RUN, chance, signed, table
from fedretina_papers.measures import MAIN, MEASURES
from fedretina_papers.published import AVERAGE, published
from fedretina_papers.stored import Benchmark, Record

_AUC = Column("", f"test.{MAIN}")
_MEAN = "mean of the sites"


def paper_table(benchmark: Benchmark, records: Records, which: str, statistics: Record | None = None) -> list[str]:
    """Table 1 or 2: macro AUC of each row, per site and over their mean, what it took, and whether it helps.

    Below the paper's rows stand those that it has not: all of them in Table 1, the controls in Table 2.

    Args:
        benchmark: What was run.
        records: Its records.
        which: "table1" or "table2".
        statistics: Its statistics; None where they are not computed.
    """
    # Table 1 compares methods and names them; Table 2 takes one apart, and its parts have names in print.
    titles = {
        name: benchmark.title(name) if which == "table1" and name in records else printed
        for name, printed in published().tables[which].rows.items()
    }
    known = {name for table in ("table1", "table2") for name in published().tables[table].rows}
    others = benchmark.plan["rows"] if which == "table1" else benchmark.controls
    titles |= {name: f"not in the paper: {benchmark.title(name)}" for name in others if name not in known}
    columns = [*_beside(by_site(records, _AUC), which), *taken(records), *helps(statistics, MAIN)]
    return render(records, ["row"], _lines(titles), columns)


def elsewhere(benchmark: Benchmark, which: str) -> list[str]:
    """The paper's figures at sites that are none of ours: printed apart, for there is nothing to set beside them."""
    paper = published()
    ours = {paper.site(site) for site in benchmark.sites}
    sites = [site for site in paper.sites if site not in ours]
    columns = [_printed(which, site, site) for site in sites]
    return render(Records({}), ["as printed"], _lines(paper.tables[which].rows), columns) if sites else []


def step_table(records: Records) -> list[str]:
    """What each part of the method adds to macro AUC over the mean of the sites, here and in the paper."""
    second = published().tables["table2"]

    def printed(line: Line) -> str:
        ours, theirs = (second.figure(name, AVERAGE) for name in (line.row, line.against))
        return NONE if ours is None or theirs is None else signed(ours - theirs, 4)

    lines = [Line((step,), with_it, without) for step, (without, with_it) in second.steps.items()]
    adds = Column("adds here, over seeds", f"test.{MAIN}", show=_gain, difference=True)
    columns = [adds, Column("adds in the paper", told=printed), *of_both(records, taken(records))]
    return render(records, ["part"], lines, columns)


def seed_tests(benchmark: Benchmark, records: Records, statistics: Record) -> list[str]:
    """Table 4 as the paper has it: p of the paired test over seeds, macro AUC, the paper's p beside."""
    printed = published().tables["table4"].rows
    ours = [name for name in benchmark.rivals if name not in printed]
    names = [*(name for name in printed if name != benchmark.reference), *ours]
    titles = {
        name: benchmark.title(name) if name in benchmark.runs else f"{printed[name]}: {NOT_RUN}" for name in names
    }
    p = ("measures", MAIN, "seeds", "p")
    columns = [tested(statistics, site, ("sites", site, *p), chance) for site in benchmark.sites]
    columns.append(tested(statistics, _MEAN, ("mean", *p), chance))
    return render(Records({}), ["row"], _lines(titles), [*_beside(columns, "table4", 3), *taken(records)])


def left_out(benchmark: Benchmark, records: Records, statistics: Record | None = None) -> list[str]:
    """What the paper does not tell: other figures over the mean of the sites, the worst site, bytes, seconds."""
    columns = [
        *(Column(one.title, f"test.{key}") for key, one in MEASURES.items() if key != MAIN),
        Column("AUC of raw logits", "test.auc_logits"),
        Column("worst site's macro AUC", f"test.{MAIN}", "lowest"),
        *taken(records),
        Column("received by all sites", "bytes_down", show=bytes_told),
        Column("seconds", "seconds", show=mean_count),
        *helps(statistics, *(key for key in MEASURES if key != MAIN)),
    ]
    return render(records, ["row"], _lines(_titles(benchmark)), columns)


def per_site(benchmark: Benchmark, records: Records, key: str, statistics: Record | None = None) -> list[str]:
    """One figure at each site and over their mean, a row a method."""
    columns = [*by_site(records, Column("", f"test.{key}")), *taken(records), *helps(statistics, key)]
    return render(records, ["row"], _lines(_titles(benchmark)), columns)


def uncertainty_table(benchmark: Benchmark, records: Records, statistics: Record) -> list[str]:
    """Medians of u and the error AUROC of the reference at each site."""
    there = statistics["uncertainty"].get(benchmark.reference, {})
    rows = []
    for site, one in ((site, there[site]) for site in benchmark.sites if site in there):
        error = Column("", "test.error_auroc", site).cell(records, Line((), benchmark.reference))
        medians = (number(one[f"median_{side}"]) for side in ("right", "wrong"))
        rows.append(
            [site, *medians, error, f"{mean_count([sum(one['right'])], 0)} and {mean_count([sum(one['wrong'])], 0)}"]
        )
    head = ["site", "median u, right", "median u, wrong", "error AUROC", "right and wrong answers, all seeds"]
    return table(head, rows)


def _titles(benchmark: Benchmark) -> dict[str, str]:
    return {name: benchmark.title(name) for name in benchmark.runs}


def _lines(titles: Mapping[str, str]) -> list[Line]:
    return [Line((title,), name) for name, title in titles.items()]


def _beside(columns: Sequence[Column], which: str, places: int = 4) -> list[Column]:
    """Columns of our sites, and behind each the paper's of the same public set."""
    found = []
    for column in columns:
        theirs = AVERAGE if column.title == _MEAN else published().site(column.title)
        title = "paper, its average" if theirs == AVERAGE else f"paper, {theirs}"
        found += [column, *([] if theirs is None else [_printed(which, theirs, title, places)])]
    return found


def _printed(which: str, site: str, title: str, places: int = 4) -> Column:
    return Column(title, told=lambda line: number(published().tables[which].figure(line.row, site), places))


def _gain(values: Sequence[float], places: int) -> str:
    if not values:
        return NOT_RUN
    return f"{signed(fmean(values), places)} ({signed(min(values), places)} to {signed(max(values), places)})"
