"""The OCT paper's Tables 3 to 9 and its convergence from our runs, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fedretina.report.text import NONE, count, number
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, render, steady, taken
from fedretina_papers.markdown import NOT_RUN, listed, several, signed, table
from fedretina_papers.oct_runs import OctResults
from fedretina_papers.published import PublishedTable, published_oct, recomputed

TARGETS = (0.7, 0.8, 0.9)
_BASE = "oct_centralised"
_UNSEEN = "octid"
"""The set that the paper never trained on."""
_Places = Mapping[str, Mapping[str, tuple[str, str]]]


def _ours(title: str, figure: str, places: int = 1, scale: float = 1) -> Column:
    return Column(title, figure, show=steady, places=places, scale=scale)


_ACCURACY = _ours("accuracy (%)", "union.accuracy", scale=100)
_PRECISION = _ours("precision (%)", "union.precision", scale=100)
_RECALL = _ours("recall (%)", "union.recall", scale=100)
_PARAMETERS = _ours("parameters (M)", "cost.parameters", scale=1e-6)
_MULTIPLY_ADDS = _ours("multiply-adds (G)", "cost.multiply_adds", 2, 1e-9)
_UP = _ours("GB up", "up", 2, 1e-9)
_BOTH = _ours("GB up and down", "both", 2, 1e-9)


def method_table(results: OctResults, helping: Sequence[Column] = ()) -> list[str]:
    """Table 3: the methods over the pooled test images, and what a pooled figure hides: the worst site.

    Args:
        results: What was run.
        helping: Whether a row helps; see `engine.tested.helps`.
    """
    paper, more = _paper("table3"), not_in_the_paper(results)
    rows = {**paper.rows, **{name: f"not in the paper: {results.runs[name][0].run.title}" for name in more}}
    columns = [
        *_beside(paper, _ACCURACY, "accuracy"),
        *_beside(paper, _PRECISION, "precision"),
        *_beside(paper, _RECALL, "recall"),
        *_beside(paper, _ours("F1 (%)", "union.f1", scale=100), "f1"),
        *_beside(paper, _ours("AUC", "union.auc", 3), "auc", 3),
        _ours("worst set, accuracy (%)", "worst", scale=100),
    ]
    if has_intervals(results):
        columns.append(Column("accuracy, 95 % over patients", told=lambda line: _over_patients(results, line.row)))
    columns += [*taken(results.records), *helping, _encoder(results)]
    return render(results.records, ["row"], _lines(rows), columns)


def proposed_took(results: OctResults) -> str:
    """Passes and bytes of the proposed method, whose classes Table 4 shows."""
    passes, sent = (one.cell(results.records, Line((), published_oct().proposed)) for one in taken(results.records))
    return f"{passes} training passes; all sites sent {sent}"


def majority_share(results: OctResults) -> list[str]:
    """Accuracy, %, of the commonest class as the answer to every pooled test image: least and most of the runs."""
    unions = [one.union for many in results.runs.values() for one in many if one.union is not None]
    shares = sorted(max(one.support for one in union.classes) / union.n for union in unions)
    return list(dict.fromkeys(number(100 * share, 1) for share in shares[:1] + shares[-1:]))


def has_intervals(results: OctResults) -> bool:
    """Whether Table 3 has intervals over patients."""
    return any(_over_patients(results, name) != NONE for name in (*_paper("table3").rows, *not_in_the_paper(results)))


def not_in_the_paper(results: OctResults) -> list[str]:
    """Names of runs that no table of the paper has; those apart are Table 8's."""
    known = {name for table in published_oct().tables.values() for name in table.rows}
    return [name for name in results.runs if name not in known and name not in results.apart]


def class_table(results: OctResults) -> list[str]:
    """Table 4: the classes under the proposed method, their mean beside the paper's; nothing without a run."""
    paper, proposed = _paper("table4"), published_oct().proposed
    first = next((one for one in results.runs.get(proposed, ()) if one.union is not None), None)
    if first is None:
        return []
    head, rows = ["class"], [[name] for name in first.run.classes]
    for title, key, places, scale in (
        ("precision (%)", "precision", 1, 100),
        ("recall (%)", "recall", 1, 100),
        ("F1 (%)", "f1", 1, 100),
        ("AUC", "auc", 3, 1),
        ("test images", "support", 0, 1),
    ):
        head += [title, "paper"]
        for at, row in enumerate(rows):
            column = _ours("", f"union.classes.{at}.{key}", places, scale)
            printed = number(paper.figure(row[0].lower(), key), places)
            row += [column.cell(results.records, Line((), proposed)), printed]
    return table(head, rows)


