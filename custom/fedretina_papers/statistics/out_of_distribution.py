"""Does the uncertainty tell images of another kind from those that the model was made for?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import average_precision_score

from fedretina.evaluation.metrics import auroc
from fedretina.metric_inputs import checked_errors

ACCEPTED = 0.95


class OutOfDistribution(NamedTuple):
    """How well u separates two sets of images; None where one of them is empty.

    Attributes:
        auroc: Chance that an image from outside is less certain than one from inside, half a point for a tie.
        aupr: Average precision of finding the images from outside, without interpolation. Its floor is their share, so
            it is only comparable between models on the same two sets.
        fpr95: Share of the images from outside that pass where 95 % of those from inside do (FPR at 95 % TPR, as Liang
            et al., ICLR 2018, count it, with inside as positive).
        outside: Images from outside.
    """

    auroc: float | None
    aupr: float | None
    fpr95: float | None
    outside: int


def out_of_distribution(inside: ArrayLike, outside: ArrayLike) -> OutOfDistribution:
    """Compare the uncertainties of two sets of images (FedEE Figure 6).

    Inside is a site's own test split. Outside may be another site's ("local OOD" in FedEE), or images of another kind.
    With heads of different numbers of classes u = K / S is not the same scale; compare answers of one model.

    Args:
        inside: Uncertainty [N], finite.
        outside: Uncertainty [M], finite.

    Raises:
        TrainingError: A shape or value is unfit.
    """
    own, other = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    for side in (own, other):
        if side.size:
            checked_errors(side, np.zeros(side.shape, dtype=np.bool_))
    if not own.size or not other.size:
        return OutOfDistribution(None, None, None, other.size)
    u = np.concatenate([own, other])
    is_outside = np.arange(u.size) >= own.size
    # The smallest u up to which at least 95 % of the images from inside lie; counted in whole images.
    passing = float(np.sort(own)[int(np.ceil(ACCEPTED * own.size - 1e-9)) - 1])
    return OutOfDistribution(
        auroc=auroc(u, is_outside),
        aupr=float(average_precision_score(is_outside, u)),
        fpr95=float(np.mean(other <= passing)),
        outside=other.size,
    )
