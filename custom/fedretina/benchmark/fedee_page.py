"""The page of a FedEE benchmark: the paper's tables and figures from our runs, from stored figures alone."""

from __future__ import annotations

from pathlib import Path

from fedretina.benchmark import fedee_charts as charts
from fedretina.benchmark import fedee_tables as ours
from fedretina.benchmark import tables
from fedretina.benchmark.fedee_cost_page import cost_lines
from fedretina.benchmark.fedee_estimator_tables import estimator_tables
from fedretina.benchmark.fedee_figures import store_fedee_figures
from fedretina.benchmark.fedee_names import TITLES, label, rates_words
from fedretina.benchmark.fedee_results import PLAIN, FedeeResults, fedee_results
from fedretina.benchmark.fedee_variant_tables import personal_table, tuning_tables
from fedretina.benchmark.markdown import listed, several
from fedretina.benchmark.oct_benchmark_page import course_words
from fedretina.benchmark.pictures import Pictures
from fedretina.benchmark.published_fedee import KEYS, published_fedee
from fedretina.benchmark.statistics import STATISTICS
from fedretina.benchmark.stored import Record
from fedretina.benchmark.stranger_table import stranger_table
from fedretina.benchmark.what_was_run import warnings, what_was_run
from fedretina.report.numbers import percent
from fedretina.report.page_file import write_page
from fedretina.storage import read_json

_BY_SIZE = (
    "Means over sites weigh a site by its test images unless they say otherwise, as the paper's do; sites keep their "
    "own models and are never pooled."
)
_COLUMNS = (
    "**Accuracy** is the share of right answers{balanced}. **Misdiagnosis detection** is the AUROC with which u finds "
    "the wrong answers: 0.5 is chance. **Selective prediction** is the accuracy of what is left when the 40 % least "
    "sure cases go to a doctor. More is better for all three. Each is a mean over seeds, ± the population standard "
    "deviation over them, as in the paper."
)


def write_fedee_page(out: Path, page: Path, pictures: Path) -> None:
    """Render the page and its pictures; the same bytes for the same records.

    Args:
        out: The benchmark's folder: plan, results, and answers or the figures that were worked out from them.
        page: Markdown file to write.
        pictures: Folder of the pictures.

    Raises:
        StateError: There is no plan, or a record or the answers of a run are missing or damaged.
    """
    if (out / "answers").exists():
        store_fedee_figures(out)
    results = fedee_results(out)
    found = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    shown = Pictures(page, pictures, f"benchmark_{results.benchmark.plan['name']}")
    lines = [*_head(results, found), *_answers(results), *_referral(results, shown), *_beyond(results, shown)]
    lines += [*cost_lines(results, out, shown), *tuning_tables(results), *personal_table(results)]
    lines += [*_sites(results, shown), *_differences(results, found)]
    write_page(page, "\n".join(lines).rstrip() + "\n")


def _head(results: FedeeResults, found: Record | None) -> list[str]:
    benchmark, paper = results.benchmark, published_fedee()
    if results.printed is None:
        beside = "it has no set like ours, so that nothing of it stands beside our figures."
    else:
        beside = (
            f"its figures on {paper.titles[results.printed]} stand beside ours, but with another split, size and "
            "number of rounds: they are for orientation, not a target."
        )
    return [
        f"# Benchmark: {benchmark.plan['name']}",
        "",
        "Research software, not a medical device. Written from the stored runs; do not edit. The paper is "
        f"{paper.paper}; {beside}",
        "",
        *warnings(benchmark, found),
        *what_was_run(benchmark, found, course_words(benchmark, benchmark.reference), _BY_SIZE),
        *_departures(results),
    ]


def _departures(results: FedeeResults) -> list[str]:
    """What differs from the paper, whatever the plan."""
    told = [
        "The round is chosen on validation images, and the test images are read once; in the authors' code the two are "
        "the same images and the last round counts.",
        "Where misdiagnosis detection is undefined, at a site without an error or without a right answer, the site "
        "is left out and counted; the authors count 1.0.",
        "u is the entropy of the mean softmax over log K. In the authors' code heart sounds have -p log p of one "
        "sigmoid output instead, which is largest at p = 1/e and takes unsure answers above it for surer than they "
        "are.",
        *_ensembles(results),
    ]
    return ["Where we differ from the paper:", "", *(f"- {one}" for one in told), ""]


def _ensembles(results: FedeeResults) -> list[str]:
    made = {
        len(run["reading"]["runs"])
        for seeds in results.benchmark.runs.values()
        for run in seeds.values()
        if run.get("reading", {}).get("reading") == "deep_ensemble"
    }
    if not made:
        return []
    trials = max(
        len(seeds)
        for seeds in results.benchmark.runs.values()
        if next(iter(seeds.values())).get("reading", {}).get("reading") == "deep_ensemble"
    )
    shared = (
        "Their trials share runs, so that their spread is less than that of ensembles that share none"
        if trials > 1
        else "There is one trial of all runs, so that nothing is known of their spread"
    )
    return [
        f"Deep ensembles join {listed([str(one) for one in sorted(made)])} runs of other seeds, the paper's 5 (4 on "
        f"ISIC-2019). {shared}. Seconds and bytes are the sums of their members'; nothing was trained for them."
    ]


