"""Metrics of a split: of the grading itself, of the probabilities, and of the uncertainty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedretina.errors import SettingsError, TrainingError
from fedretina.metric_inputs import checked_errors, checked_scores


class MacroAuc(NamedTuple):
    """A one-vs-rest AUC and what it averages over.

    Attributes:
        value: Mean AUC in [0, 1]; None if fewer than two classes are present.
        classes: Number of classes present in the labels.
    """

    value: float | None
    classes: int


def macro_auc(scores: ArrayLike, labels: ArrayLike) -> MacroAuc:
    """Mean one-vs-rest AUC over the classes that are present (FedUAA Table 1, per site).

    Differs from `roc_auc_score` on one-hot labels, as the official code calls it, where a class is absent
    from the split: that is an error or NaN there; here the class is left out and `classes` says so.

    Args:
        scores: Class scores [N, K], larger means likelier; see `auc_scores` for the four kinds.
        labels: [N], 0 to K - 1.

    Returns:
        The mean with equal weights for classes, and their number.

    Raises:
        TrainingError: Shapes, scores or labels are unfit.
    """
    matrix, classes = checked_scores(scores, labels)
    present = np.unique(classes)
    if present.size < 2:
        return MacroAuc(None, int(present.size))
    values = [auroc(matrix[:, k], classes == k) for k in present]
    return MacroAuc(float(np.mean([value for value in values if value is not None])), int(present.size))


def accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Share of predictions that equal their label.

    Args:
        predicted: Class numbers [N].
        labels: Class numbers [N].

    Returns:
        A number in [0, 1].

    Raises:
        TrainingError: The shapes differ or there are no images.
    """
    answer, truth = _pair(predicted, labels)
    return float((answer == truth).mean())


def quadratic_kappa(predicted: ArrayLike, labels: ArrayLike) -> float | None:
    """Cohen's kappa with quadratic weights, the agreement measure of DR grading.

    One less the mean squared step between the two raters, over the mean that independent raters with their shares would
    have: their two variances and the square of the difference of their means. `cohen_kappa_score` gives the
    same to 1e-12 (tests/evaluation/test_metrics.py); to import it costs each process of a site 1.3 s.

    It reads class numbers as an order. A class "ungradable" behind the grades (DDR) counts as one step worse
    than the worst grade, so kappa there is not comparable with a scheme without it.

    Args:
        predicted: Class numbers [N].
        labels: Class numbers [N].

    Returns:
        A number in [-1, 1]; 0 is the agreement of chance. None where it is undefined, that is where all
        predictions and all labels are the same single class.

    Raises:
        TrainingError: The shapes differ or there are no images.
    """
    answer, truth = _pair(predicted, labels)
    by_chance = answer.var() + truth.var() + (answer.mean() - truth.mean()) ** 2
    return None if by_chance == 0 else float(1 - np.mean((answer - truth) ** 2) / by_chance)


def plain_kappa(predicted: ArrayLike, labels: ArrayLike) -> float | None:
    """Cohen's kappa without weights, for classes that have no order: every mistake counts alike.

    `cohen_kappa_score` gives the same to 1e-12; see `quadratic_kappa` for why it is not asked.

    Args:
        predicted: Class numbers [N].
        labels: Class numbers [N].

    Returns:
        A number in [-1, 1]; 0 is the agreement of chance. None where it is undefined, that is where all
        predictions and all labels are the same single class.

    Raises:
        TrainingError: The shapes differ or there are no images.
    """
    answer, truth = _pair(predicted, labels)
    by_chance = sum(float((answer == one).mean() * (truth == one).mean()) for one in np.unique(truth))
    # By chance all are alike only where there is one class; a sum of shares may miss 1 by its last bit.
    alone = len(np.unique(np.concatenate([answer, truth]))) == 1
    return None if alone else float((np.mean(answer == truth) - by_chance) / (1 - by_chance))


