"""What may leave a site about its single answers: counts in bins that no small group of patients fills.

A count of one is a person. So answers are counted over fixed fine edges, by confidence and by uncertainty, and
adjacent bins are merged so that each holds answers of nobody or of at least `min_count` patients; the confusion matrix
keeps its large cells only. From these counts the server computes calibration and error detection over all sites
exactly, on the edges that all sites share (`fedretina.evaluation.pooled`), and never sees an answer.

What this guards and what not. A cell of fewer than 5 is a common bound below which health statistics are not
published; patients are counted, since five images may be two people. Withheld cells must not follow from what is
sent besides: the server knows the number of images and the accuracy, and with them the totals of the cells on the
diagonal and of those beside it. So in each of the two groups the missing cells are at least two and hold `min_count`
images together, or none at all; further cells are withheld until that is so, the smallest first (complementary
suppression). A merged bin may hold few wrong answers: that says how often the model erred, not on whom.

It is no differential privacy. Two runs that differ by one patient can be subtracted from each other, and figures sent
at full precision, such as kappa, narrow down what the withheld cells can be. A site that fears this sets `min_count`
above its number of patients, and no counts leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError
from fedretina.metric_inputs import checked_errors, checked_scores
from fedretina.settings.scalars import (
    CONFIDENCE_BINS,
    MIN_COUNT,
    MOST_GRADES,
    UNCERTAINTY_BINS,
    confusion_name,
)


def encode(
    probabilities: ArrayLike,
    labels: ArrayLike,
    uncertainty: ArrayLike,
    patients: Sequence[str],
    min_count: int = MIN_COUNT,
) -> dict[str, float]:
    """Count a split's answers into the scalars that may leave the site.

    A merged bin stands under the name of its last fine bin and the others are absent, so the names alone tell the
    edges. A site with fewer than `min_count` patients sends nothing.

    Args:
        probabilities: [N, K]; with K above 20 the confusion matrix stays, and the bins alone leave.
        labels: [N], 0 to K - 1.
        uncertainty: [N], in [0, 1].
        patients: Patient of each image [N].
        min_count: Smallest number of patients behind any count of images, 1 or more.

    Returns:
        Scalars by name, all in `settings.scalars.COUNTS`.

    Raises:
        SettingsError: min_count is below 1.
        TrainingError: Shapes or values are unfit.
    """
    matrix, classes = checked_scores(probabilities, labels)
    answer = matrix.argmax(1)
    wrong = answer != classes
    scores, _ = checked_errors(uncertainty, wrong)
    grades = matrix.shape[1]
    if min_count < 1:
        raise SettingsError(f"min_count is {min_count}: counts that leave a site need one of 1 or more.")
    who = np.unique(np.asarray(patients), return_inverse=True)[1]
    if int(np.max(who)) + 1 < min_count:
        return {}
    confidence = matrix.max(1)
    scalars: dict[str, float] = {}
    at = place(confidence, CONFIDENCE_BINS)
    for end, inside in merged(at, who, CONFIDENCE_BINS, min_count):
        name = f"bin_confidence_{end:02}"
        scalars[f"{name}_images"] = float(np.sum(inside))
        scalars[f"{name}_right"] = float(np.sum(inside & ~wrong))
        scalars[f"{name}_confidence_sum"] = float(np.sum(confidence[inside]))
    at = place(scores, UNCERTAINTY_BINS)
    for end, inside in merged(at, who, UNCERTAINTY_BINS, min_count):
        name = f"bin_uncertainty_{end:02}"
        scalars[f"{name}_images"] = float(np.sum(inside))
        scalars[f"{name}_wrong"] = float(np.sum(inside & wrong))
    if grades > MOST_GRADES:
        return scalars
    cells = np.bincount(classes * grades + answer, minlength=grades**2).reshape(grades, grades)
    pairs = np.unique(np.stack([classes * grades + answer, who]), axis=1)[0]
    people = np.bincount(pairs, minlength=grades**2).reshape(grades, grades)
    for true, answered in np.argwhere(_sent(cells, people, min_count)).tolist():
        scalars[confusion_name(true, answered)] = float(cells[true, answered])
    return scalars


def merged(
    at: NDArray[np.intp], who: NDArray[np.intp], bins: int, min_count: int
) -> list[tuple[int, NDArray[np.bool_]]]:
    """Runs of fine bins that hold nobody or enough patients: the last fine bin of each, and its members [N].

    Of all such runs those are taken whose edges weigh most, an edge after every fourth bin 16, after every second 4,
    any other 1: sites pool on the edges that all of them have, so few sites must not lose them to chance.
    """
    seen = np.zeros((int(np.max(who)) + 1, bins + 1), dtype=np.int64)  # images of each patient up to each edge
    np.add.at(seen, (who, at + 1), 1)
    seen = np.cumsum(seen, axis=1)
    best: list[tuple[int, list[int]] | None] = [(0, []), *[None] * bins]  # by end: weight, and where runs start
    for end in range(1, bins + 1):
        weight = 16 if end % 4 == 0 else 4 if end % 2 == 0 else 1
        people = np.sum(seen[:, end, None] > seen[:, :end], axis=0)
        for start in range(end):
            before = best[start]
            if before is None or 0 < people[start] < min_count:
                continue
            found = best[end]
            if found is None or before[0] + weight > found[0]:
                best[end] = (before[0] + weight, [*before[1], start])
    whole = best[bins]
    starts = [0] if whole is None else whole[1]
    ends = [*starts[1:], bins]
    return [(end - 1, (at >= start) & (at < end)) for start, end in zip(starts, ends, strict=True)]


def _sent(cells: NDArray[np.int64], people: NDArray[np.int64], min_count: int) -> NDArray[np.bool_]:
    """Which cells of the confusion matrix may leave; the diagonal and the rest have totals of their own."""
    sent = people >= min_count
    diagonal = np.eye(len(cells), dtype=np.bool_)
    for group in (diagonal, ~diagonal):
        while np.any(sent & group) and follows(cells[group & ~sent], min_count):
            least = np.where(sent & group, cells, np.iinfo(np.int64).max)
            sent.flat[int(np.argmin(least))] = False
    return sent


def follows(withheld: ArrayLike, min_count: int) -> bool:
    """Whether withheld counts could be told from their total, where that is known: one alone, or few together.

    Args:
        withheld: The counts that are not sent.
        min_count: Fewest that may be told.
    """
    counts = np.asarray(withheld, dtype=np.int64)
    total = int(np.sum(counts))
    return total > 0 and (counts.size == 1 or total < min_count)


OUTCOMES: Mapping[float, str] = MappingProxyType({1.0: "gained", -1.0: "lost", 0.0: "untold"})
"""What the scalar `verdict` means; anything between is rounded to the nearest."""


def count_outcomes(
    scalars: Mapping[str, Mapping[str, float]], before: Mapping[str, int]
) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Take `verdict` out of what sites sent and count it, so that no site's own is stored or shown.

    Args:
        scalars: By site.
        before: Counts of sites that answered this step before.

    Returns:
        The scalars without it, and how many sites have each outcome, those of no site left out.
    """
    found = Counter(OUTCOMES[float(round(figures["verdict"]))] for figures in scalars.values() if "verdict" in figures)
    found.update(before)
    rest = {
        site: {name: value for name, value in figures.items() if name != "verdict"} for site, figures in scalars.items()
    }
    return rest, {name: found[name] for name in OUTCOMES.values() if found[name]}