def ablation_table(results: OctResults, target: float, controls: Sequence[str] = ()) -> list[str]:
    """Table 5: accuracy and costs without each part, and of the controls.

    Args:
        results: What was run.
        target: Validation accuracy in [0, 1] at which a run counts as there.
        controls: Rows that each client trains alone, and those of all scans in one place.
    """
    paper = _paper("table5")
    rows = _with_controls(results, paper, controls)

    def reached(line: Line) -> str:
        runs = results.runs.get(line.row, ())
        return f"{sum(one.rounds_to(target) is not None for one in runs)} of {len(runs)}" if runs else NONE

    def rounds(line: Line) -> str:
        return steady(_rounds_to(results, line.row, target), 0) if line.row in results.runs else NOT_RUN

    columns = [
        *_beside(paper, _ACCURACY, "accuracy"),
        *_beside(paper, _PARAMETERS, "parameters"),
        *_beside(paper, _MULTIPLY_ADDS, "flops"),
        _UP,
        *_beside(paper, _BOTH, "gigabytes"),
        *_beside(paper, Column(f"rounds to {_percent(target)} on validation", told=rounds), "rounds", 0),
        Column("runs that reached it", told=reached),
        _passes(results),
    ]
    return render(results.records, ["row"], _lines(rows), [*columns, _encoder(results)])


def convergence_table(results: OctResults, targets: Sequence[float] = TARGETS) -> list[str]:
    """Convergence over both phases: losses, the best validation accuracy, and rounds to a target.

    Args:
        results: What was run.
        targets: Validation accuracies in [0, 1].
    """

    def losses(line: Line) -> str:
        phases = dict.fromkeys(note.phase for one in results.runs[line.row] for note in one.run.history)
        return "; ".join(f"{phase}: {_losses(results, line.row, phase)}" for phase in phases) or NONE

    def rounds(line: Line, target: float) -> str:
        there, of = _rounds_to(results, line.row, target), len(results.runs[line.row])
        return steady(there, 0) + (f", {len(there)} of {several(of, 'seed')}" if 0 < len(there) < of else "")

    columns = [
        Column("rounds and mean loss by phase, first to last", told=losses),
        _ours("best validation accuracy (%)", "best", scale=100),
    ]
    for target in targets:
        columns.append(
            Column(f"rounds to {_percent(target)}", told=lambda line, target=target: rounds(line, target))  # type: ignore[misc]
        )
    lines = [Line((runs[0].run.title,), name) for name, runs in results.runs.items()]
    return render(results.records, ["row"], lines, [*columns, *taken(results.records)])


def communication_table(results: OctResults, controls: Sequence[str] = ()) -> list[str]:
    """Table 6: what moved, `controls` as in `ablation_table`."""
    paper = _paper("table6")
    columns = [
        *_beside(paper, _ours("MB up, a site and round", "upload", 2, 1e-6), "megabytes"),
        *_beside(paper, _ours("rounds", "rounds", 0), "rounds", 0),
        *_beside(paper, _ours("sites", "trained_sites", 0), "uploads", 0),
        _UP,
        _ours("GB down", "down", 2, 1e-9),
        *_beside(paper, _ACCURACY, "accuracy"),
        _passes(results),
    ]
    rows = _with_controls(results, paper, controls)
    return render(results.records, ["row"], _lines(rows), [*columns, _encoder(results)])


def recomputed_table(results: OctResults) -> list[str]:
    """Table 6's printed totals beside what they should be by the paper's own terms, in GB."""
    paper = _paper("table6")
    rows = []
    for name, said in paper.rows.items():
        printed = paper.printed[said]
        totals = [number(one, 2) for one in recomputed(printed)]
        moved = replace(_BOTH, title="").cell(results.records, Line((), name))
        saved = f"{number(printed['reduction'], 1)} %"
        passes = _passes(results).cell(results.records, Line((), name))
        rows.append([said, number(printed["gigabytes"], 1), *totals, moved, saved, _reduction(results, name), passes])
    head = ["row", "printed (GB)", "its own formula", "with controls", "up and down", "ours, measured"]
    return table([*head, "reduction, printed", "reduction, ours", "training passes"], rows)


def sites_table(results: OctResults, controls: Sequence[str] = ()) -> list[str]:
    """Table 7: the proposed method over more sites, `controls` as in `ablation_table`."""
    paper = _paper("table7")

    def total(line: Line) -> str:
        if line.row not in paper.rows:
            return NONE
        printed = paper.printed[paper.rows[line.row]]
        return number(printed["megabytes"] * printed["rounds"] / 1000, 2)

    def sites(line: Line) -> str:
        counts = sorted({one.sites for one in results.runs.get(line.row, ())})
        return listed([str(one) for one in counts]) if counts else NONE

    columns = [
        *_beside(paper, _ACCURACY, "accuracy"),
        *_beside(paper, _PRECISION, "precision"),
        *_beside(paper, _RECALL, "recall"),
        *_beside(paper, _ours("MB up a round, all sites", "upload_of_all", 2, 1e-6), "megabytes"),
        *_beside(paper, _UP, "gigabytes"),
        _BOTH,
        *_beside(paper, _ours("minutes a round", "seconds_a_round", 2, 1 / 60), "minutes"),
        _ours("training images", "training_images", 0),
        Column("paper's GB, recomputed", told=total),
        Column("our sites", told=sites),
        _passes(results),
    ]
    return render(results.records, ["row"], _lines(_with_controls(results, paper, controls)), columns)