def _answers(results: FedeeResults) -> list[str]:
    errors = published_fedee().errors
    metric = str(results.benchmark.plan.get("metric") or "accuracy")
    balanced = ", here balanced: the mean recall of the classes" if metric == "balanced_accuracy" else ""
    others = ours.other_table(results)
    lines = [
        "## Table 3: the methods under FedAvg",
        "",
        *ours.main_table(results),
        _COLUMNS.format(balanced=balanced),
        "",
        *(_known(errors["table3"]) if results.printed else []),
        "## Tables 5 and 10: under every strategy",
        "",
        *ours.strategy_table(results),
        "The paper's FedBN(+FT) and FedAP(+FT) stand beside our rows with fine-tuning.",
        "",
        *ours.win_words(results),
        *(_known(errors["table10"]) if results.printed else []),
        "## Table 13: plain mean of the sites",
        "",
        *ours.strategy_table(results, eta=PLAIN),
        *ours.win_words(results, PLAIN),
        *estimator_tables(results),
    ]
    return [*lines, "## Rows that the paper has not", "", *others] if others else lines


def _referral(results: FedeeResults, shown: Pictures) -> list[str]:
    return [
        "## Figure 4: accuracy as cases are referred",
        "",
        *shown.show("selective", charts.selective_chart(results)),
        f"Referred are {rates_words()}. A line a method, the mean over seeds; the band reaches from the lowest "
        "seed to the highest. A site counts by all of its test images, referred or not.",
        "",
        "## Figure 5: cases to refer for a target",
        "",
        *shown.show("refer", charts.refer_chart(results)),
        *ours.refer_table(results),
        "The first share is the paper's: cases of all sites together, those referred counted as right. The interval "
        "draws patients anew and takes the models as they are; its ends are means over seeds. The next share asks the "
        "accuracy of the kept cases alone, which is what patients live with whom no doctor sees. Both find the "
        "threshold on the cases that they are judged on, as the paper does, and are a little too good. The last two "
        "columns take each site's threshold from its validation images for the kept cases' accuracy, and are what a "
        "site could do; they weigh sites by size.",
        "",
        "## Misdiagnosis detection where it is undefined",
        "",
        *ours.undefined_table(results),
    ]


def _beyond(results: FedeeResults, shown: Pictures) -> list[str]:
    alpha = float(results.figures["asked"]["alpha"])
    return [
        "## Figure 6: images from elsewhere",
        "",
        *shown.show("strangers", charts.strangers_chart(results)),
        *ours.others_table(results),
        "The chance that an image of another site is less certain than an own one, the plain mean over pairs of sites. "
        "Another site's images may be like one's own: then 0.5 is right.",
        "",
        *stranger_table(results.benchmark, lambda name: label(results, name)),
        "## Sets of grades",
        "",
        *ours.sets_table(results),
        f"Split-conformal sets, made to hold the true grade in {percent(1 - alpha)} of the images, calibrated on each "
        "site's validation images: share that does, and grades in a set, the mean over seeds. Few calibration images "
        "leave the coverage to chance: it is promised on average over them. A cell is clearly below where the whole "
        "95 % interval of its coverage is.",
        "",
        "## Calibration",
        "",
        *ours.calibration_table(results),
        "AURC: error rate while the surest answers are kept. ECE: gap between claimed and true share of right answers. "
        "Brier score: squared error of the probabilities, 0 to 2. NLL in nats. Less is better for all.",
        "",
    ]


def _sites(results: FedeeResults, shown: Pictures) -> list[str]:
    lines = ["## Figure 11: from the plain mean to the mean by size", ""]
    for key in KEYS:
        lines += shown.show(f"eta_{key}", charts.eta_chart(results, key))
    lines += [*ours.eta_table(results), "A site weighs η^ln(n) = n^ln(η), n its test images (Equation 12).", ""]
    lines += ["## Each site", ""]
    for key in KEYS:
        lines += [f"**{TITLES[key].capitalize()}**", "", *ours.site_table(results, key)]
    return lines


def _differences(results: FedeeResults, found: Record | None) -> list[str]:
    benchmark = results.benchmark
    if found is None or not found["comparisons"]:
        return []
    title = benchmark.title(benchmark.reference)
    lines = [f"## What may be claimed: {title} less each row", ""]
    for key, name in (("accuracy", "Accuracy"), ("error_auroc", "Misdiagnosis detection"), ("aurc", "AURC")):
        lines += [f"**{name}**, plain mean of the sites:", "", *tables.mean_tests(benchmark, found, key)]
    seeds = several(len(benchmark.plan["seeds"]), "seed")
    return [*lines, f"Holm's p below 0.05 carries a claim; {seeds} show large differences only.", ""]


def _known(errors: tuple[str, ...]) -> list[str]:
    return ["Known of the printed figures:", "", *(f"- {sentence}" for sentence in errors), ""]
