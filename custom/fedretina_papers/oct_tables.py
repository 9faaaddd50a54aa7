"""The OCT paper's Tables 3, 4 and 5 and its convergence from our runs, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedretina.report.text import NONE, count, number
from fedretina_papers.faced_table import Column, faced, notes, our_encoder, over_seeds
from fedretina_papers.markdown import NOT_RUN, listed, several, table
from fedretina_papers.oct_runs import OctFigures, OctResults, Value, union
from fedretina_papers.published_oct import published_oct
from fedretina_papers.statistics.classification import ClassFigures

TARGETS = (0.7, 0.8, 0.9)
ACCURACY = Column("accuracy (%)", union(lambda one: one.accuracy), "accuracy", scale=100)
PRECISION = Column("precision (%)", union(lambda one: one.precision), "precision", scale=100)
RECALL = Column("recall (%)", union(lambda one: one.recall), "recall", scale=100)
PARAMETERS = Column(
    "parameters (M)", lambda one: None if one.run.cost is None else one.run.cost.parameters, "parameters", scale=1e-6
)
MULTIPLY_ADDS = Column(
    "multiply-adds (G)", lambda one: None if one.run.cost is None else one.run.cost.multiply_adds, "flops", 2, 1e-9
)


def method_table(results: OctResults) -> list[str]:
    """Table 3: the methods over the pooled test images, and what a pooled figure hides: the worst site."""
    columns = (
        ACCURACY,
        PRECISION,
        RECALL,
        Column("F1 (%)", union(lambda one: one.f1), "f1", scale=100),
        Column("AUC", union(lambda one: one.auc), "auc", 3, 1, 3),
        Column("worst set, accuracy (%)", _worst, None, scale=100),
    )
    paper, more = published_oct().tables["table3"], not_in_the_paper(results)
    rows = {**paper.rows, **{name: f"not in the paper: {results.runs[name][0].run.title}" for name in more}}
    sets = listed(results.sets) if results.sets else "no set"
    more_cells: dict[str, Callable[[str], str]] = {}
    if any(_over_patients(results, name) != NONE for name in rows):
        more_cells["accuracy, 95 % over patients"] = lambda name: _over_patients(results, name)
    told = (
        " The interval over patients says how far the accuracy would move with other patients; it stands where all "
        "seeds of a row were asked about the same images."
        if more_cells
        else ""
    )
    return [
        f"Over the pooled test images of {sets}{_pooled(results)}; precision, recall and F1 are plain means over the "
        f"classes. The worst set is the lowest accuracy among the sets that the row trained on.{told}",
        "",
        *faced(results, paper._replace(rows=rows), columns, {**more_cells, **our_encoder(results)}),
        *notes(paper),
    ]


def not_in_the_paper(results: OctResults) -> list[str]:
    """Names of runs that no table of the paper has; sets left out are Table 8's."""
    known = {name for table in published_oct().tables.values() for name in table.rows}
    return [name for name in results.runs if name not in known and "_without_" not in name]


def _pooled(results: OctResults) -> str:
    """How many images are pooled, in brackets."""
    found = sorted({one.union.n for many in results.runs.values() for one in many if one.union is not None})
    if not found:
        return ""
    return f" ({count(found[0])}{f' to {count(found[-1])}' if len(found) > 1 else ''} images a seed)"


def class_table(results: OctResults) -> list[str]:
    """Table 4: the classes under the proposed method, their mean beside the paper's."""
    paper, proposed = published_oct().tables["table4"], published_oct().proposed
    first = next((one for one in results.runs.get(proposed, ()) if one.union is not None), None)
    if first is None:
        return [f"The proposed method: {NOT_RUN}.", "", *notes(paper)]
    columns: tuple[tuple[str, Callable[[ClassFigures], float | None], str, int, float], ...] = (
        ("precision (%)", lambda one: one.precision, "precision", 1, 100),
        ("recall (%)", lambda one: one.recall, "recall", 1, 100),
        ("F1 (%)", lambda one: one.f1, "f1", 1, 100),
        ("AUC", lambda one: one.auc, "auc", 3, 1),
        ("test images", lambda one: one.support, "support", 0, 1),
    )
    head = ["class"]
    for title, *_ in columns:
        head += [title, "paper"]
    rows = []
    for at, name in enumerate(first.run.classes):
        cells = [name]
        for _, value, printed, places, scale in columns:
            ours = results.values(proposed, union(_of_class(at, value)))
            cells.append(over_seeds([scale * one for one in ours], places))
            cells.append(number(paper.figure(name.lower(), printed), places))
        rows.append(cells)
    own = {name.lower() for name in first.run.classes}
    apart = [said for key, said in paper.rows.items() if key not in own]
    unlike = [name for name in first.run.classes if name.lower() not in paper.rows]
    differ = f" The paper also tells {listed(apart)}, and has no {listed(unlike)}." if apart and unlike else ""
    return [
        f"{first.run.title}, over the same pooled test images as in Table 3.{differ}",
        "",
        *table(head, rows),
        f"A class that was never answered has no precision ({NONE}), and counts as 0 in the mean of Table 3.",
        "",
        *notes(paper),
    ]


