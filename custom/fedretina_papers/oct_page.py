"""The page of the OCT benchmark: the paper's tables from stored runs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedretina.report.text import NONE, count
from fedretina_papers import oct_cost_tables, oct_tables
from fedretina_papers.markdown import NOT_RUN, listed, several
from fedretina_papers.oct_runs import OctResults, OctRun
from fedretina_papers.oct_set_table import set_table
from fedretina_papers.published_oct import published_oct

_PAPER_SIZE = (
    "trained an EfficientNet-B4, and for some rows a ResNet-50, for 100 rounds of 5 epochs without labels and 50 "
    "rounds of 3 with them, at a size of images that it does not tell"
)
_PAPER_DATA = "62646 training images are of four classes (CNV, DME, DRUSEN, NORMAL) and are split by image"


class Dealt(NamedTuple):
    """Runs over the same images dealt to more and fewer sites, from a folder of their own.

    Attributes:
        results: Figures of the runs.
        planned: Names of its plan's rows.
        before: Lines that stand above their table: what was run.
    """

    results: OctResults
    planned: Sequence[str]
    before: Sequence[str] = ()


def oct_page(
    results: OctResults,
    target: float = 0.9,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    planned: Sequence[str] | None = None,
    dealt: Dealt | None = None,
    picture: Sequence[str] = (),
) -> str:
    """Render Tables 3 to 9 and the convergence as Markdown; the same text for the same runs.

    Args:
        results: Figures of the runs; rows of the paper without any say that they were not run.
        target: Validation accuracy in [0, 1] of Table 5's rounds.
        before: Lines that stand before the tables.
        after: Lines that stand behind them.
        planned: Names of the plan's rows, so that each table says which of its rows the plan has not; None says
            nothing of it.
        dealt: Runs that Table 7 shows instead of those of `results`.
        picture: Lines that show the picture of convergence.
    """
    paper = published_oct()
    sections = (
        ("table3", oct_tables.method_table(results)),
        ("", [*picture, *oct_tables.convergence_table(results)]),
        ("table4", oct_tables.class_table(results)),
        ("table5", oct_tables.ablation_table(results, target)),
        ("table6", oct_cost_tables.communication_table(results)),
        ("table7", oct_cost_tables.sites_table(results if dealt is None else dealt.results)),
        ("table8", set_table(results)),
        ("table9", oct_cost_tables.encoder_table(results)),
    )
    lines = [
        "# Benchmark: oct",
        "",
        "Research software, not a medical device. Written from the stored runs; do not edit. "
        f"The paper is {paper.paper}; its figures stand beside ours for orientation, not as a target: they contradict "
        "each other in several places, which are told under each table.",
        "",
        f"Figures are of test images: mean over {_seeds(results)}, smallest and largest in brackets.",
        "",
        *before,
        *_how_to_read(results),
    ]
    for which, section in sections:
        title = paper.tables[which].title if which else "Convergence over both phases"
        own = dealt if which == "table7" else None
        named = planned if own is None else own.planned
        lines += [f"## {title}", "", *(() if own is None else own.before), *_not_planned(which, named), *section]
    return "\n".join([*lines, *after]).rstrip() + "\n"


def _how_to_read(results: OctResults) -> list[str]:
    """What a newcomer needs to know before the first table."""
    runs = results.runs.get(published_oct().proposed, ())
    classes = listed(runs[0].run.classes) if runs else "those that the sites share"
    trained = sorted({one.run.training_images for one in runs if one.run.training_images is not None})
    images = f" on {listed([count(one) for one in trained])} labelled training images" if trained else ""
    return [
        "## How to read the tables",
        "",
        "- A row bears the paper's name for it, where \"(Ours)\" means the paper's own method; the figures beside it "
        "are of the same method as it was run here, with the encoder and at the size that stand under Settings. A "
        "column `paper` is what the paper prints for the column left of it.",
        f"- `{NOT_RUN}` is a row without a run; `{NONE}` is a figure that is undefined, or that the paper does not "
        "print.",
        f"- Classes: {classes}. Accuracy is the share of right answers; AUC is the mean over the classes of one "
        "against the rest, 0.5 for guessing. GB are 1e9 bytes, MB 1e6.",
        f"- The paper {_PAPER_SIZE}; its {_PAPER_DATA}. Ours are small runs{images}, split by patient: they show which "
        "way a part of the method works here, and are no repetition of the paper.",
        "",
    ]


def _seeds(results: OctResults) -> str:
    counts = sorted({len(runs) for runs in results.runs.values()})
    if not counts:
        return "no seeds"
    return several(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def oct_results(runs: Iterable[OctRun]) -> OctResults:
    """Figures of runs, the names in the order of the paper's tables.

    Raises:
        SettingsError: Two runs share name and seed.
        TrainingError: Labels or probabilities are unfit.
    """
    paper = published_oct()
    return OctResults.of(runs, (paper.proposed, *(name for table in paper.tables.values() for name in table.rows)))


def _not_planned(which: str, planned: Sequence[str] | None) -> list[str]:
    """Which rows of a table the plan has no run for."""
    if planned is None or which in ("", "table4"):  # the rows of Table 4 are classes
        return []
    rows = published_oct().tables[which].rows
    without = [said for name, said in rows.items() if name not in planned]
    things = " sites" if which == "table7" else ""
    lines = [f"The plan has no run for {listed(without)}{things}, so nothing of ours stands there."] if without else []
    if which == "table8":
        never = [said for name, said in rows.items() if not any(one.startswith(f"{name}_without_") for one in planned)]
        lines += [f"The plan leaves no set out of training for {listed(never)}."] if never else []
    return [" ".join(lines), ""] if lines else []
