"""What travels: orders from the server to a site, tensors and named scalars both ways, each under a stamp."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch

from fedretina.errors import RefusedError
from fedretina.settings.scalars import Task
from fedretina.told import one_line

Tensors = Mapping[str, torch.Tensor]
ATTEMPTS = 1000


class Stamp(NamedTuple):
    """Where a message belongs.

    Attributes:
        run: Name of the run; also a folder's name, so letters, digits, '.', '_' and '-' only.
        phase: Name of the phase within the run.
        round: Round within the phase, from 0.
        attempt: How often this round was begun before; a repeat refuses the answers of earlier attempts. Thousands
            (`ATTEMPTS`) count how often the run went back, so that answers to what it dropped are refused as well.
        digest: SHA-256 over settings, partition and version (`Experiment.digest`).
    """

    run: str
    phase: str
    round: int
    attempt: int
    digest: str

    @property
    def names(self) -> frozenset[str]:
        """Names in it that both ends hold, so that a sentence with them may leave (`told.told`)."""
        return frozenset({self.run, self.phase, self.digest[:12]})

    def require(self, expected: Stamp) -> None:
        """Refuse a message whose stamp differs from the expected one.

        Raises:
            RefusedError: A sentence that names the field that differs.
        """
        if self.run != expected.run:
            raise RefusedError(f"the message belongs to run {self.run[:100]!r}, this is run {expected.run!r}.")
        self.require_digest(expected.digest)
        if self[1:4] != expected[1:4]:
            raise RefusedError(
                f"the message is for {one_line(self.phase, 100)} round {self.round} attempt {self.attempt}, "
                f"expected {expected.phase} round {expected.round} attempt {expected.attempt}."
            )

    def require_digest(self, digest: str) -> None:
        """Refuse a message from an end with other settings, another partition or another version.

        Raises:
            RefusedError: A sentence with the first digits of both digests.
        """
        if self.digest != digest:
            raise RefusedError(
                f"the two ends disagree on settings, network partition or version (digest {self.digest[:12]} "
                f"against {digest[:12]}): install the same fedretina at both ends and send the same job to both."
            )


class Payload(NamedTuple):
    """Tensors and scalars under one stamp.

    Attributes:
        tensors: By key of the network's state; the partition says of which kind each key is.
        scalars: Named numbers; a row declares which may leave a site.
        stamp: Where the payload belongs.
        release: Where tensors are encrypted, the digest of all tensors before that: the same numbers get other bytes
            each time. It stays at the site; empty where nothing is encrypted.
    """

    tensors: Tensors
    scalars: Mapping[str, float]
    stamp: Stamp
    release: str = ""


class Order(NamedTuple):
    """What the server asks of one site.

    Attributes:
        task: What to do.
        stamp: Where the answer belongs.
        accepted: Step of the site's last update that the server accepted; None before the first.
        best: Best step so far by mean validation AUC, the last one without labels before any; after `validate` the
            chosen one. None before the first. What a site kept for older steps it may forget.
        share: The site's training images over the mean of all sites, as far as the server knows; else 1.
        weight: The site's weight in the aggregate of step `accepted`; None before the first. Not the others'.
        curve: Of `finalise`, the other sites' ill patients by chance of disease (`evaluation.referral_curve`), summed;
            empty where they let none go.
    """

    task: Task
    stamp: Stamp
    accepted: int | None
    best: int | None
    share: float = 1.0
    weight: float | None = None
    curve: tuple[int, ...] = ()


def tensors_digest(tensors: Tensors) -> str:
    """SHA-256 over keys, types, shapes and bytes, in the order of the keys."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensors_bytes(tensors: Tensors) -> int:
    """Bytes of all tensors as they are sent."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
