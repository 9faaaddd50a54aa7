"""What travels: orders from the server to a site, tensors and named scalars both ways, and which scalars may."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

from fedretina.exchange.min_count import SCALARS as COUNTS
from fedretina.exchange.stamp import Stamp

Tensors = Mapping[str, torch.Tensor]
Task = Literal["prepare", "pretrain", "train", "validate", "tune", "calibrate", "finalise"]
_MANY = 1e12
_BOUNDED: Mapping[str, tuple[float, float]] = {
    "auc": (0, 1),
    "accuracy": (0, 1),
    "kappa": (-1, 1),
    "error_auroc": (0, 1),
    "brier": (0, 2),
    "referable_auc": (0, 1),
    "referable_sensitivity": (0, 1),
    "referable_specificity": (0, 1),
}
"""Figures of the test split that come with the bounds of an interval."""
RANGES: Mapping[str, tuple[float, float, bool]] = {
    # name: lowest, highest, whether every site must bring it; others may be undefined, or held back by a site
    "theta": (1e-9, 2.0, True),
    "images": (1, _MANY, False),
    "contrast_loss": (0, 1000, False),
    "val_auc": (0, 1, False),
    "val_accuracy": (0, 1, False),
    "grades": (2, 1000, True),
    "images_train": (1, _MANY, False),
    "images_val": (1, _MANY, False),
    "images_test": (1, _MANY, False),
    "images_pretrain": (1, _MANY, False),
    "bad_files": (0, _MANY, False),
    "synthetic": (0, 1, True),
    "test_auc": (0, 1, False),
    "test_auc_logits": (0, 1, False),
    "test_accuracy": (0, 1, False),
    "test_kappa": (-1, 1, False),
    "test_error_auroc": (0, 1, False),
    "test_ece": (0, 1, False),
    "test_brier": (0, 2, False),
    **{f"test_{name}": (*bounds, False) for name, bounds in _BOUNDED.items() if name.startswith("referable")},
    **{f"test_{name}_{end}": (*bounds, False) for name, bounds in _BOUNDED.items() for end in ("low", "high")},
    **{name: (*bounds, False) for name, bounds in COUNTS.items()},
}
_BLIND = frozenset({"images_pretrain"})
BY_TASK: Mapping[Task, frozenset[str]] = {
    "prepare": frozenset({"images"}),
    "pretrain": frozenset({"images", "contrast_loss"}),
    "train": frozenset({"theta", "images", "val_auc", "val_accuracy"}),
    "validate": frozenset({"val_auc", "val_accuracy"}),
    "tune": frozenset({"val_auc", "val_accuracy"}),
    "calibrate": frozenset(),
    "finalise": frozenset(name for name in RANGES if name.startswith(("test_", "images_")) and name not in _BLIND)
    | frozenset(COUNTS)
    | {"grades", "bad_files", "synthetic"},
}
"""What each task may bring. Losses and error counts say more about a site than the method needs, so they stay.

The contrastive loss is the exception: it knows no label, and it is the only sign of life of a phase without labels. A
site may hold it back.
"""


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


def allowed_scalars(task: Task, supervised: bool) -> frozenset[str]:
    """What a task may bring in a run, with a phase that trains with labels or without any.

    A run without labels ends with an encoder: there is no answer to have figures of, and there may be no grades.
    """
    if task == "finalise" and not supervised:
        return _BLIND | {"bad_files", "synthetic"}
    return BY_TASK[task]