def ablation_table(results: OctResults, target: float) -> list[str]:
    """Table 5: accuracy and costs without each part.

    Args:
        results: What was run.
        target: Validation accuracy in [0, 1] at which a run counts as there.
    """
    paper = published_oct().tables["table5"]
    columns = (
        ACCURACY,
        PARAMETERS,
        MULTIPLY_ADDS,
        Column("GB up", lambda one: one.moved.up, None, 2, 1e-9),
        Column("GB up and down", lambda one: one.moved.both, "gigabytes", 2, 1e-9),
        Column(f"rounds to {_percent(target)} on validation", lambda one: one.rounds_to(target), "rounds", 0, 1, 0),
    )
    return [
        "Bytes are measured over the whole run. Rounds of both phases count, those without labels too. A dash means "
        "that the target was not reached; a mean is over the seeds that did.",
        "",
        *faced(
            results,
            paper,
            columns,
            {"runs that reached it": lambda name: _reached(results, name, target), **our_encoder(results)},
        ),
        *notes(paper),
    ]


def convergence_table(results: OctResults, targets: Sequence[float] = TARGETS) -> list[str]:
    """Convergence over both phases: losses, the best validation accuracy, and rounds to a target.

    Args:
        results: What was run.
        targets: Validation accuracies in [0, 1].
    """
    rows = []
    for name, runs in results.runs.items():
        phases = list(dict.fromkeys(note.phase for one in runs for note in one.run.history))
        cells = [runs[0].run.title]
        cells.append("; ".join(f"{phase}: {_losses(results, name, phase)}" for phase in phases) or NONE)
        cells.append(over_seeds([100 * one for one in results.values(name, _best)], 1))
        for target in targets:
            there = results.values(name, _rounds_to(target))
            some = f", {len(there)} of {several(len(runs), 'seed')}" if 0 < len(there) < len(runs) else ""
            cells.append(f"{over_seeds(there, 0)}{some}")
        rows.append(cells)
    head = ["row", "rounds and mean loss by phase, first to last", "best validation accuracy (%)"]
    return [
        *table([*head, *(f"rounds to {_percent(target)}" for target in targets)], rows),
        "Rounds are counted from the first, those without labels among them, and a target is the mean validation "
        "accuracy of the sites; a dash means that no seed reached it. The loss of `pretrain` is the contrastive one, "
        "and that of `train` the cross entropy, so the two do not compare.",
        "",
    ]


def _over_patients(results: OctResults, name: str) -> str:
    found = results.accuracy_interval(name)
    if found is None or found.low is None or found.high is None:
        return NONE
    return f"{number(100 * found.low, 1)} to {number(100 * found.high, 1)}"


def _worst(figures: OctFigures) -> float | None:
    found = [value for origin, value in figures.accuracy.items() if origin not in figures.unseen]
    return min(found) if len(found) > 1 else None


def _of_class(at: int, value: Callable[[ClassFigures], float | None]) -> Callable[..., float | None]:
    return lambda one: value(one.classes[at])


def _reached(results: OctResults, name: str, target: float) -> str:
    runs = results.runs.get(name, ())
    return f"{sum(one.rounds_to(target) is not None for one in runs)} of {len(runs)}" if runs else NONE


def _rounds_to(target: float) -> Value:
    return lambda one: one.rounds_to(target)


def _best(figures: OctFigures) -> float | None:
    return max((note.accuracy for note in figures.run.history if note.accuracy is not None), default=None)


def _losses(results: OctResults, name: str, phase: str) -> str:
    told = [
        [note.loss for note in one.run.history if note.phase == phase and note.loss is not None]
        for one in results.runs[name]
    ]
    known = [losses for losses in told if losses]
    rounds = max(sum(note.phase == phase for note in one.run.history) for one in results.runs[name])
    if not known:
        return several(rounds, "round")
    first, last = (sum(losses[at] for losses in known) / len(known) for at in (0, -1))
    return f"{several(rounds, 'round')}, {number(first, 3)} to {number(last, 3)}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