def _pair(predicted: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    answer, truth = np.asarray(predicted), np.asarray(labels)
    if answer.ndim != 1 or answer.shape != truth.shape or not answer.size:
        raise TrainingError(
            "A metric needs one prediction and one label per image, and at least one image, but got others. Collect "
            "both from the same images."
        ).with_note(f"Their shapes are {answer.shape} and {truth.shape}.")
    return answer, truth


def auroc(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> float | None:
    """Chance that a positive scores above a negative, half a point for a tie (Mann-Whitney).

    By ranks and not by `roc_auc_score`: that one sums trapezoids, so that equal AUCs differ in their last bits and
    rounding would choose the round's model, where `model_selection` takes the earliest of equals.

    Args:
        scores: Finite [N].
        positive: bool [N].

    Returns:
        A number in [0, 1], or None without a positive or without a negative.
    """
    ones = int(positive.sum())
    zeros = positive.size - ones
    if ones == 0 or zeros == 0:
        return None
    ordered = np.sort(scores[~positive])
    # Negatives below each positive, and half of those that equal it: sums of halves, so exact.
    beaten = np.searchsorted(ordered, scores[positive], "left") + np.searchsorted(ordered, scores[positive], "right")
    return float(beaten.sum() / 2) / (ones * zeros)


def ece(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error of the largest probability, bins (lo, hi] of equal width.

    Scikit-learn's `calibration_curve` gives the curve without the images of a bin, which are the weights here.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.
        bins: Number of bins, 1 or more; 15 is the field's habit.

    Returns:
        Mean gap between confidence and accuracy, weighted by the images of a bin, in [0, 1].

    Raises:
        SettingsError: bins is below 1.
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    if bins < 1:
        raise SettingsError(f"bins is {bins}; the calibration error needs 1 or more. The habit is 15.")
    matrix, classes = checked_scores(probabilities, labels)
    confidence = matrix.max(1)
    right = matrix.argmax(1) == classes
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(inner, confidence, side="left")  # side left puts a value on an edge below it: (lo, hi]
    gap = np.bincount(place, weights=confidence - right, minlength=bins)
    return float(np.abs(gap).sum() / classes.size)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Brier score of several classes: mean of the sum over classes of (p_k - y_k)^2.

    Not by scikit-learn's `brier_score_loss`, which refuses 1.0000001: an estimator in float32 may round to it.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.

    Returns:
        A number in [0, 2] (Brier's own form; some libraries halve it or divide by K).

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    matrix, classes = checked_scores(probabilities, labels)
    onehot = np.eye(matrix.shape[1])[classes]
    return float(((matrix - onehot) ** 2).sum(1).mean())


def nll(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean negative log probability of the true class.

    Differs from scikit-learn's `log_loss`, for which every probability below 2e-16 is alike, so the worst is 36.

    Args:
        probabilities: [N, K].
        labels: [N], 0 to K - 1.

    Returns:
        A number in nats, 0 or above. A probability of 0 counts as the smallest normal float64, so the worst
        is 708.4 and never infinite.

    Raises:
        TrainingError: Shapes, probabilities or labels are unfit.
    """
    matrix, classes = checked_scores(probabilities, labels)
    own = matrix[np.arange(classes.size), classes]
    return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())


def error_detection_auroc(uncertainty: ArrayLike, wrong: ArrayLike) -> float | None:
    """Chance that a wrong answer is less certain than a right one (FedEE Eq. 3, misdiagnosis detection).

    Differs from the FedEE code, which returns 1.0 where this is undefined and so lifts small sites. A tie of a wrong
    with a right answer counts half here, and nothing in Eq. 3 as printed.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].

    Returns:
        A number in [0, 1], 0.5 for an uncertainty that says nothing; None with no or only wrong answers.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    return auroc(*checked_errors(uncertainty, wrong))


def aurc(uncertainty: ArrayLike, wrong: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean error rate of the n surest answers, over n = 1..N.

    Equal uncertainties have no order of their own, so their errors are spread evenly over the tie (the mean
    over all orders); the order of the images changes nothing.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].

    Returns:
        A number in [0, 1], smaller is better; the error rate itself if all are tied, 0 without errors.

    Raises:
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=verdicts) / sizes  # error rate of each group of equal uncertainty
    failures = np.cumsum(np.repeat(share, sizes))
    return float((failures / np.arange(1, scores.size + 1)).mean())
