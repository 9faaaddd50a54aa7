"""From logits to a subjective opinion: evidence, Dirichlet, belief and uncertainty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedretina.errors import TrainingError


class Opinion(NamedTuple):
    """A Dirichlet opinion on K classes; the beliefs of a sample and its uncertainty sum to 1.

    Attributes:
        evidence: e [B, K], 0 or above.
        alpha: Dirichlet parameters e + 1 [B, K].
        strength: S = sum of alpha [B], K or above.
        belief: b = e / S [B, K], in [0, 1).
        uncertainty: u = K / S [B], in (0, 1]; 1 without evidence.
        probability: Expected probability alpha / S = b + u / K [B, K]; a row sums to 1.
    """

    evidence: Tensor
    alpha: Tensor
    strength: Tensor
    belief: Tensor
    uncertainty: Tensor
    probability: Tensor


def opinion(logits: Tensor) -> Opinion:
    """Read logits as evidence by softplus (FedUAA section 2.1).

    Softplus, as paper and official code have it; some libraries use relu or exp instead. K enters u = K / S:
    with equal evidence a site with more classes is less certain, so u of two sites with different grading
    schemes must not be compared without a thought.

    Args:
        logits: [B, K], K at least 2. Half precision is widened to float32 first, since belief and uncertainty
            need more digits than bf16 has; float64 stays float64.

    Returns:
        The opinion, differentiable. Logits that are not finite give values that are not finite.

    Raises:
        TrainingError: The logits are not a matrix with at least two classes.
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise TrainingError(
            f"An opinion needs logits of shape [B, K] with at least 2 classes, but got {list(logits.shape)}. "
            "Give the output of a classification head."
        )
    evidence = F.softplus(logits.to(torch.promote_types(logits.dtype, torch.float32)))  # e
    alpha = evidence + 1
    strength = alpha.sum(1)  # S
    return Opinion(
        evidence=evidence,
        alpha=alpha,
        strength=strength,
        belief=evidence / strength[:, None],
        uncertainty=logits.shape[1] / strength,
        probability=alpha / strength[:, None],
    )


def as_if_graded(u: NDArray[np.floating], grades: int, reference: int) -> NDArray[np.float64]:
    """The uncertainty u = K / (K + E) as it would be with another number of grades and the same evidence E.

    It rises with u, so it changes no order and no ROC curve; of two sites with equal evidence it makes equal.

    Args:
        u: Uncertainty [N] in (0, 1].
        grades: K of the site.
        reference: The number of grades to compare at.

    Returns:
        k / (k + K (1 / u - 1)), in (0, 1]; the very same numbers where both are equal.
    """
    wide = np.asarray(u, dtype=np.float64)
    return wide if grades == reference else reference * wide / (reference * wide + grades * (1 - wide))
