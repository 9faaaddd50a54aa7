"""How many cases must a doctor see until the rest is as good as asked? (FedEE, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.evaluation.bootstrap import Counts, Interval, patient_bootstrap
from fedretina.metric_inputs import checked_errors

Accuracy = Literal["kept", "with_doctor"]
_ROUNDING = 1e-9  # 0.9 of 10 answers is 9, not 9.000000000000002


class ReferralRate(NamedTuple):
    """The share of cases to refer.

    Attributes:
        rate: Smallest share, in [0, 1]; 1 where no rule by u reaches the target, so that every case is referred.
        threshold: Largest u that is kept, so that a case is referred when its u is above; None at rate 1.
        interval: Of the rate over patients drawn anew; None without patients.
    """

    rate: float
    threshold: float | None
    interval: Interval | None


class AtThreshold(NamedTuple):
    """What a threshold does on other cases.

    Attributes:
        rate: Share referred, in [0, 1].
        accuracy: Accuracy of the kept cases; None where none is kept.
    """

    rate: float
    accuracy: float | None


def refer_for_accuracy(
    uncertainty: ArrayLike,
    wrong: ArrayLike,
    target: float,
    accuracy: Accuracy = "kept",
    patients: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 1000,
) -> ReferralRate:
    """Smallest share of the least sure cases to refer so that a target accuracy is reached.

    Cases of equal u are kept or referred together. "kept" asks for the accuracy of the cases that no doctor sees, which
    is what those patients live with. "with_doctor" is FedEE's Figure 5: over all cases, those referred counted as right
    since a doctor answers them; it needs far fewer referrals for the same number.

    The threshold is found on the cases that it is judged on, so the share says how well u sorts these cases, and is a
    little too good for new ones. For use, find it on validation and look at test with `at_threshold`.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].
        target: Accuracy in (0, 1].
        accuracy: Over which cases the target is asked.
        patients: Patient of each case [N], for an interval; None for none.
        seed: Of the drawn patients.
        draws: Number of draws.

    Raises:
        SettingsError: target is out of range.
        TrainingError: Shapes or values are unfit.
    """
    if not 0 < target <= 1:
        raise SettingsError(f"the target accuracy is {target}: use a share above 0 and up to 1, such as 0.9.")
    scores, verdicts = checked_errors(uncertainty, wrong)
    if patients is not None and len(patients) != scores.size:
        raise TrainingError(
            f"an interval needs one patient a case, but got {len(patients)} patients for {scores.size} cases."
        )
    sums = _Sums(scores, verdicts)
    kept, errors = (one[0] for one in sums.of(np.ones((1, scores.size), dtype=np.int64)))
    best = int(_last(kept[None], errors[None], target, accuracy)[0])
    interval = None
    if patients is not None:

        def rates(counts: Counts) -> dict[str, NDArray[np.float64]]:
            left, failed = sums.of(counts)
            at = _last(left, failed, target, accuracy)
            return {"rate": 1 - left[np.arange(at.size), at] / left[:, -1]}

        interval = patient_bootstrap(rates, patients, seed, draws)["rate"]
    if best == 0:
        return ReferralRate(1.0, None, interval)
    return ReferralRate(float(1 - kept[best] / scores.size), float(sums.ends[best - 1]), interval)


def at_threshold(uncertainty: ArrayLike, wrong: ArrayLike, threshold: float | None) -> AtThreshold:
    """What a `ReferralRate.threshold` of another split does on this one.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].
        threshold: Cases with u above it are referred; None refers all.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    kept = np.zeros(scores.shape, dtype=np.bool_) if threshold is None else scores <= threshold
    left = int(np.sum(kept))
    return AtThreshold(1 - left / scores.size, float(1 - np.mean(verdicts[kept])) if left else None)


class _Sums:
    """Cases and errors among those that are kept, for each threshold; the first keeps none.

    Attributes:
        ends: Distinct u, rising [G].
    """

    def __init__(self, scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> None:
        self._order = np.argsort(scores, kind="stable")
        self.ends, self._starts = np.unique(scores[self._order], return_index=True)
        self._wrong = wrong[self._order]

    def of(self, counts: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Kept cases and errors among them [B, G + 1] where each case was drawn so often [B, N]."""
        drawn = counts[:, self._order]
        both = []
        for column in (drawn, np.where(self._wrong, drawn, 0)):
            sums = np.cumsum(np.add.reduceat(column, self._starts, axis=1), axis=1)
            both.append(np.concatenate([np.zeros((drawn.shape[0], 1), dtype=np.int64), sums], axis=1))
        return both[0], both[1]


def _last(kept: NDArray[np.int64], errors: NDArray[np.int64], target: float, accuracy: Accuracy) -> NDArray[np.intp]:
    """The last threshold [B] at which the target holds; the first always does."""
    over = kept if accuracy == "kept" else kept[:, -1:]
    holds = errors <= (1 - target) * over + _ROUNDING
    return np.asarray(holds.shape[1] - 1 - np.argmax(holds[:, ::-1], axis=1), dtype=np.intp)
