"""What multi-domain temperature scaling asks of a site: sums over its validation images, and no feature of one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedretina.errors import TrainingError
from fedretina.exchange.parts import GRAM, MOMENT


def feature_moments(features: Iterable[Tensor], temperature: float) -> dict[str, Tensor]:
    """Sum X^T X and X^T T over images, X being the features with a 1 behind them.

    What the server makes of the sums of all sites: `aggregation.temperatures`.

    Args:
        features: Batches [B, F].
        temperature: T_k, the site's own temperature, the same for each image.

    Returns:
        `GRAM` [F + 1, F + 1] and `MOMENT` [F + 1], float64, on the CPU.

    Raises:
        TrainingError: There are no images.
    """
    gram: Tensor | None = None
    moment: Tensor | None = None
    for batch in features:
        wide = batch.detach().cpu().double()
        rows = torch.cat([wide, torch.ones(wide.shape[0], 1, dtype=torch.float64)], dim=1)
        square, sums = rows.T @ rows, rows.sum(0) * temperature
        gram = square if gram is None else gram + square
        moment = sums if moment is None else moment + sums
    if gram is None or moment is None:
        raise TrainingError("moments were asked of a split without images: give the split at least one.")
    return {GRAM: gram, MOMENT: moment}
