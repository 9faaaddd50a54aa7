"""Sets of grades that hold the true one for most patients: "mild to moderate" where one grade would say too much.

Split conformal prediction over patients. A set grows from the most likely grade; where grades have an order it takes
the likelier neighbour next, so that it has no gap (ordinal prediction sets, Lu et al., MICCAI 2022), where they have
none the likeliest of the rest. Each grade's cost is the probability that was in the set before it. A patient costs what
the dearest of the images' true grades cost, and the limit is the order statistic of the validation patients' costs that
a new patient exceeds with a chance of `wrong` at most. That holds whatever the model is worth: a bad one's sets grow.
It holds on average over draws of validation patients, not at each site: with 30 of them four sites in ten lie below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import TrainingError
from fedretina.settings.scheme import GradingScheme, in_words

WRONG = 0.1
"""Share of patients one of whose true grades may lie outside its set."""
_ROUNDING = 1e-5
"""What is this little beyond the limit is in the set: the limit is an image's own cost, and another program that
computes the same, such as an exported one, must not leave it out. It makes no set smaller."""


class GradeSets(NamedTuple):
    """A rule that makes sets.

    Attributes:
        limit: A grade whose cost is at most this, but for rounding, is in the set; None where every grade is, for want
            of patients.
        wrong: See `WRONG`.
        patients: Validation patients behind it.
        ordered: Whether the grades have an order, so that sets have no gaps.
    """

    limit: float | None
    wrong: float
    patients: int
    ordered: bool


def grade_costs(probabilities: ArrayLike, scheme: GradingScheme, ordered: bool) -> NDArray[np.float64]:
    """What each grade costs of each image, float64 [N, K] in [0, 1]; infinite for the ungradable class.

    The chances are those among the gradable classes. Of equal neighbours the worse grade comes first.

    Args:
        probabilities: [N, K].
        scheme: The site's grades.
        ordered: See `GradeSets.ordered`.
    """
    matrix = np.array(probabilities, dtype=np.float64)
    places = [at for at in range(matrix.shape[1]) if at != scheme.ungradable_class]
    costs = np.full(matrix.shape, math.inf)
    inner = matrix[:, places]
    total = inner.sum(axis=1, keepdims=True)
    inner = np.divide(inner, total, out=np.full_like(inner, 1 / len(places)), where=total > 0)
    for row, chances in enumerate(inner):
        held = 0.0
        for at in _grown(chances, ordered):
            costs[row, places[at]] = min(held, 1.0)
            held += float(chances[at])
    return costs


def _grown(chances: NDArray[np.float64], ordered: bool) -> list[int]:
    """Classes in the order in which a set takes them."""
    if not ordered:
        return [int(at) for at in np.argsort(-chances, kind="stable")]
    low = high = int(np.argmax(chances))
    taken = [low]
    while len(taken) < len(chances):
        above = chances[high + 1] if high + 1 < len(chances) else -1.0
        below = chances[low - 1] if low else -1.0
        if above >= below:
            high += 1
            taken.append(high)
        else:
            low -= 1
            taken.append(low)
    return taken


def grade_sets(
    probabilities: ArrayLike,
    labels: ArrayLike,
    patients: Sequence[str],
    scheme: GradingScheme,
    ordered: bool,
) -> GradeSets:
    """The rule of a site, from its validation split; images whose true class is ungradable have no part.

    Args:
        probabilities: [N, K].
        labels: True classes [N].
        patients: Patient of each image.
        scheme: The site's grades.
        ordered: See `GradeSets.ordered`.

    Raises:
        TrainingError: The arrays differ in length.
    """
    dearest = _dearest(probabilities, labels, patients, scheme, ordered)
    count = len(dearest)
    rank = math.ceil((count + 1) * (1 - WRONG) - 1e-9)  # of the order statistic; beyond the last with too few
    limit = None if rank > count else float(np.sort(list(dearest.values()))[rank - 1])
    return GradeSets(limit, WRONG, count, ordered)


def sets_hold(
    rule: GradeSets, probabilities: ArrayLike, labels: ArrayLike, patients: Sequence[str], scheme: GradingScheme
) -> tuple[int, int, float]:
    """Patients whose sets hold every true grade, of how many, and the mean number of grades in an image's set."""
    dearest = _dearest(probabilities, labels, patients, scheme, rule.ordered)
    costs = grade_costs(probabilities, scheme, rule.ordered)
    limit = math.inf if rule.limit is None else rule.limit + _ROUNDING
    sizes = (costs <= limit)[:, np.isfinite(costs).any(axis=0)].sum(axis=1) if len(costs) else np.zeros(0)
    held = sum(cost <= limit for cost in dearest.values())
    return held, len(dearest), float(sizes.mean()) if len(sizes) else 0.0


def grades_of(rule: GradeSets, probabilities: ArrayLike, scheme: GradingScheme) -> list[tuple[int, ...]]:
    """The classes in the set of each image, in order; all gradable ones where the rule has no limit."""
    costs = grade_costs(probabilities, scheme, rule.ordered)
    limit = np.nextafter(math.inf, 0) if rule.limit is None else rule.limit + _ROUNDING
    return [tuple(int(at) for at in np.flatnonzero(row <= limit)) for row in costs]


def set_words(found: Sequence[int], scheme: GradingScheme, ordered: bool) -> str:
    """A set for a person: "mild", "mild to severe", "amd or dme"."""
    names = [in_words(scheme.grades[at]) for at in found]
    if len(names) <= 1:
        return "".join(names)
    return f"{names[0]} to {names[-1]}" if ordered else " or ".join(names)


def _dearest(
    probabilities: ArrayLike, labels: ArrayLike, patients: Sequence[str], scheme: GradingScheme, ordered: bool
) -> dict[str, float]:
    """By patient, the cost of the dearest true grade."""
    truth = np.asarray(labels)
    costs = grade_costs(probabilities, scheme, ordered)
    if not len(costs) == len(truth) == len(patients):
        raise TrainingError(
            "sets of grades need one answer, label and patient per image, but got others. Collect them from the same "
            "split."
        )
    dearest: dict[str, float] = {}
    for patient, label, row in zip(patients, truth.tolist(), costs, strict=True):
        if label != scheme.ungradable_class:
            dearest[patient] = max(float(row[label]), dearest.get(patient, 0.0))
    return dearest
