"""Selective prediction: how good are the answers that are left when the least sure ones go to a doctor?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import recall_score

from fedretina.errors import SettingsError, TrainingError
from fedretina.metric_inputs import checked_errors

Metric = Callable[[NDArray[np.intp]], float]


def kept_at(uncertainty: ArrayLike, rate: float) -> NDArray[np.bool_]:
    """Which answers stay when a share is referred, by FedEE's rule: those with u at most the (1 - rate) quantile of u.

    The quantile is the one that interpolates between neighbours. Answers that equal it stay, so that ties refer fewer
    than asked: with all u equal none is referred. At least one answer always stays. FedEE's code also keeps answers
    whose u is no number; here they are refused.

    Args:
        uncertainty: [N], N at least 1, larger means less sure.
        rate: Share to refer, 0 to 1; FedEE reports 0.4.

    Returns:
        bool [N].

    Raises:
        SettingsError: rate is out of range.
        TrainingError: There are no answers, or a u is not finite.
    """
    if not 0 <= rate <= 1:
        raise SettingsError(f"the share to refer is {rate}: use 0 to 1, such as 0.4.")
    u = np.asarray(uncertainty, dtype=np.float64)
    checked_errors(u, np.zeros(u.shape, dtype=np.bool_))
    return np.asarray(u <= np.quantile(u, 1 - rate), dtype=np.bool_)  # sigma_h


def selective(uncertainty: ArrayLike, rate: float, metric: Metric) -> float:
    """A figure of the answers that stay (FedEE Eq. 4).

    Args:
        uncertainty: [N], larger means less sure.
        rate: Share to refer, 0 to 1.
        metric: The figure of the answers at these places.

    Raises:
        SettingsError: rate is out of range.
        TrainingError: There are no answers, or a u is not finite.
    """
    return metric(np.flatnonzero(kept_at(uncertainty, rate)))


def selective_accuracy(uncertainty: ArrayLike, wrong: ArrayLike, rate: float) -> float:
    """Accuracy of the answers that stay.

    Args:
        uncertainty: [N], larger means less sure.
        wrong: bool [N].
        rate: Share to refer, 0 to 1.

    Raises:
        SettingsError: rate is out of range.
        TrainingError: Shapes or values are unfit.
    """
    scores, verdicts = checked_errors(uncertainty, wrong)
    return selective(scores, rate, lambda places: float(1 - np.mean(verdicts[places])))


def selective_balanced_accuracy(uncertainty: ArrayLike, predicted: ArrayLike, labels: ArrayLike, rate: float) -> float:
    """Mean recall over the classes that are left, FedEE's figure for skin images.

    A class whose every image is referred is in the mean no more, so that this figure may rise by giving up on a class;
    the accuracy weighs images alike whatever their class.

    Args:
        uncertainty: [N], larger means less sure.
        predicted: Class numbers [N].
        labels: Class numbers [N].
        rate: Share to refer, 0 to 1.

    Raises:
        SettingsError: rate is out of range.
        TrainingError: Shapes or values are unfit.
    """
    answer, truth = np.asarray(predicted), np.asarray(labels)
    if answer.shape != truth.shape or answer.shape != np.asarray(uncertainty).shape:
        raise TrainingError(
            "Selective prediction needs one answer, label and uncertainty an image, but got more of one than of "
            "another. Collect all from the same images."
        ).with_note(f"Their shapes are {answer.shape}, {truth.shape} and {np.asarray(uncertainty).shape}.")

    def mean_recall(places: NDArray[np.intp]) -> float:
        left = truth[places]
        return float(recall_score(left, answer[places], labels=np.unique(left), average="macro"))

    return selective(uncertainty, rate, mean_recall)
