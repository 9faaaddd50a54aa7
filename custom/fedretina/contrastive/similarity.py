"""Embeddings of length 1, their similarities, and which images are no negatives of each other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def unit(embeddings: Tensor) -> Tensor:
    """Scale each row to length 1 (norm in the OCT paper, Eq. 4).

    Args:
        embeddings: [B, D], of any floating type.

    Returns:
        [B, D], float32 (float64 stays float64); a row of zeros stays one.
    """
    return F.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)


def similarities(one: Tensor, other: Tensor) -> Tensor:
    """Scalar products of all rows, in the type of the rows even under autocast.

    In bfloat16 two similarities that differ by less than 0.004 are one; over a temperature of 0.1 that is 4 % of the
    odds.

    Args:
        one: [A, D].
        other: [B, D].

    Returns:
        [A, B].
    """
    with torch.autocast(one.device.type, enabled=False):
        return one @ other.T


def kept_apart(similarity: Tensor, temperature: float, same: Tensor) -> Tensor:
    """Divide by the temperature and take what is no negative out of the sum: its logit is minus infinity."""
    return (similarity / temperature).masked_fill(same, -torch.inf)


def alike(
    images: Tensor, patients: Tensor, other_images: Tensor, other_patients: Tensor, mask_patients: bool = True
) -> Tensor:
    """Tell which pairs are no negatives: the same image, and the same patient if that is asked for.

    Two eyes or two neighbouring slices of a patient are near duplicates, and an older key of an image is the image
    itself. Told apart from each other they would teach the encoder patients and ages of keys, not disease. The OCT
    paper says nothing of either; the official MoCo code masks nothing, with a queue that one epoch does not fill.

    Args:
        images: int64 [A], numbers in the site's split.
        patients: int64 [A].
        other_images: int64 [B].
        other_patients: int64 [B].
        mask_patients: Whether another image of the same patient is no negative either.

    Returns:
        bool [A, B].
    """
    same = images[:, None] == other_images[None, :]
    return same | (patients[:, None] == other_patients[None, :]) if mask_patients else same
