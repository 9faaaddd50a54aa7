"""Intervals by drawing patients again: how much would a figure move with other patients of the same kind?

The eyes and visits of a patient resemble each other, so whole patients are drawn (the clustered bootstrap); an
interval over single images would be too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.referable import ReferralTask
from fedretina.seeds import generator

Counts = NDArray[np.int64]
_MOST_UNDEFINED = 0.1
_NO_SPREAD = 1e-12  # rounding alone
_CHUNK = 1_000_000  # numbers in one table of counts, 8 MB
Column = NDArray[np.float64]
Rule = Callable[[Counts], Column]
"""A figure of draws: takes how often each was drawn [B, N] and gives the figure [B]."""


class Interval(NamedTuple):
    """A percentile interval.

    Attributes:
        low: Lower bound; None where no interval can be told.
        high: Upper bound; None where no interval can be told.
        draws_used: Draws in which the figure was defined.
    """

    low: float | None
    high: float | None
    draws_used: int


def patient_bootstrap(
    statistics: Callable[[Counts], Mapping[str, NDArray[np.float64]]],
    patients: Sequence[str],
    seed: int,
    draws: int = 1000,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile intervals of any figures of a split, from draws of its patients with replacement.

    Each draw takes as many patients as there are, with all their images; the number of images differs between
    draws. There is no interval where more than a tenth of the draws leave a figure undefined (a split with two
    errors often draws none), with fewer than two patients, and where all draws agree: no error among 20 patients
    does not mean that there will never be one. With few patients (below about 30) percentile intervals are
    too narrow; a report should say so.

    Args:
        statistics: Takes how often each image was drawn [B, N], some draws at a time, and gives each figure [B], NaN
            where undefined.
        patients: Patient of each image [N].
        seed: The same seed draws the same patients.
        draws: Number of draws.
        level: Share of the draws inside the interval, in (0, 1).

    Returns:
        An interval for each name that any draw gave.

    Raises:
        SettingsError: draws or level is out of range.
        TrainingError: There are no images.
    """
    if draws < 1 or not 0 < level < 1:
        raise SettingsError(f"draws is {draws} and level {level}: use 1 draw or more and a level in (0, 1).")
    if not patients:
        raise TrainingError("An interval was asked for a split without images. Give the split at least one image.")
    values: dict[str, list[NDArray[np.float64]]] = {}
    done = 0
    for counts in patient_draws(patients, seed, draws):
        for name, column in statistics(counts).items():
            # A name that only some chunks know was undefined in all draws before.
            values.setdefault(name, [np.full(done, np.nan)]).append(column)
        done += counts.shape[0]
        for columns in values.values():
            columns.append(np.full(done - sum(map(len, columns)), np.nan))
    alone = len(set(patients)) < 2
    return {name: interval_of(np.concatenate(columns), level, alone) for name, columns in values.items()}


def patient_draws(patients: Sequence[str], seed: int, draws: int) -> Iterator[Counts]:
    """How often each image is drawn, [B, N] at a time; `draws` rows in all.

    Args:
        patients: Patient of each image [N], N at least 1.
        seed: The same seed draws the same patients.
        draws: Number of draws.
    """
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    rng = generator("bootstrap", seed)
    size = max(1, _CHUNK // owner.size)
    for begin in range(0, draws, size):
        rows = min(size, draws - begin)
        drawn = rng.integers(0, names.size, (rows, names.size)) + names.size * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * names.size).reshape(rows, names.size)
        yield counts[:, owner]


def interval_of(values: NDArray[np.float64], level: float = 0.95, alone: bool = False) -> Interval:
    """The percentile interval of a figure's draws, by the rules of `patient_bootstrap`.

    Args:
        values: One a draw [B], NaN where undefined.
        level: Share of the draws inside, in (0, 1).
        alone: Whether all draws are of one patient, so that there is no interval.
    """
    defined = values[np.isfinite(values)]
    if alone or defined.size < (1 - _MOST_UNDEFINED) * values.size or np.ptp(defined) < _NO_SPREAD:
        return Interval(None, None, int(defined.size))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), int(defined.size))


# A draw is told by how often it took each image, so a figure becomes sums weighted with these counts, and a thousand
# draws cost about as much as a few. Each figure equals the plain one on the images repeated that often, with one
# exception: a draw that misses a grade of the split has no macro AUC here. The mean over the grades that it has would
# be another quantity, higher where the rare grade is the hard one.


