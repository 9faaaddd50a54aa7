"""The figures that rows are compared by: their names in print, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Measure(NamedTuple):
    """A figure of a test split.

    Attributes:
        title: In print.
        higher: Whether more is better.
        meaning: What it tells, in a few words.
        drawn: Whether it is compared over drawn patients too; the calibration error cannot be (see
            `ResampledFigures`).
    """

    title: str
    higher: bool
    meaning: str
    drawn: bool = True


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "auc": Measure("macro AUC", True, "ranks the grades, each against the rest"),
        "referable_auc": Measure("referable AUC", True, "ranks eyes that a doctor must see"),
        "kappa": Measure("quadratic kappa", True, "agreement of grades, far misses count more"),
        "accuracy": Measure("accuracy", True, "share of right grades"),
        "error_auroc": Measure("error AUROC", True, "whether u finds the wrong answers"),
        "aurc": Measure("AURC", False, "error rate while the surest answers are kept"),
        "ece": Measure("ECE", False, "gap between claimed and true share of right answers", drawn=False),
        "brier": Measure("Brier score", False, "squared error of the probabilities, 0 to 2"),
    }
)
MAIN = "auc"
DISEASE = "referable_auc"
