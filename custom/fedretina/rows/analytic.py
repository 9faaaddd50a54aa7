"""The row of heads from sums: an encoder that does not train, one message up and one down."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedretina.rows.base import Row

ANALYTIC_ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "analytic": Row(
            "Heads from sums",
            "ours: ridge regression on features of an encoder that does not train, from the sites' sums alone",
            {
                "phases": ({"name": "sums", "rounds": 1, "sums": {}},),
                "classes": ("no_dr", "mild", "moderate", "severe", "proliferative"),
                # All of it stands still, so that it answers from the kept features that the heads are fitted on.
                "network": {"head": {"layout": "linear"}, "frozen": "all", "frozen_cache": "lenient"},
                "objective": {"name": "cross_entropy"},
                "exchange": {"personal": "everything"},
                "aggregation": {"rule": "uniform"},
                "evaluation": {"estimator": "softmax_gated", "auc_input": "logits_softmax"},
            },
        ),
    }
)
