"""MoCo v2: a query against its key and a queue of older keys. The OCT paper's first stage."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedretina.contrastive.key_network import KeyNetwork, KeyQueue, queue_length
from fedretina.contrastive.objective import (
    ContrastiveContext,
    ContrastiveRound,
    Views,
    contrastive,
    kept_apart,
    similarities,
    unit,
)
from fedretina.errors import TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.seeds import generator
from fedretina.settings.contrastive import MocoV2Settings


def info_nce(query: Tensor, keys: Tensor, queue: Tensor, temperature: float, same: Tensor) -> Tensor:
    """InfoNCE with negatives from a queue alone, OCT paper Eq. 6: -log softmax of the own key's similarity.

    Args:
        query: q, rows of length 1, [B, D].
        keys: k+, of the other view of the same images, [B, D]; no gradient is needed.
        queue: k-, [K, D].
        temperature: tau, above 0.
        same: bool [B, K], which rows of the queue are no negatives of which query. The paper has no such mask.

    Returns:
        The mean over the batch, 0 or above: log(1 + K) where nothing is told apart, 0 where no negatives are left.
    """
    positive = (query * keys).sum(1, keepdim=True) / temperature
    negative = kept_apart(similarities(query, queue), temperature, same)
    first = torch.zeros(len(query), dtype=torch.int64, device=query.device)
    return F.cross_entropy(torch.cat((positive, negative), dim=1), first)


@contrastive(MocoV2Settings)
class MocoV2Round(ContrastiveRound):
    """MoCo v2 (Chen, Fan, Girshick, He 2020) at a site.

    In a step, as in the official code: the query's pass, the momentum update, the keys' pass without gradient, the
    loss, and only then the new keys enter the queue. Queue and key network stay at the site. Where the official code
    fills a new queue with random directions, ours has no negatives there.

    Raises:
        SettingsError: The network has no contrastive head.
        TrainingError: The site has fewer images than a batch.
    """

    def __init__(self, context: ContrastiveContext, settings: MocoV2Settings) -> None:
        self._net = context.net
        self._settings = settings
        self._key = KeyNetwork(context, settings)
        length = queue_length(settings.queue, context.count, context.batch_size)
        if length == 0:
            raise TrainingError(
                f"the site's training images are fewer than one batch of {context.batch_size}: "
                "lower training.batch_size or let the site add images."
            ).with_note(f"There are {context.count} training images.")
        self._queue = KeyQueue(length, context.head.width, context.device)
        if settings.queue_start == "refill":
            self._refill(context)
        elif settings.queue_start == "keep":
            self._queue.recall(context.memory)

    def loss(self, views: Views, clock: Clock) -> Tensor:
        """See `ContrastiveRound.loss`."""
        query = unit(self._net.embedded(views.first))  # q
        self._key.follow(self._settings.momentum)
        keys = self._key.keys(views.second, clock.epoch, clock.step)  # k+
        images, patients = views.images.to(keys.device), views.patients.to(keys.device)
        same = self._queue.no_negatives(images, patients, self._settings.mask_patients)
        loss = info_nce(query, keys, self._queue.rows, self._settings.temperature, same)
        self._queue.enqueue(keys, images, patients)
        return loss

    def leaving(self) -> Tensors:
        """See `ContrastiveRound.leaving`."""
        return self._key.leaving()

    def finish(self) -> Tensors:
        """See `ContrastiveRound.finish`: the key network unless it begins anew or travels, the queue if kept."""
        queue = self._queue.memory() if self._settings.queue_start == "keep" else {}
        return {**self._key.memory(), **queue}

    def _refill(self, context: ContrastiveContext) -> None:
        """Fill the queue from a random choice of the site's images, in batches like those of training."""
        length = len(self._queue.rows)
        chosen = generator(*context.seed, "refill").permutation(context.count)[:length]
        for number, images in enumerate(np.array_split(chosen, max(1, length // context.batch_size))):
            keys = self._key.keys(context.first_views(images).to(context.device), "refill", number)
            at = torch.from_numpy(images)
            self._queue.enqueue(keys, at, context.patients.cpu()[at])