def told_outcomes(counts: Mapping[str, int]) -> dict[str, Any]:
    """What of these counts may be shown: never so much that a site's own outcome follows from them.

    Below `MIN_COUNT` sites nothing is. Where all of them, or all but one, have one outcome, it is only told that at
    least all but one have it: "all of 5 lost" would say it of each, and "4 of 5" must not be told from it.

    Args:
        counts: As `count_outcomes` gives them.

    Returns:
        Empty where no site sent any; else "sites", how many did, with "least" where they are too few, "most" where one
        outcome has nearly all, or "gained", "lost" and "untold".
    """
    sites = sum(counts.values())
    if not sites:
        return {}
    if sites < MIN_COUNT:
        return {"sites": sites, "least": MIN_COUNT}
    most = max(OUTCOMES.values(), key=lambda name: counts.get(name, 0))
    if counts[most] >= sites - 1:
        return {"sites": sites, "most": most}
    return {"sites": sites, **{name: counts.get(name, 0) for name in OUTCOMES.values()}}


def place(values: ArrayLike, bins: int) -> NDArray[np.intp]:
    """Bin of each value in [0, 1], as `ece` counts: (lo, hi], a value on an edge stands below it, 0 in the first.

    Args:
        values: [N].
        bins: Number of bins of equal width.

    Returns:
        Whole numbers [N], 0 to bins - 1.

    Raises:
        SettingsError: bins is below 1.
    """
    if bins < 1:
        raise SettingsError(f"bins is {bins}; answers are counted in 1 bin or more.")
    return np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], np.asarray(values, dtype=np.float64), side="left")
