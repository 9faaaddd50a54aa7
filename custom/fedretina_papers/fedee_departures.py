"""Where a FedEE benchmark differs from the paper, as its page tells it."""

from __future__ import annotations

from fedretina_papers.fedee_results import FedeeResults
from fedretina_papers.markdown import listed


def departures(results: FedeeResults) -> list[str]:
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
