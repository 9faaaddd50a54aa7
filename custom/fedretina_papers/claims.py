"""What may be claimed: who leads, who trails, what is not told apart, and how many seeds it would take."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from fedretina.report.text import number, percent
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Line, of_both, taken
from fedretina_papers.markdown import listed, several, signed, table
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.published import AVERAGE, published
from fedretina_papers.statistics.paired_seeds import MOST_SEEDS, seeds_needed
from fedretina_papers.stored import Benchmark, Record

LEVEL = 0.05
_GAINS = (0.01, 0.02)
_SEEN = 1.96 + 0.84  # standard errors for 80 % power at the 5 % level
_MANY_SEEDS = 10  # their standard deviation is known to about a quarter


class Verdicts(NamedTuple):
    """Rows by what a family of adjusted tests says of the reference.

    Attributes:
        leads: Rows that the reference is better than.
        trails: Rows that are better than the reference.
        undecided: Rows that are not told apart from it.
        untested: Rows without a test.
    """

    leads: tuple[str, ...]
    trails: tuple[str, ...]
    undecided: tuple[str, ...]
    untested: tuple[str, ...]


def verdicts(benchmark: Benchmark, statistics: Record, key: str = MAIN, test: str = "together") -> Verdicts:
    """Sort the rows over the mean of the sites.

    Args:
        benchmark: What was run.
        statistics: The stored statistics.
        key: The figure.
        test: "together", "seeds" or "patients"; "delong" for referable disease by DeLong's test.
    """
    sorted_rows: dict[str, list[str]] = {name: [] for name in Verdicts._fields}
    for name, one in benchmark.compared(statistics):
        entry = one["mean"]["delong"] if test == "delong" else one["mean"]["measures"][key]
        tested = entry if test == "delong" else entry[test]
        adjusted, difference = None if tested is None else tested["holm"], entry["difference"]
        if adjusted is None or difference is None:
            sorted_rows["untested"].append(name)
        elif adjusted >= LEVEL:
            sorted_rows["undecided"].append(name)
        else:
            sorted_rows["leads" if (difference > 0) == MEASURES[key].higher else "trails"].append(name)
    return Verdicts(*(tuple(sorted_rows[name]) for name in Verdicts._fields))


def verdict_words(benchmark: Benchmark, statistics: Record, key: str = MAIN, test: str = "together") -> str:
    """The verdicts of one figure in a sentence."""
    sides = verdicts(benchmark, statistics, key, test)
    title = benchmark.title(benchmark.reference)
    figure = f"{MEASURES[key].title}{', DeLong' if test == 'delong' else ''}"
    parts = [
        f"{verb} {listed([benchmark.title(name) for name in names])}"
        for verb, names in (("leads", sides.leads), ("trails", sides.trails))
        if names
    ]
    others = len(sides.undecided)
    if others:
        which = "the other" if parts else "any of the" if others > 1 else "the only"
        rest = f"{which} {'row' if others == 1 else several(others, 'row')}"
        parts.append(f"is not told apart from {rest}")
    if sides.untested:
        parts.append(f"could not be tested against {listed([benchmark.title(name) for name in sides.untested])}")
    return f"**{figure}**: {title} {'. It '.join(parts) if parts else 'has no row beside it'}."


def paper_style_words(statistics: Record) -> list[str]:
    """How many unadjusted p over seeds are below 0.05, ours and the paper's, and what that count is worth."""
    means = [one["mean"]["measures"][MAIN]["seeds"]["p"] for one in statistics["comparisons"].values()]
    cells = [
        site["measures"][MAIN]["seeds"]["p"]
        for one in statistics["comparisons"].values()
        for site in one["sites"].values()
    ]
    printed = list(published().tables["table4"].printed.values())
    theirs = [value for figures in printed for site, value in figures.items() if site != AVERAGE]
    return [
        f"Unadjusted p below 0.05: {_below(means)} over the mean of the sites and {_below(cells)} at single sites; in "
        f"the paper {_below([figures[AVERAGE] for figures in printed])} and {_below(theirs)}.",
        f"Without any true difference one such p in twenty falls below 0.05, so that {number(len(cells) / 20, 1)} of "
        "the single sites' would by chance.",
    ]


