"""The figures of one split under many draws of its patients at once, for the bootstrap.

A draw is told by how often it took each image, so a figure becomes sums weighted with these counts, and a thousand
draws cost about as much as a few. Each figure equals the plain one on the images repeated that often, with one
exception: a draw that misses a grade of the split has no macro AUC here. The mean over the grades that it has would be
another quantity, higher where the rare grade is the hard one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from fedretina.evaluation.bootstrap import Counts
from fedretina.evaluation.referable import ReferralTask

Column = NDArray[np.float64]
_Rule = Callable[[Counts], Column]


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
    ) -> None:
        answer = probabilities.argmax(1)
        wrong = answer != labels
        onehot = np.eye(probabilities.shape[1])[labels]
        own = np.maximum(probabilities[np.arange(labels.size), labels], np.finfo(np.float64).tiny)
        self._rules: dict[str, _Rule] = {
            "auc": _macro_auc(scores, labels),
            "auc_logits": _macro_auc(logit_scores, labels),
            "accuracy": _mean((~wrong).astype(np.float64)),
            "kappa": _kappa(answer, labels),
            "error_auroc": _auroc(uncertainty, wrong),
            "aurc": _aurc(uncertainty, wrong),
            "brier": _mean(((probabilities - onehot) ** 2).sum(1)),
            "nll": _mean(-np.log(own)),
        }
        if referral is not None:
            self._rules |= {
                "referable_auc": _auroc(referral.score, referral.diseased, referral.kept),
                "referable_sensitivity": _share(referral.kept, referral.diseased, referral.referred),
                "referable_specificity": _share(referral.kept, ~referral.diseased, ~referral.referred),
            }
        if only is not None:
            self._rules = {name: rule for name, rule in self._rules.items() if name in only}

    def __call__(self, counts: Counts) -> dict[str, Column]:
        """Each figure [B] of draws [B, N], NaN where it is undefined."""
        return {name: rule(counts) for name, rule in self._rules.items()}


def _divided(above: Column, below: Column) -> Column:
    share: Column = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return share


def _mean(values: Column) -> _Rule:
    return lambda counts: counts @ values / counts.sum(1)


def _share(kept: NDArray[np.bool_], among: NDArray[np.bool_], hit: NDArray[np.bool_]) -> _Rule:
    places = np.flatnonzero(kept)
    there, both = places[among], places[among & hit]
    return lambda counts: _divided(
        counts[:, both].sum(1).astype(np.float64), counts[:, there].sum(1).astype(np.float64)
    )


def _auroc(scores: Column, positive: NDArray[np.bool_], kept: NDArray[np.bool_] | None = None) -> _Rule:
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


def _macro_auc(scores: Column, labels: NDArray[np.int64]) -> _Rule:
    rules = [_auroc(scores[:, k], labels == k) for k in np.unique(labels)]
    return lambda counts: np.mean([one(counts) for one in rules], axis=0)


def _kappa(answer: NDArray[np.int64], labels: NDArray[np.int64]) -> _Rule:
    columns = np.stack([(answer - labels) ** 2, answer, labels, answer**2, labels**2], axis=1)

    def rule(counts: Counts) -> Column:
        gaps, answers, truths, answers2, truths2 = (counts @ columns).T  # whole numbers: no rounding decides `chance`
        n = counts.sum(1)
        chance = n * answers2 - answers**2 + n * truths2 - truths**2 + (answers - truths) ** 2
        return 1 - _divided((n * gaps).astype(np.float64), chance.astype(np.float64))

    return rule


def _aurc(uncertainty: Column, wrong: NDArray[np.bool_]) -> _Rule:
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
