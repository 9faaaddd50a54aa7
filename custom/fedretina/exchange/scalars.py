"""The named scalars that may travel, with their ranges: one list for sites, filters, server and documentation."""

from __future__ import annotations

from collections.abc import Mapping

from fedretina.exchange.payload import Task

_MANY = 1e12
RANGES: Mapping[str, tuple[float, float, bool]] = {
    # name: lowest, highest, whether every site must bring it; others may be undefined, or held back by a site
    "theta": (1e-9, 2.0, True),
    "images": (1, _MANY, False),
    "val_auc": (0, 1, False),
    "val_accuracy": (0, 1, False),
    "grades": (2, 1000, True),
    "images_train": (1, _MANY, False),
    "images_val": (1, _MANY, False),
    "images_test": (1, _MANY, False),
    "bad_files": (0, _MANY, False),
    "synthetic": (0, 1, True),
    "test_auc": (0, 1, False),
    "test_auc_logits": (0, 1, False),
    "test_accuracy": (0, 1, False),
    "test_kappa": (-1, 1, False),
    "test_error_auroc": (0, 1, False),
    "test_ece": (0, 1, False),
    "test_brier": (0, 2, False),
}

BY_TASK: Mapping[Task, frozenset[str]] = {
    "prepare": frozenset({"images"}),
    "train": frozenset({"theta", "images", "val_auc", "val_accuracy"}),
    "validate": frozenset({"val_auc", "val_accuracy"}),
    "tune": frozenset({"val_auc", "val_accuracy"}),
    "finalise": frozenset(name for name in RANGES if name.startswith("test_") or name.startswith("images_"))
    | {"grades", "bad_files", "synthetic"},
}
"""What each task may bring. Losses and error counts say more about a site than the method needs, so they stay."""
