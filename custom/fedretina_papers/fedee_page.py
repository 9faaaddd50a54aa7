"""The page of a FedEE benchmark: the paper's tables and figures from our runs, from stored figures alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fedretina.report.render import write_page
from fedretina.report.text import percent
from fedretina.storage import read_json
from fedretina_papers import fedee_charts as charts
from fedretina_papers import fedee_tables as ours
from fedretina_papers import fedee_trust_tables as trust
from fedretina_papers.compared import STATISTICS
from fedretina_papers.engine.tested import mean_tests
from fedretina_papers.fedee_baseline_tables import constant_table, member_table
from fedretina_papers.fedee_cost_page import cost_lines
from fedretina_papers.fedee_departures import departures
from fedretina_papers.fedee_estimator_tables import estimator_tables
from fedretina_papers.fedee_figures import store_fedee_figures
from fedretina_papers.fedee_names import LESS_IS_BETTER, label, rates_words, titles
from fedretina_papers.fedee_results import FedeeResults, fedee_results
from fedretina_papers.fedee_variant_tables import personal_table, tuning_tables
from fedretina_papers.markdown import sentence_case, several
from fedretina_papers.oct_benchmark_page import course_words
from fedretina_papers.out_of_distribution_table import out_of_distribution_table
from fedretina_papers.pictures import Pictures
from fedretina_papers.published_fedee import KEYS, published_fedee
from fedretina_papers.statistics.site_mean import PLAIN
from fedretina_papers.stored import Record
from fedretina_papers.what_was_run import warnings, what_was_run

_BY_SIZE = (
    "Means over sites weigh a site by its test images unless they say otherwise, as the paper's do. Sites keep their "
    "own models; only Figure 5 ranks the cases of all of them together, as the paper's does."
)
_BALANCED = "**Balanced accuracy** is the mean recall of the classes, the paper's figure for skin images."
_ALONE = (
    "Members from the input on, the final head last; passes of dropout and runs of an ensemble in their order. Means "
    "by size, over seeds. AUROC above 0.5: out-of-distribution images are less certain than own ones."
)
_RISES = ", which may rise where a whole class is referred"
_COLUMNS = (
    "{accuracy} **Misdiagnosis detection** is the AUROC with which u finds "
    "the wrong answers: 0.5 is chance. **Selective prediction** is the {metric} of what is left when the 40 % least "
    "sure cases go to a doctor{rises}. More is better for all three. Each is a mean over seeds, ± the population "
    "standard deviation over them, as in the paper."
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
    statistics = read_json(out / STATISTICS) if (out / STATISTICS).exists() else None
    shown = Pictures(page, pictures, f"benchmark_{results.benchmark.plan['name']}")
    lines = [*_head(results, statistics), *_answers(results), *_referral(results, shown), *_beyond(results, shown)]
    lines += [*cost_lines(results, out, shown), *tuning_tables(results), *personal_table(results)]
    lines += [*_sites(results, shown), *_differences(results, statistics)]
    write_page(page, "\n".join(lines).rstrip() + "\n")


def _head(results: FedeeResults, statistics: Record | None) -> list[str]:
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
        *warnings(benchmark, statistics),
        *what_was_run(benchmark, statistics, course_words(benchmark, benchmark.reference), _BY_SIZE),
        *departures(results),
    ]


def _answers(results: FedeeResults) -> list[str]:
    errors = published_fedee().errors
    metric = str(results.benchmark.plan.get("metric") or "accuracy")
    balanced = metric == "balanced_accuracy"
    others = ours.other_table(results)
    lines = [
        "## Table 3: the methods under FedAvg",
        "",
        *ours.main_table(results),
        _COLUMNS.format(
            metric=metric.replace("_", " "),
            accuracy=_BALANCED if balanced else "**Accuracy** is the share of right answers.",
            rises=_RISES if balanced else "",
        ),
        "",
        *(_known(errors["table3"]) if results.printed else []),
        "## Beside an answer without looking",
        "",
        *constant_table(results),
        "The same answer to all is each site's most frequent grade among its validation images, with their frequencies "
        "as its probabilities. A row that stands no higher has learnt how common the grades are, whatever its "
        "accuracy; balanced accuracy, the mean recall of the grades, is 1 over their number then.",
        "",
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
    lines += ["## Rows that the paper has not", "", *others] if others else []
    alone = member_table(results)
    return [*lines, "## Each exit alone", "", *alone, _ALONE, ""] if alone else lines


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
        *trust.refer_table(results),
        "The first share is the paper's: cases of all sites together, those referred counted as right. The interval "
        f"draws {results.unit}s anew and takes the models as they are; its ends are means over seeds. The next share "
        "asks the accuracy of the kept cases alone, which is what patients live with whom no doctor sees. Both find "
        "the threshold on the cases that they are judged on, as the paper does, and are a little too good. The two "
        "columns before the last take each site's threshold from its validation images for the kept cases' accuracy, "
        "as a site could: a share of all images, and the accuracy of all that are kept. A site may find that no "
        "threshold keeps the target and refer every case; the last column counts these.",
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
        *shown.show("strangers", charts.out_of_distribution_chart(results)),
        *trust.others_table(results),
        "The chance that an image of another site is less certain than an own one, the plain mean over pairs of sites. "
        "Another site's images may be like one's own: then 0.5 is right.",
        "",
        *out_of_distribution_table(results.benchmark, partial(label, results)),
        "## Sets of grades",
        "",
        *trust.sets_table(results),
        f"Split-conformal sets, made to hold the true grade in {percent(1 - alpha)} of the images, calibrated on each "
        "site's validation images: share that does, and grades in a set, the mean over seeds. Few calibration images "
        "leave the coverage to chance: it is promised on average over them. A cell is clearly below where the whole "
        "95 % interval of its coverage is, with as many independent images as there are "
        f"{results.unit}s; seeds share the images, so that cells of one site go together.",
        "",
        "## Calibration",
        "",
        *trust.calibration_table(results),
        "AURC: error rate while the surest answers are kept. ECE: gap between claimed and true share of right answers. "
        "Brier score: squared error of the probabilities, 0 to 2. NLL in nats. Less is better for all.",
        "",
    ]


def _sites(results: FedeeResults, shown: Pictures) -> list[str]:
    named = titles(results)
    lines = ["## Figure 11: from the plain mean to the mean by size", ""]
    for key in KEYS:
        lines += shown.show(f"eta_{key}", charts.eta_chart(results, key))
    lines += [*ours.eta_table(results), "A site weighs η^ln(n) = n^ln(η), n its test images (Equation 12).", ""]
    lines += ["## Each site", ""]
    for key, title in {**named, **LESS_IS_BETTER}.items():
        summary = f"<details><summary>{sentence_case(title)}</summary>"
        lines += [summary, "", *ours.site_table(results, key), "</details>", ""]
    return lines


def _differences(results: FedeeResults, statistics: Record | None) -> list[str]:
    benchmark = results.benchmark
    if statistics is None or not statistics["comparisons"]:
        return []
    named = partial(label, results)
    lines = [f"## What may be claimed: {named(benchmark.reference)} less each row", ""]
    tested = {"accuracy": "Share of right answers", "error_auroc": "Misdiagnosis detection", "aurc": "AURC"}
    for key, name in tested.items():
        lines += [f"**{name}**, plain mean of the sites:", "", *mean_tests(benchmark, statistics, key, named)]
    seeds = several(len(benchmark.plan["seeds"]), "seed")
    return [*lines, f"Holm's p below 0.05 carries a claim; {seeds} show large differences only.", ""]


def _known(errors: tuple[str, ...]) -> list[str]:
    return ["Known of the printed figures:", "", *(f"- {sentence}" for sentence in errors), ""]
