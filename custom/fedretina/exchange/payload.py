"""What travels: orders from the server to a site, tensors and named scalars both ways."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch

from fedretina.exchange.stamp import Stamp
from fedretina.settings.scalars import Task

Tensors = Mapping[str, torch.Tensor]


class Payload(NamedTuple):
    """Tensors and scalars under one stamp.

    Attributes:
        tensors: By key of the network's state; the partition says of which kind each key is.
        scalars: Named numbers; a row declares which may leave a site.
        stamp: Where the payload belongs.
    """

    tensors: Tensors
    scalars: Mapping[str, float]
    stamp: Stamp


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
    """

    task: Task
    stamp: Stamp
    accepted: int | None
    best: int | None
    share: float = 1.0
    weight: float | None = None


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
