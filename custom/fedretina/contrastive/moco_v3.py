"""MoCo v3: two views, each of which predicts the other's key among those of the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedretina.contrastive.key_network import KeyNetwork, rising_momentum
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
from fedretina.errors import SettingsError
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.settings.contrastive import MocoV3Settings


def moco_v3_loss(
    queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], temperature: float, same: Tensor
) -> Tensor:
    """The symmetric contrast of MoCo v3, Algorithm 1: ctr(q1, k2) + ctr(q2, k1).

    ctr is the cross entropy of a query against all keys of the other view's batch, its own key being the right one,
    times 2 tau.

    Args:
        queries: q1 and q2, of the first and the second view, rows of length 1, [B, D] each.
        keys: k1 and k2, [B, D] each; no gradient is needed.
        temperature: tau, above 0.
        same: bool [B, B], which images are no negatives of each other; its diagonal is not read. The paper has no
            such mask.

    Returns:
        The sum of both means, 0 or above: 4 tau log B where nothing is told apart, 0 where no negatives are left.
    """
    (q1, q2), (k1, k2) = queries, keys
    own = torch.arange(len(same), device=same.device)
    others = same & (own[:, None] != own[None, :])

    def one_way(query: Tensor, key: Tensor) -> Tensor:
        logits = kept_apart(similarities(query, key), temperature, others)
        return 2 * temperature * F.cross_entropy(logits, own)

    return one_way(q1, k2) + one_way(q2, k1)


@contrastive(MocoV3Settings)
class MocoV3Round(ContrastiveRound):
    """MoCo v3 (Chen, Xie, He, ICCV 2021) at a site: as published for ResNet-50, without a queue.

    The official code takes 4096 images per step, over all devices. At a site the negatives are those of one batch, so a
    batch of 64 has 63.

    Raises:
        SettingsError: The network has no predictor.
    """

    def __init__(self, context: ContrastiveContext, settings: MocoV3Settings) -> None:
        self._net = context.net
        self._settings = settings
        self._key = KeyNetwork(context, settings)
        if context.head.predictor is None:
            raise SettingsError("moco_v3 needs a predictor: set network.contrast.layout to 'moco_v3'.")
        self._predictor = context.head.predictor

    def loss(self, views: Views, clock: Clock) -> Tensor:
        """See `ContrastiveRound.loss`."""
        settings = self._settings
        q1, q2 = (unit(self._predictor(self._net.embedded(view))) for view in (views.first, views.second))
        self._key.follow(rising_momentum(settings.momentum, clock))
        at = clock.epoch, clock.step
        k1, k2 = self._key.keys(views.first, *at, "first"), self._key.keys(views.second, *at, "second")
        images, patients = views.images.to(q1.device), views.patients.to(q1.device)
        same = alike(images, patients, images, patients, settings.mask_patients)
        return moco_v3_loss((q1, q2), (k1, k2), settings.temperature, same)

    def leaving(self) -> Tensors:
        """See `ContrastiveRound.leaving`."""
        return self._key.leaving()

    def finish(self) -> Tensors:
        """See `ContrastiveRound.finish`: the key network unless it begins anew or travels."""
        return self._key.memory()
