"""Checks that people run over parts of their own, as the project runs them over its own."""

from __future__ import annotations

from fedretina.testing.codec import check_codec
from fedretina.testing.methods import check_correction, check_encoder, check_estimator, check_row, check_rule
from fedretina.testing.modality import check_modality
from fedretina.testing.reader import check_reader

__all__ = [
    "check_codec",
    "check_correction",
    "check_encoder",
    "check_estimator",
    "check_modality",
    "check_reader",
    "check_row",
    "check_rule",
]
