"""The page of the papers' size: what has run, and what has not, from the stored records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedretina.exchange.partition import partition_of
from fedretina.networks.build import build_on_meta
from fedretina.report.text import number
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.storage import read_json
from fedretina_papers import oct_tables, tables
from fedretina_papers.choices import passes
from fedretina_papers.compared import STATISTICS, statistics
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import (
    Column,
    Line,
    bytes_told,
    mean_count,
    passes_told,
    render,
    seeds,
    steady,
    taken,
)
from fedretina_papers.engine.tested import helps, helps_table, mean_tests
from fedretina_papers.input_speed import TARGET
from fedretina_papers.markdown import listed, several, table
from fedretina_papers.measures import DISEASE, MAIN, MEASURES
from fedretina_papers.oct_figures import FIGURES, read_oct_figures, store_oct_figures
from fedretina_papers.paper_size.plan import PaperSizePlan, Part
from fedretina_papers.paper_size.speed import SPEED
from fedretina_papers.plan import BenchmarkPlan, preset
from fedretina_papers.published import published, published_oct
from fedretina_papers.runner import plan_record
from fedretina_papers.stored import Benchmark, Record, answers_path, read_benchmark
from fedretina_papers.what_was_run import STARTS, course_words, what_was_run

_PRESET = "paper-size"
_GRADES, _CLASSES = (MAIN, DISEASE, "kappa"), (MAIN, "accuracy")  # what a part is tested by
_NO_CARD = "no GPU"


def compare_parts(plan: PaperSizePlan, out: Path) -> None:
    """Compare the runs of each part whose answers all lie in the folder; a part that lacks some stays as it is.

    Raises:
        StateError: A record or an answer is damaged.
    """
    for name, bench in plan.benches.items():
        folder = out / name
        if not (folder / "plan.json").exists():
            continue
        benchmark = read_benchmark(folder)
        if not benchmark.runs or not _answered(folder, benchmark):
            continue
        statistics(folder)
        if bench.compares.pooled:
            store_oct_figures(folder)


def _answered(folder: Path, benchmark: Benchmark) -> bool:
    return all(
        answers_path(folder, name, seed, site).exists()
        for name, runs in benchmark.runs.items()
        for seed, record in runs.items()
        for site in record["sites"]
    )


def write_paper_size_page(out: Path, page: Path) -> None:
    """Render the page; the same bytes for the same records.

    Args:
        out: The benchmark's folder; one that holds nothing gives the page of a plan that has not run.
        page: Markdown file to write.

    Raises:
        StateError: A record is damaged, or the file cannot be written.
    """
    held = out / "plan.json"
    plan = PaperSizePlan.read(read_json(held) if held.exists() else preset(_PRESET))
    parts = {name: _part(part, plan.benches[name], out / name) for name, part in plan.parts.items()}
    done, of = sum(one["done"] for one in parts.values()), sum(one["of"] for one in parts.values())
    cards = sorted({one["card"] for one in parts.values() if one["card"]})
    write_page(
        "paper_size.md.j2",
        page,
        parts=parts,
        done=done,
        of=of,
        cards=cards,
        graphics=any(card != _NO_CARD for card in cards),
        seeds=plan.seeds,
        target=TARGET,
    )


def _part(part: Part, bench: BenchmarkPlan, folder: Path) -> dict[str, Any]:
    """What the page shows of a part."""
    benchmark = read_benchmark(folder) if (folder / "plan.json").exists() else Benchmark(plan_record(bench, {}), {})
    records = Records(benchmark.runs, benchmark.sites if benchmark.runs else ())
    found = read_json(folder / STATISTICS) if (folder / STATISTICS).exists() else None
    speed = read_json(folder / SPEED) if (folder / SPEED).exists() else None
    order = [choice.name for choice in bench.rows]
    waiting = {name: [seed for seed in bench.seeds if seed not in benchmark.runs.get(name, {})] for name in order}
    titles = {choice.name: part.title_of(bench, choice) for choice in bench.rows}
    never = [titles[name] for name in order if len(waiting[name]) == len(bench.seeds)]
    shown: dict[str, Any] = {
        "title": part.title,
        "first": [titles[name] for name in order[: part.first]],
        "done": sum(len(runs) for runs in benchmark.runs.values()),
        "of": len(order) * len(bench.seeds),
        "never": never,
        "short": [
            f"{titles[name]} with {'seed' if len(lacking) == 1 else 'seeds'} {listed([str(one) for one in lacking])}"
            for name, lacking in waiting.items()
            if lacking and titles[name] not in never
        ],
        "planned": _planned(bench, records, titles),
        "from_seed": _from_seed(bench),
        "paper_trains": part.paper_trains,
        "speed": None if speed is None else _speed_table(speed),
        "aim": None if speed is None or speed["machine"]["gpu"] is None else speed["ratio"] >= TARGET,
        "card": _card(speed, benchmark),
    }
    if not benchmark.runs:
        return shown
    return shown | {
        "drawn": benchmark.synthetic,
        "ran": what_was_run(benchmark, found, _course(bench, benchmark))[2:],
        "compared": found is not None,
        "figures": _figures(bench, benchmark, records, folder, found),
        "others": tables.left_out(benchmark, records, found),
        "cost": _cost_table(benchmark, records),
        "tests": _tests(bench, benchmark, found, mean_tests),
        "helps": _tests(bench, benchmark, found, helps_table),
        "reference": benchmark.title(bench.reference),
    }


def _course(bench: BenchmarkPlan, benchmark: Benchmark) -> str:
    """How the reference was trained, or else a row that has run."""
    names = (bench.reference, *reversed(list(benchmark.runs)))
    return course_words(benchmark, next(name for name in names if name in benchmark.runs))


def _planned(bench: BenchmarkPlan, records: Records, titles: Mapping[str, str]) -> list[str]:
    """Every row in the order in which it is begun: network, start, passes, bytes, and how many runs it has."""
    made = {choice.name: bench.experiment_of(choice, bench.seeds[0], {}) for choice in bench.rows}
    stays = (made[one.name] for one in bench.rows if not one.in_one_place)
    usual = min(filter(None, (passes(one) for one in stays if not (one.shares or one.pooled))), default=0.0)
    rows = []
    for choice in bench.rows:
        experiment = made[choice.name]
        network = experiment.network
        runs = len(records.values(choice.name, OfRun("passes")))
        rows.append(
            [
                titles[choice.name],
                f"{network.encoder}{', frozen' if network.frozen == 'all' else ''}",
                STARTS[network.weights.source],
                passes_told([passes(experiment)], usual),
                bytes_told([0 if choice.in_one_place or experiment.pooled else will_send(experiment)]),
                f"{runs} of {len(bench.seeds)}" if runs else "has not run",
            ]
        )
    head = ["row", "encoder", "start", "passes over the data", "a site will send", "seeds that have run"]
    return table(head, rows)


def _from_seed(bench: BenchmarkPlan) -> dict[str, Any]:
    """How many of a part's rows start from no weights, and over how few and how many passes they train."""
    made = [bench.experiment_of(choice, bench.seeds[0], {}) for choice in bench.rows]
    rows = [one for one in made if one.network.weights.source == "none"]
    seen = [passes(one) for one in rows]
    ends = sorted({min(seen), max(seen)}) if seen else []
    return {"rows": len(rows), "of": len(made), "passes": [number(one, 0) for one in ends]}


