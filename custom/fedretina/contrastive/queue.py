"""The queue of MoCo v2: the latest keys of a site, first in, first out."""

from __future__ import annotations

import torch
from torch import Tensor

from fedretina.contrastive.similarity import alike
from fedretina.exchange.payload import Tensors

QUEUE = "queue:"
"""Prefix of the queue in a site's memory."""
_EMPTY = -1


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
