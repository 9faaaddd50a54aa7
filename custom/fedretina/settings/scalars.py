"""The named scalars that may travel, with their ranges: one list for sites, filters, server and documentation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from fedretina.settings.columns import GROUP_SUMS

Task = Literal["prepare", "pretrain", "train", "sums", "validate", "tune", "calibrate", "curve", "finalise"]

_MANY = 1e12

CONFIDENCE_BINS = 15

UNCERTAINTY_BINS = 20

MOST_GRADES = 20

MIN_COUNT = 5


def _counts() -> dict[str, tuple[float, float]]:
    names: dict[str, tuple[float, float]] = {}
    for at in range(CONFIDENCE_BINS):
        names[f"bin_confidence_{at:02}_images"] = (0, _MANY)
        names[f"bin_confidence_{at:02}_right"] = (0, _MANY)
        names[f"bin_confidence_{at:02}_confidence_sum"] = (0, _MANY)
    for at in range(UNCERTAINTY_BINS):
        names[f"bin_uncertainty_{at:02}_images"] = (0, _MANY)
        names[f"bin_uncertainty_{at:02}_wrong"] = (0, _MANY)
    for true in range(MOST_GRADES):
        names |= {confusion_name(true, answer): (1, _MANY) for answer in range(MOST_GRADES)}
    return names


def confusion_name(true: int, answer: int) -> str:
    """Name of the scalar that counts the images of a true grade with an answered one."""
    return f"confusion_{true:02}_{answer:02}"


COUNTS: Mapping[str, tuple[float, float]] = MappingProxyType(_counts())
"""Every count of answers that `exchange.min_count.encode` can give, with its lowest and highest value."""

CURVE_EDGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75)
"""Where the bins begin in which ill patients are counted by their chance of disease; one more is for those whom another
reason refers. They are fine where a threshold may lie that lets few pass."""


def curve_name(at: int) -> str:
    """Name of the scalar that counts the ill patients of a bin; the last is of those whom another reason refers."""
    return f"curve_{at:02}"


CURVE: Mapping[str, tuple[float, float]] = MappingProxyType(
    # No site's min_count is below 2, so a smaller count is no honest one.
    {curve_name(at): (2, _MANY) for at in range(len(CURVE_EDGES) + 1)}
)
"""Every such name, with its lowest and highest value."""

_BOUNDED: Mapping[str, tuple[float, float]] = {
    "auc": (0, 1),
    "auc_supported": (0, 1),
    "accuracy": (0, 1),
    "kappa": (-1, 1),
    "error_auroc": (0, 1),
    "brier": (0, 2),
    "referable_auc": (0, 1),
    "referable_sensitivity": (0, 1),
    "referable_specificity": (0, 1),
    "threatening_auc": (0, 1),
    "threatening_sensitivity": (0, 1),
    "threatening_specificity": (0, 1),
}
"""Figures of the test split that come with the bounds of an interval."""

DISEASES = ("referable", "threatening")
"""Diseases that a scheme may tell apart; figures for one begin with its name."""

RANGES: Mapping[str, tuple[float, float, bool]] = {
    # name: lowest, highest, whether every site must bring it; others may be undefined, or held back by a site
    "theta": (1e-9, 2.0, True),
    "images": (1, _MANY, False),
    "patients": (1, _MANY, False),
    "contrast_loss": (0, 1000, False),
    "val_auc": (0, 1, False),
    "val_auc_supported": (0, 1, False),
    "val_accuracy": (0, 1, False),
    "grades": (2, 1000, True),
    "images_train": (1, _MANY, False),
    "images_val": (1, _MANY, False),
    "images_test": (1, _MANY, False),
    "images_pretrain": (1, _MANY, False),
    "bad_files": (0, _MANY, False),
    "synthetic": (0, 1, True),
    "verdict": (-1, 1, False),
    "test_auc": (0, 1, False),
    "test_auc_supported": (0, 1, False),
    "test_grades_supported": (0, 1000, False),
    "test_auc_logits": (0, 1, False),
    "test_accuracy": (0, 1, False),
    "test_kappa": (-1, 1, False),
    "test_error_auroc": (0, 1, False),
    "test_ece": (0, 1, False),
    "test_brier": (0, 2, False),
    **{f"test_{name}": (*bounds, False) for name, bounds in _BOUNDED.items() if name.startswith(DISEASES)},
    **{f"test_{name}_{end}": (*bounds, False) for name, bounds in _BOUNDED.items() for end in ("low", "high")},
    **{name: (*bounds, False) for name, bounds in COUNTS.items()},
    **dict.fromkeys(GROUP_SUMS, (0, _MANY, False)),
    **{name: (*bounds, False) for name, bounds in CURVE.items()},
}

FOLLOWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "patients": ("images",),
        "images_train": ("images",),
        "val_auc_supported": ("val_auc",),
        **dict.fromkeys(("test_auc_supported", "test_grades_supported", "test_auc_logits"), ("test_auc",)),
        **{f"test_{name}_{end}": (f"test_{name}",) for name in _BOUNDED for end in ("low", "high")},
        **{f"test_auc_supported_{end}": ("test_auc_supported", f"test_auc_{end}") for end in ("low", "high")},
    }
)
"""Scalars that say much the same as others: who holds one of those back holds these back as well, see `held_back`."""


def held_back(names: Iterable[str], held: Collection[str]) -> set[str]:
    """Those of some scalars that stay where others are held back: these themselves, and what says much the same.

    Args:
        names: Scalars that would leave.
        held: What is held back.
    """

    def stays(name: str) -> bool:
        return name in held or any(map(stays, FOLLOWS.get(name, ())))

    return set(filter(stays, names))


_VALIDATED = frozenset({"val_auc", "val_auc_supported", "val_accuracy"})

_BLIND = frozenset({"images_pretrain"})

BY_TASK: Mapping[Task, frozenset[str]] = {
    "prepare": frozenset({"images"}),
    "pretrain": frozenset({"images", "patients", "contrast_loss"}),
    "train": frozenset({"theta", "images", "patients"}) | _VALIDATED,
    "sums": frozenset(),
    "validate": _VALIDATED,
    "tune": _VALIDATED,
    "calibrate": frozenset(),
    "curve": frozenset(CURVE),
    "finalise": frozenset(name for name in RANGES if name.startswith(("test_", "images_")) and name not in _BLIND)
    | frozenset(COUNTS)
    | frozenset(GROUP_SUMS)
    | {"grades", "bad_files", "synthetic", "verdict"},
}
"""What each task may bring. Losses and error counts say more about a site than the method needs, so they stay.

The contrastive loss is the exception: it knows no label, and it is the only sign of life of a phase without labels. A
site may hold it back.
"""


def allowed_scalars(task: Task, supervised: bool) -> frozenset[str]:
    """What a task may bring in a run, with a phase that trains with labels or without any.

    A run without labels ends with an encoder: there is no answer to have figures of, and there may be no grades.
    """
    if task == "finalise" and not supervised:
        return _BLIND | {"bad_files", "synthetic"}
    return BY_TASK[task]