def will_send(experiment: Experiment) -> int:
    """Bytes of tensors in all answers of a site, by what the settings let travel; without a codec."""
    parts = partition_of(experiment, build_on_meta(experiment.network, experiment.head_width or 2))
    return sum(parts.sizes[key][1] for step in Plan.of(experiment) for key in parts.sent(step.task))


def _speed_table(speed: Record) -> list[str]:
    """Real against synthetic input."""
    head = ["input", "images/s, median", "lowest", "highest"]
    rows = [
        [what, *(number(value, 1) for value in (median(speed[kind]), min(speed[kind]), max(speed[kind])))]
        for what, kind in (("real", "real"), ("synthetic", "synthetic"))
    ]
    words = (
        f"{speed['encoder']}, {speed['image_size']} px, batches of {speed['batch_size']}, {speed['precision']}, "
        f"{several(speed['images'], 'image')} of {speed['site']}{' (phantoms)' if speed['synthetic_site'] else ''} "
        f"a turn, {several(len(speed['real']), 'turn')}, on {speed['machine']['gpu'] or _NO_CARD}: real input reaches "
        f"{number(speed['ratio'], 2)} of synthetic input's speed."
    )
    return [words, "", *table(head, rows)]


def _card(speed: Record | None, benchmark: Benchmark) -> str:
    machines = [run["machine"] for seeds_ in benchmark.runs.values() for run in seeds_.values()]
    machines += [] if speed is None else [speed["machine"]]
    return listed(sorted({one["gpu"] or _NO_CARD for one in machines})) if machines else ""


def _figures(
    bench: BenchmarkPlan, benchmark: Benchmark, records: Records, folder: Path, found: Record | None
) -> dict[str, Sequence[str]]:
    """The paper's own table, and the rows that it has not; each under its words."""
    if bench.compares.pooled:
        told = published_oct()
        if not (folder / FIGURES).exists():
            return {f"Pooled test images, beside {told.paper}: not compared yet, see below.": []}
        results = read_oct_figures(folder)
        sets = listed(results.sets) if results.sets else "no set"
        share = oct_tables.majority_share(results)
        common = f" (the commonest class as the answer to all: {' to '.join(share)} % accuracy)" if share else ""
        words = f"Test images of {sets} pooled{common}, beside {told.paper}, Table 3:"
        return {words: oct_tables.method_table(results, helps(found, *_CLASSES))}
    paper = published()
    return {
        f"Macro AUC, beside {paper.paper}, Table 1, where a site holds the same public set; the commonest grade as the "
        "answer to every image has 0.5:": tables.paper_table(benchmark, records, "table1", found),
    }


def _cost_table(benchmark: Benchmark, records: Records) -> list[str]:
    """Passes, bytes and time of each row that has run."""
    columns = [
        Column("runs", OfRun("passes"), show=seeds),
        taken(records)[0],
        Column("images that training saw", OfRun("images_seen"), show=mean_count),
        Column("GB up", OfRun("bytes_up"), show=steady, places=2, scale=1e-9),
        Column("GB down", OfRun("bytes_down"), show=steady, places=2, scale=1e-9),
        Column("seconds", OfRun("seconds"), show=mean_count),
        Column("images/s, all of a run", _rate, show=steady, places=0),
    ]
    lines = [Line((benchmark.title(name),), name) for name in benchmark.runs]
    return render(records, ["row"], lines, columns)


def _rate(records: Records) -> Any:
    return OfRun("images_seen")(records) / OfRun("seconds")(records)


def _tests(
    bench: BenchmarkPlan,
    benchmark: Benchmark,
    found: Record | None,
    table_of: Callable[[Benchmark, Record, str], list[str]],
) -> dict[str, Sequence[str]]:
    """A table of tests for each figure that the part is tested by, where there are any."""
    if found is None or not found["comparisons"]:
        return {}
    keys = _CLASSES if bench.compares.pooled else _GRADES
    return {MEASURES[key].title: made for key in keys if (made := table_of(benchmark, found, key))}