def encoder_table(results: OctResults) -> list[str]:
    """Table 9: encoders under the proposed method."""
    paper, proposed = _paper("table9"), published_oct().proposed
    runs = results.runs.get(proposed)
    rows = {**paper.rows, **({proposed: f"ours: {runs[0].run.title}"} if runs else {})}
    columns = [
        *_beside(paper, _PARAMETERS, "parameters"),
        *_beside(paper, _MULTIPLY_ADDS, "flops"),
        *_beside(paper, _ACCURACY, "accuracy"),
        *_beside(paper, _ours("ms an image", "inference_s", scale=1e3), "milliseconds", 0),
        *_beside(paper, _ours("peak memory of a training step (GB)", "memory_bytes", 2, 1e-9), "memory"),
        *_beside(paper, _BOTH, "gigabytes"),
        _ours("rounds", "rounds", 0),
        _passes(results),
    ]
    return render(results.records, ["row"], _lines(rows), [*columns, _encoder(results)])


def set_tables(results: OctResults) -> dict[str, list[str]]:
    """Table 8: accuracy at each set, trained on and left out, their average, and the gain over pooled images.

    A method's own run shows the sets that it trained on; those that it never saw are shown from its own run, else from
    the first of its variants apart that never saw them.
    """
    paper = _paper("table8")
    runs = [one for name, many in results.runs.items() if results.apart.get(name, name) in paper.rows for one in many]
    shown = {origin for one in runs for origin in one.accuracy}
    origins = [*(one for one in _printed_sets(paper) if one in shown), *sorted(shown - set(_printed_sets(paper)))]
    trained: _Places = {name: {origin: (name, f"trained.{origin}") for origin in origins} for name in paper.rows}
    left_out: _Places = {name: {origin: _left_out(results, name, origin) for origin in origins} for name in paper.rows}
    theirs = [one for one in _printed_sets(paper) if one != _UNSEEN]
    return {
        "Trained on": _half(results, trained, origins, theirs, "paper, with OCTID"),
        "Left out of training": _half(results, left_out, origins, [_UNSEEN], ""),
    }


def set_images(results: OctResults) -> list[str]:
    """How many test images each set of Table 8 has."""
    sizes = {
        name.removeprefix("images."): results.records.values(published_oct().proposed, name)
        for name in results.records.runs
        if name.startswith("images.")
    }
    shown = [one for one in _printed_sets(_paper("table8")) if one in sizes]
    order = [*shown, *sorted(set(sizes) - set(shown))]
    return [f"{origin} {count(max(sizes[origin]))}" for origin in order if sizes[origin]]


def _half(
    results: OctResults, places: _Places, origins: Sequence[str], theirs: Sequence[str], average: str
) -> list[str]:
    """One half of Table 8; the paper's own figures in words where no run has one.

    Args:
        results: What was run.
        places: By row and set the run and figure that tell it.
        origins: The sets.
        theirs: Those of which the paper says the same.
        average: Heading of the paper's average; empty where it has none.
    """
    paper, best = _paper("table8"), published_oct().proposed
    records = _by_set(results, origins, places)

    def took(line: Line, column: Column) -> str:
        """What the line's runs took, the same once; a gain took what its rows did."""
        ran = [run for run in dict.fromkeys(run for run, _ in places[line.row].values()) if run in results.records]
        told = dict.fromkeys(column.cell(results.records, Line((), run)) for run in ran)
        return NONE if line.against or not told else " or ".join(told)

    if records.runs.dropna(how="all").empty:
        told = [
            f"{said} {listed([f'{number(paper.figure(name, one), 1)} at {_as_printed(one)}' for one in theirs])}"
            for name, said in paper.rows.items()
        ]
        return [f"no run of ours. The paper prints {'; '.join(told)}.", ""]

    def ours(line: Line, origin: str) -> str:
        if line.against:
            return _gained(records.gaps(line.row, line.against, origin))
        found = [100 * one for one in records.values(line.row, origin)]
        silent = bool(average) and line.row in records  # it was run, and trained on other sets
        return steady(found, 1) if found or silent or origin == "average" else NOT_RUN

    def printed(line: Line, origin: str) -> str:
        if origin not in (*theirs, "average"):
            return NONE
        value = paper.figure(line.row, origin)
        if not line.against:
            return number(value, 1)
        base = paper.figure(line.against, origin)
        return signed(None if value is None or base is None else value - base, 1)

    columns = []
    for origin in (*origins, "average"):
        columns.append(Column(origin, told=lambda line, origin=origin: ours(line, origin)))  # type: ignore[misc]
        title = average if origin == "average" else "paper" if origin in _printed_sets(paper) else ""
        if title:
            columns.append(Column(title, told=lambda line, origin=origin: printed(line, origin)))  # type: ignore[misc]
    for column in taken(results.records):
        columns.append(Column(column.title, told=lambda line, column=column: took(line, column)))  # type: ignore[misc]
    gain = Line((f"improvement: {paper.rows[best]} less {paper.rows[_BASE]}, points",), best, _BASE)
    return render(records, ["row"], [*_lines(paper.rows), gain], columns)


