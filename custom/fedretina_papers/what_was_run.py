"""What a benchmark ran, as its page tells it: sites, seeds, settings, machine, tuning, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from fedretina.report.text import count
from fedretina_papers.engine.table import listing
from fedretina_papers.markdown import listed, several
from fedretina_papers.stored import Benchmark, Record
from fedretina_papers.tuning import tuned_words

OWN_CRITERIA = (
    "Sites grade by their own criteria, so their images are never pooled: a mean over sites is the plain mean of their "
    "figures."
)


STARTS = {"none": "from scratch", "package": "from ImageNet", "file": "from a file of weights"}
"""Where an encoder starts, in words, by the source of its weights."""


def warnings(benchmark: Benchmark, statistics: Record | None) -> list[str]:
    """What a reader must know before any figure."""
    lines = []
    drawn = benchmark.synthetic
    if drawn:
        which = "All sites hold" if len(drawn) == len(benchmark.sites) else f"{listed(drawn)} hold"
        lines.append(
            f"> **{which} phantoms: drawn pictures, no photographs.** Nothing here tells how well anything grades eyes."
        )
    missing = [name for name in benchmark.plan["rows"] if name not in benchmark.runs]
    own: Mapping[str, Any] = benchmark.plan.get("seeds_of") or {}
    asked = {name: len(own[name] if name in own else benchmark.plan["seeds"]) for name in benchmark.runs}
    short = {
        benchmark.title(name): asked[name] - len(seeds)
        for name, seeds in benchmark.runs.items()
        if len(seeds) < asked[name]
    }
    if missing or short:
        told = [f"{name} not at all" for name in missing] + [
            f"{row} lacks {several(n, 'seed')}" for row, n in short.items()
        ]
        lines.append(f"> **Not all that was planned has run**: {'; '.join(told)}.")
    if statistics is None:
        lines.append("> **The comparisons are not computed yet**: there is no `statistics.json`.")
    elif {name: sorted(seeds) for name, seeds in benchmark.runs.items()} != statistics["runs"]:
        lines.append("> **The comparisons are older than the runs**: compute `statistics.json` again.")
    return [part for line in lines for part in (line, "")]


def what_was_run(
    benchmark: Benchmark, statistics: Record | None, settings: str = "", pooling: str = OWN_CRITERIA
) -> list[str]:
    """Sites, seeds, settings, machine and tuning.

    Args:
        benchmark: What was run.
        statistics: Its statistics, where they are computed.
        settings: The main settings in words; those of the runs by default.
        pooling: How figures of several sites come together.
    """
    sites = [_site_words(benchmark, site, statistics) for site in benchmark.sites if benchmark.some(site)]
    unit = str(benchmark.plan.get("unit") or "patient")
    split = f"a new split of the {unit}s for each" if benchmark.resplit else f"one split of the {unit}s for all"
    seeds = ", ".join(str(seed) for seed in benchmark.plan["seeds"])
    runs = [run for seeds_of in benchmark.runs.values() for run in seeds_of.values()]
    return [
        "## What was run",
        "",
        *(f"- {site}" for site in sites),
        f"- **Seeds** {seeds}: {split}; the same splits and starts for every row, so that differences are paired.",
        f"- **Settings** {settings or _setting_words(runs)}.",
        f"- **Machine** {'; '.join(_unique(_machine_words(run) for run in runs))}.",
        *_loop_only(benchmark),
        f"- {_choice_words(benchmark)}, the test split is read once. {pooling}",
        "",
        *_planned(benchmark),
        *_tuning(benchmark),
    ]


def course_words(benchmark: Benchmark, name: str) -> str:
    """Encoder, size of images, and how each phase of a row trains; empty without a run of it."""
    run = next(iter(benchmark.runs.get(name, {}).values()), None)
    if run is None:
        return ""
    settings, network = run["settings"], run["settings"]["network"]
    starts = STARTS[network["weights"]["source"]]
    images = settings["images"]  # signals have a length instead of a side
    size = f"{images['image_size']} px" if "image_size" in images else f"{images['length']} values a channel"
    said = [f"of {benchmark.title(name)}: {network['encoder']} {starts}, {size}"]
    for phase in settings["phases"]:
        training = phase["training"] or settings["training"]
        said.append(
            f"{phase['name']} {several(phase['rounds'], 'round')} of {several(training['epochs'], 'epoch')}, "
            f"{training['optimizer']} at {training['learning_rate']}, batches of {training['batch_size']}"
            + (f", {100 * phase['label_share']:g} % of the labels" if phase["label_share"] < 1 else "")
        )
    return "; ".join(said)


def _site_words(benchmark: Benchmark, site: str, statistics: Record | None) -> str:
    there = benchmark.some(site)
    images = "/".join(count(there["images"][split]) for split in ("train", "val", "test"))
    words = f"**{site}** ({there['grades']} grades; {images} images for training, validation and test"
    tested = None if statistics is None else statistics["tested"].get(site)
    if tested is not None:
        unit = str(benchmark.plan.get("unit") or "patient")
        words += (
            f"; {several(tested['patients'], unit)} behind the tests, {several(tested['rarest_grade'], 'image')} "
            "of the rarest grade in the scarcest test set"
        )
    drawn = ", phantoms" if there.get("synthetic") else ""
    return f"{words}{drawn})"


def last_round(benchmark: Benchmark) -> bool:
    """Whether the plan takes the last round, and not the one that is best on validation."""
    chosen = (benchmark.plan.get("settings") or {}).get("choice") or {}
    return bool(chosen.get("model") == "last")


def _choice_words(benchmark: Benchmark) -> str:
    return "Figures are of the last round" if last_round(benchmark) else "The round is chosen on validation"


def _setting_words(runs: Sequence[Record]) -> str:
    """The main settings, each value once: rows tuned apart differ in some."""
    forms: tuple[tuple[str, Callable[[Record], Any]], ...] = (
        ("{}", lambda run: run["settings"].get("network", {}).get("encoder")),
        ("{} px", lambda run: run["settings"].get("images", {}).get("image_size")),
        ("{} rounds", lambda run: run.get("rounds")),
        ("{}", lambda run: run["settings"].get("training", {}).get("optimizer")),
        ("batches of {}", lambda run: run["settings"].get("training", {}).get("batch_size")),
        ("learning rate {}", lambda run: run["settings"].get("training", {}).get("learning_rate")),
        ("momentum {}", lambda run: run["settings"].get("training", {}).get("momentum")),
    )
    words = []
    for form, value in forms:
        found = sorted({one for one in map(value, runs) if one is not None})
        words += [form.format(" or ".join(str(one) for one in found))] if found else []
    return ", ".join(words)


def _machine_words(run: Record) -> str:
    machine, versions = run["machine"], run["versions"]
    gpu = machine.get("gpu") or "no GPU"
    software = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {gpu}; {software}"


def _loop_only(benchmark: Benchmark) -> list[str]:
    names = [
        benchmark.title(name)
        for name, seeds in benchmark.runs.items()
        if any(run["loop_only"] for run in seeds.values())
    ]
    return [f"- **In one process only**, not as a federation: {listed(names)}."] if names else []


def _planned(benchmark: Benchmark) -> list[str]:
    settings = benchmark.plan.get("settings")
    if not settings:
        return []
    words = yaml.safe_dump(settings, sort_keys=True, allow_unicode=True).rstrip()
    return ["<details><summary>The plan's settings</summary>", "", "```yaml", words, "```", "", "</details>", ""]


def _tuning(benchmark: Benchmark) -> list[str]:
    tuning: dict[str, Any] = benchmark.plan.get("tuning") or {}
    tuned = {
        benchmark.title(name): tuning[name]["tried"]
        for name in benchmark.plan["rows"]
        if "tried" in tuning.get(name, {})
    }
    if not tuned:
        return []
    columns: dict[str, Callable[[tuple[str, Any]], str]] = {
        "row": lambda one: one[0],
        "chosen, and what was tried": lambda one: "; ".join(map(tuned_words, one[1])),
    }
    at_end = [f"{row} (`{one['setting']}`)" for row, tried in tuned.items() for one in tried if one["edge"]]
    return [
        "Tuned on validation (macro AUC), for one seed, one number after the other; a grid whose best value stood at "
        "its end grew:",
        "",
        *listing(tuned.items(), columns),
        *([f"> **The best is still the end of what was tried**: {listed(at_end)}.", ""] if at_end else []),
    ]


def _unique(values: Any) -> list[str]:
    return list(dict.fromkeys(values))
