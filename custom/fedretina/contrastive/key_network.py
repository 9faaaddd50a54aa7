"""The key network of momentum contrast: it follows the query network and gives the keys."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedretina.contrastive.objective import ContrastiveContext, alike, unit
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.seeds import brought, generator
from fedretina.settings.contrastive import MomentumSettings

KEY = "key:"
"""Prefix of the key network in a site's memory."""
QUEUE = "queue:"
"""Prefix of the queue in a site's memory."""
_EMPTY = -1


class KeyNetwork:
    """A second encoder and projector (theta_k) that no gradient reaches.

    A round begins with a copy of the query network, BatchNorm's statistics included; with key_sync "ema" what the site
    kept of its own is put in its place. With "aggregate" it is what the server sent, and of what does not travel, such
    as BatchNorm that stays at home, the site's own.

    Args:
        context: Network and memory of the round.
        settings: Momentum's and BatchNorm's way.

    Raises:
        SettingsError: The network has no contrastive head.
    """

    def __init__(self, context: ContrastiveContext, settings: MomentumSettings) -> None:
        self._query = context.net
        self._settings = settings
        self._seed = context.seed
        self._parts: dict[str, nn.Module] = {"encoder": context.net.encoder, "projector": context.head.projector}
        self._sent = {_own(key): key for key in context.keys}
        self.module = nn.ModuleDict({name: copy.deepcopy(part) for name, part in self._parts.items()})
        self.module.requires_grad_(False).train(settings.key_bn != "eval")
        kept = {name.removeprefix(KEY): value for name, value in context.memory.items() if name.startswith(KEY)}
        if settings.key_sync == "ema" and kept:
            self.module.load_state_dict(kept, strict=True)
        if settings.key_sync == "aggregate":
            sent = {own: context.keys[key] for own, key in self._sent.items()}
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
            embeddings = torch.cat([self._embedded(views[_at(part, views)]) for part in parts])
            return unit(embeddings[_at(np.argsort(np.concatenate(parts)), views)])

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


def _at(places: NDArray[np.int64], like: Tensor) -> Tensor:
    """Places in a batch, where the batch is, and nobody waits until they are there."""
    return brought(torch.from_numpy(places), like.device)


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


def queue_length(most: int, images: int, batch_size: int) -> int:
    """The length K_eff = min(K, floor(n / B) B): no longer than one epoch of whole batches.

    A longer queue would hold several ages of each image; the 65536 of the OCT paper is more than any of its sites has.

    Args:
        most: K of the settings.
        images: Training images of the site (n).
        batch_size: Images per step (B).

    Returns:
        0 if the site has fewer images than a batch.
    """
    return min(most, images // batch_size * batch_size)


class KeyQueue:
    """A ring of keys with the numbers of their images and patients.

    New keys take the place of the oldest. The tensors are replaced, never written into: a loss that was computed with
    them can still be differentiated after keys have come in.

    Attributes:
        rows: Keys of length 1, float32 [K, D]; zeros where no key has come in yet.
        images: int64 [K], number of each key's image; -1 where there is none.
        patients: int64 [K].
        at: The row that the next key takes, 0 to K - 1.

    Args:
        length: K, 1 or more.
        width: D.
        device: Where it stands.
    """

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        self.rows = torch.zeros(length, width, device=device)
        self.images = torch.full((length,), _EMPTY, device=device)
        self.patients = torch.full((length,), _EMPTY, device=device)
        self.at = 0

    def recall(self, memory: Tensors) -> None:
        """Go on with the queue of a site's memory; one of another size is that of other data and is left out."""
        rows = memory.get(f"{QUEUE}rows")
        if rows is None or rows.shape != self.rows.shape:
            return
        device = self.rows.device
        self.rows = rows.to(device)
        self.images, self.patients = (memory[f"{QUEUE}{name}"].to(device) for name in ("images", "patients"))
        self.at = int(memory[f"{QUEUE}at"])

    def enqueue(self, keys: Tensor, images: Tensor, patients: Tensor) -> None:
        """Take in keys in their order; of more than K the last K stay.

        Args:
            keys: [B, D], of length 1; no gradient is kept.
            images: int64 [B], 0 or more.
            patients: int64 [B].
        """
        length, device = len(self.rows), self.rows.device
        rows = (torch.arange(self.at, self.at + len(keys), device=device) % length)[-length:]
        self.rows = self.rows.index_copy(0, rows, keys.detach().to(self.rows)[-length:])
        self.images = self.images.index_copy(0, rows, images.to(device)[-length:])
        self.patients = self.patients.index_copy(0, rows, patients.to(device)[-length:])
        self.at = (self.at + len(keys)) % length

    def no_negatives(self, images: Tensor, patients: Tensor, mask_patients: bool) -> Tensor:
        """Tell which rows are no negatives of which images: bool [B, K]; a row without a key is no one's."""
        same = alike(images, patients, self.images, self.patients, mask_patients)
        return same | (self.images == _EMPTY)[None, :]

    def memory(self) -> Tensors:
        """Return what `recall` needs, on the CPU."""
        found = {"rows": self.rows, "images": self.images, "patients": self.patients, "at": torch.tensor(self.at)}
        return {f"{QUEUE}{name}": value.detach().to("cpu", copy=True) for name, value in found.items()}