class ResampledFigures:
    """Figures of one split, called with counts [B, N].

    The expected calibration error is not among them: drawing images twice makes bins look less calibrated than they
    are. For calibrated answers to 100 images its intervals were centred 4 points too high, and one in eight lay wholly
    above the figure itself.

    Args:
        probabilities: [N, K].
        labels: [N].
        uncertainty: [N].
        scores: Class scores of the AUC [N, K], see `auc_scores`.
        logit_scores: Class scores of the second AUC [N, K], the one from the softmax of the raw logits.
        referral: The split read as referable or not; None where the scheme does not say.
        only: Names of the figures to compute; None for all.
        supported: The grades that count in the mean of grades with support. Each grade present has an AUC of its own
            by `grade_figure`.
        threatening: The split read as vision-threatening or not; None where the scheme does not say.
    """

    def __init__(
        self,
        probabilities: NDArray[np.float64],
        labels: NDArray[np.int64],
        uncertainty: NDArray[np.float64],
        scores: NDArray[np.float64],
        logit_scores: NDArray[np.float64],
        referral: ReferralTask | None,
        only: Collection[str] | None = None,
        supported: Collection[int] = (),
        threatening: ReferralTask | None = None,
    ) -> None:
        answer = probabilities.argmax(1)
        wrong = answer != labels
        onehot = np.eye(probabilities.shape[1])[labels]
        own = np.maximum(probabilities[np.arange(labels.size), labels], np.finfo(np.float64).tiny)
        self._rules: dict[str, Rule] = {
            "auc_logits": _macro_auc(logit_scores, labels),
            "accuracy": _mean((~wrong).astype(np.float64)),
            "kappa": _kappa(answer, labels),
            "error_auroc": auroc_rule(uncertainty, wrong),
            "aurc": _aurc(uncertainty, wrong),
            "brier": _mean(((probabilities - onehot) ** 2).sum(1)),
            "nll": _mean(-np.log(own)),
        }
        for name, task in (("referable", referral), ("threatening", threatening)):
            if task is not None:
                self._rules |= {
                    f"{name}_auc": auroc_rule(task.score, task.diseased, task.kept),
                    f"{name}_sensitivity": share_rule(task.kept, task.diseased, task.referred),
                    f"{name}_specificity": share_rule(task.kept, ~task.diseased, ~task.referred),
                }
        if only is not None:
            self._rules = {name: rule for name, rule in self._rules.items() if name in only}
        # Means over grades: the AUC of a grade is computed once for all of them.
        present = np.unique(labels).tolist()
        means = {"auc": present, "auc_supported": sorted(supported)}
        means |= {grade_figure(grade): [grade] for grade in present}
        self._means = {name: grades for name, grades in means.items() if grades and (only is None or name in only)}
        needed = sorted({grade for grades in self._means.values() for grade in grades})
        self._of_grade = {grade: auroc_rule(scores[:, grade], labels == grade) for grade in needed}

    def __call__(self, counts: Counts) -> dict[str, Column]:
        """Each figure [B] of draws [B, N], NaN where it is undefined."""
        own = {grade: rule(counts) for grade, rule in self._of_grade.items()}
        means = {name: np.mean([own[grade] for grade in grades], axis=0) for name, grades in self._means.items()}
        return {**means, **{name: rule(counts) for name, rule in self._rules.items()}}


def grade_figure(grade: int) -> str:
    """Name of the figure that is one grade's own AUC."""
    return f"auc_grade_{grade:02}"


def _divided(above: Column, below: Column) -> Column:
    share: Column = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return share


def _mean(values: Column) -> Rule:
    return lambda counts: counts @ values / counts.sum(1)


def share_rule(kept: NDArray[np.bool_], among: NDArray[np.bool_], hit: NDArray[np.bool_]) -> Rule:
    """How many of some are hit, for many draws at once; NaN in a draw without any of them.

    Args:
        kept: Which of the N take part [N].
        among: Of those, which are asked [M].
        hit: Of those, which are hit [M].
    """
    places = np.flatnonzero(kept)
    there, both = places[among], places[among & hit]
    return lambda counts: _divided(
        counts[:, both].sum(1).astype(np.float64), counts[:, there].sum(1).astype(np.float64)
    )


