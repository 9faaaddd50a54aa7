"""Sentences of the page that are read off the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import yaml

from fedretina.benchmark.markdown import listed, several, signed, spread, table
from fedretina.benchmark.measures import MAIN
from fedretina.benchmark.published import AVERAGE, published
from fedretina.benchmark.stored import Benchmark, Record
from fedretina.report.numbers import NONE, count, number

OWN_CRITERIA = (
    "Sites grade by their own criteria, so their images are never pooled: a mean over sites is the plain mean of their "
    "figures."
)
_ALL_IMAGES = 1_000_000  # the plan's way to say: no limit


def warnings(benchmark: Benchmark, found: Record | None) -> list[str]:
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
    if found is None:
        lines.append("> **The comparisons are not computed yet**: there is no `statistics.json`.")
    elif {name: sorted(seeds) for name, seeds in benchmark.runs.items()} != found["runs"]:
        lines.append("> **The comparisons are older than the runs**: compute `statistics.json` again.")
    return [part for line in lines for part in (line, "")]


def what_was_run(
    benchmark: Benchmark, found: Record | None, settings: str = "", pooling: str = OWN_CRITERIA
) -> list[str]:
    """Sites, seeds, settings, machine and tuning.

    Args:
        benchmark: What was run.
        found: Its statistics, where they are computed.
        settings: The main settings in words; those of the runs by default.
        pooling: How figures of several sites come together.
    """
    sites = [_site_words(benchmark, site, found) for site in benchmark.sites if benchmark.some(site)]
    split = "a new split of the patients for each" if benchmark.resplit else "one split of the patients for all"
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
        f"- The round is chosen on validation, the test split is read once. {pooling}",
        "",
        *_planned(benchmark),
        *_tuning(benchmark),
    ]


def ranking_words(benchmark: Benchmark, names: list[str]) -> list[str]:
    """Who stands highest in macro AUC over the mean of the sites, and how that compares with the spread of seeds."""
    means = {name: benchmark.by_seed(name, MAIN) for name in names if benchmark.by_seed(name, MAIN)}
    if len(means) < 2:
        return []
    order = sorted(means, key=lambda name: fmean(means[name]), reverse=True)
    best, reference = order[0], benchmark.reference
    lines = [
        f"Highest mean of the sites: {benchmark.title(best)}, {number(fmean(means[best]), 3)}. The rows' means lie "
        f"between {number(fmean(means[order[-1]]), 3)} and {number(fmean(means[best]), 3)}; a row's own seeds lie up "
        f"to {number(max(max(values) - min(values) for values in means.values()), 3)} apart."
    ]
    if reference in means and best != reference:
        gap = fmean(means[reference]) - fmean(means[best])
        lines.append(
            f"{benchmark.title(reference)} stands at {number(fmean(means[reference]), 3)}, place "
            f"{order.index(reference) + 1} of {len(order)}, {signed(gap)} to the highest."
        )
    lines.append("Order alone proves nothing: see the comparisons below.")
    return [" ".join(lines), ""]


def step_table(benchmark: Benchmark) -> list[str]:
    """What each part of the method adds to macro AUC over the mean of the sites, here and in the paper."""
    second = published().tables["table2"]
    rows = []
    for step, (without, with_it) in second.steps.items():
        both = sorted(set(benchmark.runs.get(without, {})) & set(benchmark.runs.get(with_it, {})))
        gaps = []
        for seed in both:
            pairs = [
                (benchmark.figure(with_it, seed, site, MAIN), benchmark.figure(without, seed, site, MAIN))
                for site in benchmark.sites
            ]
            found = [more - less for more, less in pairs if more is not None and less is not None]
            gaps += [fmean(found)] if found else []
        ours, theirs = second.figure(with_it, AVERAGE), second.figure(without, AVERAGE)
        printed = NONE if ours is None or theirs is None else signed(ours - theirs, 4)
        told = f"{signed(fmean(gaps))} ({signed(min(gaps))} to {signed(max(gaps))})" if gaps else "not run"
        rows.append([step, told, printed])
    return table(["part", "adds here, over seeds", "adds in the paper"], rows)


def noise_words(benchmark: Benchmark) -> list[str]:
    """How far macro AUC falls from the mildest to the strongest noise."""
    falls = {}
    for name, seeds in benchmark.runs.items():
        found = [fall for run in seeds.values() if (fall := _fall(run)) is not None]
        if found:
            falls[name] = fmean(found)
    if not falls:
        return ["The noise study was not run.", ""]
    order = sorted(falls, key=lambda name: falls[name])
    told = f"Least is lost by {benchmark.title(order[0])} ({number(falls[order[0]], 3)})"
    if len(order) > 1:
        told += f", most by {benchmark.title(order[-1])} ({number(falls[order[-1]], 3)})"
    if benchmark.reference in falls:
        place = order.index(benchmark.reference) + 1
        told += (
            f"; {benchmark.title(benchmark.reference)} loses {number(falls[benchmark.reference], 3)}, place {place} of "
            f"{len(order)}"
        )
    few = benchmark.plan.get("noise_images")
    limit = f" Answered were at most {count(few)} test images a site." if few and few < _ALL_IMAGES else ""
    return [f"{told}. A row that is near chance without noise has little to lose.{limit}", ""]


def uncertainty_words(benchmark: Benchmark, found: Record) -> list[str]:
    """Medians of u and the error AUROC of the reference at each site."""
    rows = []
    there = found["uncertainty"].get(benchmark.reference, {})
    for site, one in ((site, there[site]) for site in benchmark.sites if site in there):
        rows.append(
            [
                site,
                number(one["median_right"]),
                number(one["median_wrong"]),
                spread(benchmark.by_seed(benchmark.reference, "error_auroc", site)),
                f"{count(sum(one['right']))} and {count(sum(one['wrong']))}",
            ]
        )
    head = ["site", "median u, right", "median u, wrong", "error AUROC", "right and wrong answers, all seeds"]
    return [
        *table(head, rows),
        "An error AUROC of 0.5 is chance: there u does not find the wrong answers. Single cases with their pictures "
        "are not shown, for images stay where they are.",
        "",
    ]


def _site_words(benchmark: Benchmark, site: str, found: Record | None) -> str:
    there = benchmark.some(site)
    images = "/".join(count(there["images"][split]) for split in ("train", "val", "test"))
    words = f"**{site}** ({there['grades']} grades; {images} images for training, validation and test"
    tested = None if found is None else found["tested"].get(site)
    if tested is not None:
        words += (
            f"; {several(tested['patients'], 'patient')} behind the tests, {several(tested['rarest_grade'], 'image')} "
            "of the rarest grade in the scarcest test set"
        )
    drawn = ", phantoms" if there.get("synthetic") else ""
    return f"{words}{drawn})"


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
    rows = [
        [
            benchmark.title(name),
            "; ".join(_plain(point) for point in one["grid"]),
            "; ".join(number(value, 3) for value in one["validation"]),
            _plain(one["chosen"]),
        ]
        for name, one in ((name, tuning[name]) for name in benchmark.plan["rows"] if name in tuning)
        if len(one["grid"]) > 1
    ]
    if not rows:
        return []
    return ["Tuned on validation, for one seed:", "", *table(["row", "tried", "validation AUC", "chosen"], rows)]


def _plain(point: Any, path: str = "") -> str:
    """Nested settings as "training.learning_rate 0.01"."""
    if isinstance(point, Mapping):
        return ", ".join(_plain(value, f"{path}.{key}" if path else str(key)) for key, value in point.items()) or "none"
    return f"{path} {point}".strip()


def _fall(run: Record) -> float | None:
    from fedretina.benchmark.figures import noise_curve

    curve = noise_curve(run)
    return curve[min(curve)] - curve[max(curve)] if len(curve) > 1 else None


def _unique(words: Any) -> list[str]:
    return list(dict.fromkeys(words))