def seeds_table(benchmark: Benchmark, statistics: Record) -> list[str]:
    """How many paired seeds show a difference of a given size with 80 % power at the 5 % level, with these patients."""
    rows = []
    records = Records(benchmark.runs)
    took = of_both(records, taken(records))
    for name, one in benchmark.compared(statistics):
        entry, gain = one["mean"]["measures"][MAIN], _paper_gain(name)
        seeds, drawn = entry["seeds"], entry["patients"]
        if seeds["sd"] is None or drawn is None or drawn["variance"] is None:
            continue
        sizes = [_needed(seeds["sd"], size, drawn["variance"]) for size in (*_GAINS, entry["difference"])]
        paper = f"{signed(gain, 4)}: {_needed(seeds['sd'], gain, drawn['variance'])}" if gain else "–"
        spreads = [number(seeds["sd"], 4), number(sqrt(drawn["variance"]), 4)]
        line = Line((benchmark.title(name),), name, benchmark.reference)
        ran = (column.cell(records, line) for column in took)
        rows.append([*line.lead, f"{seeds['n']}", *spreads, *sizes, paper, *ran])
    head = ["row", "seeds here", "SD of a seed's difference", "SD over patients"]
    head += [*(f"seeds to see {gain}" for gain in _GAINS), "to see the difference found here", "to see the paper's"]
    head += [column.title for column in took]
    return table(head, rows) if rows else ["With fewer than two seeds nothing is known of their spread.", ""]


def seeds_words(benchmark: Benchmark, statistics: Record) -> list[str]:
    """What the seeds table says, and what more seeds cannot mend."""
    entries = [one["mean"]["measures"][MAIN] for _, one in benchmark.compared(statistics)]
    known = [one for one in entries if one["seeds"]["sd"] and one["patients"] and one["patients"]["variance"]]
    if not known:
        return []
    middle = sorted(known, key=lambda one: float(one["seeds"]["sd"]))[len(known) // 2]
    sd, variance = middle["seeds"]["sd"], middle["patients"]["variance"]
    most = max(one["seeds"]["n"] for one in known)
    rough = " From so few the spread is itself a rough guess." if most < _MANY_SEEDS else ""
    least = [_SEEN * sqrt(one["patients"]["variance"]) for one in known]
    return [
        f"For the row of middling spread over seeds (SD {number(sd, 4)}) a claim of 0.01 in macro AUC takes "
        f"{_needed(sd, 0.01, variance)} seeds, one of 0.02 {_needed(sd, 0.02, variance)}; here are {most}.{rough}",
        "More seeds do not bring more patients: with any number of them a difference must be about "
        f"{number(min(least), 3)} to {number(max(least), 3)}, by row, to be seen with these patients.",
    ]


def three_questions(benchmark: Benchmark, statistics: Record) -> list[str]:
    """What each test asks, in plain words."""
    shares = [float(site["shared"]) for site in statistics["tested"].values()]
    split = (
        f"Each seed split the patients anew, and two seeds share {percent(sum(shares) / len(shares))} of their test "
        "patients: they are not independent, so that this p alone is too small."
        if benchmark.resplit
        else "All seeds share one split of the patients, so this says nothing of other patients."
    )
    patients = sum(site["patients"] for site in statistics["tested"].values())
    return [
        f"- **Over seeds** (paired t test): would another training come out alike? {split}",
        f"- **Over patients** ({statistics['draws']} draws of the {several(patients, 'patient')} behind the test "
        "images, both eyes together, the same draw for both rows and all seeds): would other patients of the same kind "
        "come out alike? It takes the trained models as they are.",
        "- **Together** (t test with both variances added, degrees of freedom by Welch and Satterthwaite): would other "
        "trainings and other test patients come out alike? Only this carries a claim. What both variances have in "
        "common counts twice, so it errs to the wide side; other training images at the sites are not among its "
        "chances.",
        "- **Holm's adjustment** over all rows keeps the chance of any wrong claim in the column below 5 %. Each "
        "figure is a family of its own: macro AUC was named first, the others describe.",
    ]


def disease_words(benchmark: Benchmark, statistics: Record) -> list[str]:
    """How referable disease was tested, and what came out."""
    return [
        "AUC of referable disease rests on two groups in place of five, so chance moves it less than macro AUC. "
        "DeLong's test with the eyes of a patient together (Obuchowski) at each site; seeds share test images, so they "
        "enter as mean difference over the root of the mean variance, which does not profit from their number; sites "
        "share no patient and are combined by Stouffer's sum of z, in which a loss weighs up a win. The bootstrap "
        "beside it takes the mean over seeds, in which the chance of a training averages out, and so sees smaller "
        "differences.",
        "",
        verdict_words(benchmark, statistics, DISEASE, "delong"),
    ]


def _below(values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(value < LEVEL for value in known)} of {len(known)}"


def _paper_gain(name: str) -> float | None:
    paper = published()
    first = paper.tables["table1"]
    theirs = first.figure(name, AVERAGE)
    return None if theirs is None else first.printed[paper.proposed][AVERAGE] - theirs


def _needed(sd: float, difference: float | None, variance: float) -> str:
    if not difference:
        return "–"
    seeds = seeds_needed(sd, difference, variance)
    return f"over {MOST_SEEDS}" if seeds is None else str(seeds)
