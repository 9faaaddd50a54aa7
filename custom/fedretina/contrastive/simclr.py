"""SimCLR: one network, and the other images of the batch in both views as negatives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedretina.contrastive.objective import (
    ContrastiveContext,
    ContrastiveRound,
    Views,
    alike,
    contrastive,
    kept_apart,
    similarities,
    unit,
)
from fedretina.losses.objective import Clock
from fedretina.settings.contrastive import SimclrSettings


def nt_xent(first: Tensor, second: Tensor, temperature: float, same: Tensor) -> Tensor:
    """NT-Xent, SimCLR Eq. 1: each of the 2B views finds its other view among the 2B - 1 that are not itself.

    Args:
        first: z of the first views, rows of length 1, [B, D].
        second: z of the second views, [B, D].
        temperature: tau, above 0.
        same: bool [B, B], which images are no negatives of each other; its diagonal is not read. The paper has no
            such mask.

    Returns:
        The mean over the 2B views, 0 or above: log(2B - 1) where nothing is told apart, 0 where no negatives are left.
    """
    count = len(first)
    z = torch.cat((first, second))
    place = torch.arange(2 * count, device=z.device)
    other = (place + count) % (2 * count)  # j(i)
    no_negatives = same.repeat(2, 2) | (place[:, None] == place[None, :])
    no_negatives[place, other] = False
    return F.cross_entropy(kept_apart(similarities(z, z), temperature, no_negatives), other)


@contrastive(SimclrSettings)
class SimclrRound(ContrastiveRound):
    """SimCLR (Chen, Kornblith, Norouzi, Hinton, ICML 2020) at a site; it keeps nothing.

    Both views pass as one batch, as in the official code, so that they share BatchNorm's statistics. The negatives are
    those of one batch: its 4096 images become the site's batch size.
    """

    def __init__(self, context: ContrastiveContext, settings: SimclrSettings) -> None:
        self._net = context.net
        self._settings = settings

    def loss(self, views: Views, clock: Clock) -> Tensor:
        """See `ContrastiveRound.loss`; the clock is not read."""
        z = unit(self._net.embedded(torch.cat((views.first, views.second))))
        first, second = z.chunk(2)
        images, patients = views.images.to(z.device), views.patients.to(z.device)
        same = alike(images, patients, images, patients, self._settings.mask_patients)
        return nt_xent(first, second, self._settings.temperature, same)