def auroc_rule(scores: Column, positive: NDArray[np.bool_], kept: NDArray[np.bool_] | None = None) -> Rule:
    """`metrics.auroc` for many draws at once; NaN in a draw without a positive or without a negative.

    Args:
        scores: Finite [M].
        positive: [M].
        kept: Which of the N that are drawn take part [N], M of them; None for all.
    """
    order = np.argsort(scores, kind="stable")
    places = order if kept is None else np.flatnonzero(kept)[order]
    hit = positive[order]
    ranked = scores[order]
    first = np.searchsorted(ranked, ranked[hit], side="left")  # bounds of each positive's group of equal scores
    last = np.searchsorted(ranked, ranked[hit], side="right")

    def rule(counts: Counts) -> Column:
        drawn = counts[:, places]
        below = np.zeros((drawn.shape[0], ranked.size + 1), dtype=np.int64)
        np.cumsum(np.where(hit, 0, drawn), axis=1, out=below[:, 1:])
        ones = drawn[:, hit]
        twice = np.sum(ones * (below[:, first] + below[:, last]), axis=1)  # pairs won, and half of those tied, doubled
        return _divided(twice / 2, (ones.sum(1) * below[:, -1]).astype(np.float64))

    return rule


def _macro_auc(scores: Column, labels: NDArray[np.int64]) -> Rule:
    rules = [auroc_rule(scores[:, k], labels == k) for k in np.unique(labels)]
    return lambda counts: np.mean([one(counts) for one in rules], axis=0)


def _kappa(answer: NDArray[np.int64], labels: NDArray[np.int64]) -> Rule:
    columns = np.stack([(answer - labels) ** 2, answer, labels, answer**2, labels**2], axis=1)

    def rule(counts: Counts) -> Column:
        gaps, answers, truths, answers2, truths2 = (counts @ columns).T  # whole numbers: no rounding decides `chance`
        n = counts.sum(1)
        chance = n * answers2 - answers**2 + n * truths2 - truths**2 + (answers - truths) ** 2
        return 1 - _divided((n * gaps).astype(np.float64), chance.astype(np.float64))

    return rule


def _aurc(uncertainty: Column, wrong: NDArray[np.bool_]) -> Rule:
    order = np.argsort(uncertainty, kind="stable")
    starts = np.unique(uncertainty[order], return_index=True)[1]
    failed = wrong[order]

    def rule(counts: Counts) -> Column:
        drawn = counts[:, order]
        size = np.add.reduceat(drawn, starts, axis=1)  # images and errors of each group of equal uncertainty
        errors = np.add.reduceat(np.where(failed, drawn, 0), starts, axis=1)
        kept = np.cumsum(size, axis=1)
        before, missed = kept - size, np.cumsum(errors, axis=1) - errors
        share = np.divide(errors, size, out=np.zeros(size.shape), where=size > 0)
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, np.max(kept) + 1))])
        # Inside a group the n-th answer adds `share`: sum over n of (missed + share (n - before)) / n.
        area = (missed - share * before) * (harmonic[kept] - harmonic[before]) + errors
        return np.asarray(area.sum(1) / kept[:, -1])

    return rule


class Share(NamedTuple):
    """A share with its interval.

    Attributes:
        k: How many.
        n: Of how many, 1 or more.
        value: k / n.
        low: Lower bound, in [0, value].
        high: Upper bound, in [value, 1].
    """

    k: int
    n: int
    value: float
    low: float
    high: float


def exact_interval(k: int, n: int) -> Share | None:
    """Clopper and Pearson's 95 % interval (Biometrika 1934).

    It covers the true share at least as often as it says, however small n is. The usual interval, value plus or minus
    two standard errors, has no width at 0 of n, where a hospital most needs to know how far to trust it.

    The n must be independent of each other: count patients, not eyes.

    Args:
        k: How many, 0 to n.
        n: Of how many.

    Returns:
        The share; None for n = 0, where there is none.

    Raises:
        SettingsError: k is not within 0 to n.
    """
    from scipy.special import betaincinv  # not scipy.stats, which costs each process half a second

    if not 0 <= k <= n:
        raise SettingsError(f"an interval was asked for {k} of {n}: give 0 <= k <= n.")
    if n == 0:
        return None
    tail = 0.025
    low = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Share(k, n, k / n, low, high)
