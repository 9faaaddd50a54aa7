"""The key network of momentum contrast: it follows the query network and gives the keys."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedretina.contrastive.ground import ContrastiveGround
from fedretina.contrastive.similarity import unit
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.seeds import generator
from fedretina.settings.contrastive import MomentumSettings

KEY = "key:"
"""Prefix of the key network in a site's memory."""


class KeyNetwork:
    """A second encoder and projector (theta_k) that no gradient reaches.

    A round begins with a copy of the query network, BatchNorm's statistics included; with key_sync "ema" what the site
    kept of its own is put in its place. With "aggregate" it is what the server sent, and of what does not travel, such
    as BatchNorm that stays at home, the site's own.

    Args:
        ground: Network and memory of the round.
        settings: Momentum's and BatchNorm's way.

    Raises:
        SettingsError: The network has no contrastive head.
    """

    def __init__(self, ground: ContrastiveGround, settings: MomentumSettings) -> None:
        self._query = ground.net
        self._settings = settings
        self._seed = ground.seed
        self._parts: dict[str, nn.Module] = {"encoder": ground.net.encoder, "projector": ground.head.projector}
        self._sent = {_own(key): key for key in ground.keys}
        self.module = nn.ModuleDict({name: copy.deepcopy(part) for name, part in self._parts.items()})
        self.module.requires_grad_(False).train(settings.key_bn != "eval")
        kept = {name.removeprefix(KEY): value for name, value in ground.memory.items() if name.startswith(KEY)}
        if settings.key_sync == "ema" and kept:
            self.module.load_state_dict(kept, strict=True)
        if settings.key_sync == "aggregate":
            sent = {own: ground.keys[key] for own, key in self._sent.items()}
            self.module.load_state_dict({**self.module.state_dict(), **kept, **sent}, strict=True)

    def follow(self, momentum: float) -> None:
        """Move towards the query network: theta_k <- m theta_k + (1 - m) theta_q (OCT paper Eq. 5).

        BatchNorm's statistics are the key network's own, as in the official code. Only one in evaluation mode, which
        gathers none, takes over the query network's.
        """
        for name, query in self._parts.items():
            follow(self.module[name], query, momentum)
            if self._settings.key_bn == "eval":
                for mine, other in zip(self.module[name].buffers(), query.buffers(), strict=True):
                    mine.copy_(other)

    def keys(self, views: Tensor, *purpose: int | str) -> Tensor:
        """Return the keys of views [B, 3, S, S]: float32 [B, D], of length 1, without gradient.

        Args:
            views: Images in [0, 1] on the device of the network.
            purpose: What the shuffling of "split" is for, within the round.
        """
        split = self._settings.key_bn == "split"
        parts = shuffled_parts(len(views), self._settings.splits if split else 1, (*self._seed, *purpose, "split"))
        with torch.no_grad():
            embeddings = torch.cat([self._embedded(views[part]) for part in parts])
            return unit(embeddings[np.argsort(np.concatenate(parts))])

    def memory(self) -> Tensors:
        """What the next round needs of it: nothing, unless it goes on with its own weights; what travels comes back."""
        if self._settings.key_sync == "reset":
            return {}
        stays = {key: value for key, value in self.module.state_dict().items() if key not in self._sent}
        return {f"{KEY}{key}": value.detach().to("cpu", copy=True) for key, value in stays.items()}

    def leaving(self) -> Tensors:
        """What goes up of it, by the keys under which it came down."""
        state = self.module.state_dict()
        return {key: state[own].detach() for own, key in self._sent.items()}

    def _embedded(self, views: Tensor) -> Tensor:
        features: Tensor = self.module["encoder"](self._query.normalised(views))
        out: Tensor = self.module["projector"](features)
        return out


def _own(key: str) -> str:
    """Name within the key network of a tensor of the network that it follows."""
    return key.removeprefix("contrast.")


def follow(key: nn.Module, query: nn.Module, momentum: float) -> None:
    """Move the parameters of one module towards another's in place; buffers stay.

    Args:
        key: The module that moves (theta_k).
        query: One of the same form (theta_q).
        momentum: m in [0, 1]; 0 copies, 1 does not move.
    """
    with torch.no_grad():
        for mine, other in zip(key.parameters(), query.parameters(), strict=True):
            mine.mul_(momentum).add_(other, alpha=1 - momentum)


def rising_momentum(start: float, clock: Clock) -> float:
    """MoCo v3's momentum at a step of the phase: from its start along a cosine to 1.

    Args:
        start: m at the first step, 0 to 1.
        clock: Where training stands.
    """
    done = (clock.round + (clock.epoch + clock.step / clock.steps) / clock.epochs) / clock.rounds
    return 1 - (1 - start) * (1 + math.cos(math.pi * done)) / 2


def shuffled_parts(images: int, splits: int, seed: tuple[int | str, ...]) -> list[NDArray[np.int64]]:
    """Divide a batch at random into parts of two images at least.

    Args:
        images: Images of the batch (B), 1 or more.
        splits: Parts at most; one part keeps the order.
        seed: What the draw is for.

    Returns:
        The positions of each part; together each of 0 to B - 1 once. Sizes differ by one at most.
    """
    parts = max(1, min(splits, images // 2))
    order = np.arange(images) if parts == 1 else generator(*seed).permutation(images)
    return [part.astype(np.int64) for part in np.array_split(order, parts)]