def _by_set(results: OctResults, origins: Sequence[str], places: _Places) -> Records:
    """Accuracy by set of each row, and the plain mean of the sets in the seeds that have them all.

    Args:
        results: What was run.
        origins: The sets.
        places: By row and set the run and figure that tell it.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row, by_set in places.items():
        if row in results.runs:
            found[row] = {one.run.seed: {} for one in results.runs[row]}
        for origin, (run, figure) in by_set.items():
            for seed, value in results.records.joined(figure).get(run, {}).items():
                found.setdefault(row, {}).setdefault(seed, {})[origin] = value
    known = [one for one in origins if any(one in sets for seeds in found.values() for sets in seeds.values())]
    for seeds in found.values():
        for sets in seeds.values():
            if known and set(known) <= set(sets):
                sets["average"] = fmean(sets[one] for one in known)
    return Records(found)


def _left_out(results: OctResults, name: str, origin: str) -> tuple[str, str]:
    own = results.records.joined(f"unseen.{origin}")
    tried = (name, *(variant for variant, of in results.apart.items() if of == name))
    return next((one for one in tried if own.get(one)), ""), f"unseen.{origin}"


def _gained(gaps: Sequence[float]) -> str:
    """Mean difference over the seeds that both have, smallest and largest in brackets, in points."""
    found = [100 * one for one in gaps]
    if not found:
        return NONE
    ends = f" ({signed(min(found), 1)} to {signed(max(found), 1)})" if len(found) > 1 else ""
    return f"{signed(fmean(found), 1)}{ends}"


def _printed_sets(paper: PublishedTable) -> list[str]:
    return [one for one in next(iter(paper.printed.values())) if one != "average"]


def _as_printed(origin: str) -> str:
    return origin.upper() if origin == _UNSEEN else origin.capitalize()


def _paper(which: str) -> PublishedTable:
    return published_oct().tables[which]


def _lines(rows: Mapping[str, str]) -> list[Line]:
    return [Line((said,), name) for name, said in rows.items()]


def _beside(paper: PublishedTable, column: Column, key: str, places: int = 1) -> list[Column]:
    """A column of ours with the paper's behind it."""
    return [column, Column("paper", told=lambda line: number(paper.figure(line.row, key), places))]


def _with_controls(results: OctResults, paper: PublishedTable, controls: Sequence[str]) -> dict[str, str]:
    """A table's rows, and below them the controls that trained on as many sites as one of them."""
    sites = {results.runs[name][0].sites for name in paper.rows if name in results.runs}
    more = [one for one in controls if one in results.runs and one not in paper.rows]
    shown = {name: results.runs[name][0] for name in more if results.runs[name][0].sites in sites}
    return {**paper.rows, **{name: f"not in the paper: {one.run.title}" for name, one in shown.items()}}


def _passes(results: OctResults) -> Column:
    """Passes, for tables that have the bytes."""
    return taken(results.records)[0]


def _encoder(results: OctResults) -> Column:
    """Names our encoder, since the paper's may be another."""

    def told(line: Line) -> str:
        runs = results.runs.get(line.row, ())
        return listed(sorted({one.run.encoder for one in runs})) if runs else NONE

    return Column("our encoder", told=told)


def _over_patients(results: OctResults, name: str) -> str:
    found = results.accuracy_interval(name)
    if found is None or found.low is None or found.high is None:
        return NONE
    return f"{number(100 * found.low, 1)} to {number(100 * found.high, 1)}"


def _rounds_to(results: OctResults, name: str, target: float) -> list[float]:
    found = [one.rounds_to(target) for one in results.runs.get(name, ())]
    return [one for one in found if one is not None]


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


def _reduction(results: OctResults, name: str) -> str:
    """Bytes saved against the first row, FedAvg, both ways, in per cent; negative where more moves."""
    first = next(iter(published_oct().tables["table6"].rows))
    ours, theirs = (results.records.values(one, "both") for one in (name, first))
    if not ours or not theirs or not sum(theirs):
        return NONE
    return f"{number(100 * (1 - (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))), 1)} %"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
