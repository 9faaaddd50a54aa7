"""The rows of FedEE and of the ensembles that it is compared with.

Exits stay at their site under every strategy. On fundus photographs, whose grades differ between sites, the final head
stays too; where grades agree a job lets it travel, as in the paper: `exchange: {personal: exits}, grades: K`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.row import Row

_PAPER = "Zhang et al., FedEE"
_EXITS: Mapping[str, Any] = {
    "network": {"exits": {}, "head": {"layout": "linear"}},
    "objective": {"name": "cross_entropy"},
    "evaluation": {"estimator": "softmax_mean", "auc_input": "answer"},
}
_AVERAGED: Mapping[str, Any] = {
    **_EXITS,
    "exchange": {"personal": "head", "batchnorm": "shared_all"},
    "aggregation": {"rule": "samples"},
}
_LOCAL_NORM: Mapping[str, Any] = {
    **_EXITS,
    "exchange": {"personal": "head", "batchnorm": "local_all"},
    "aggregation": {"rule": "uniform"},
}
_EVIDENTIAL: Mapping[str, Any] = {
    **_LOCAL_NORM,
    "objective": {"name": "tweu"},
    "aggregation": {"rule": "uaw"},
}

FEDEE_ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "fedee": Row(
            "FedEE",
            f"{_PAPER}: early exits at home, FedAvg of the rest; mean softmax of all exits and its entropy",
            _AVERAGED,
        ),
        "fedee_fedprox": Row(
            "FedEE under FedProx",
            f"{_PAPER}, Table 10",
            {**_AVERAGED, "correction": {"name": "fedprox"}},
        ),
        "fedee_fedbn": Row(
            "FedEE under FedBN",
            f"{_PAPER}, Table 10",
            _LOCAL_NORM,
        ),
        "fedee_fedap": Row(
            "FedEE under FedAP",
            f"{_PAPER}, Table 10",
            {**_LOCAL_NORM, "aggregation": {"rule": "similarity"}},
        ),
        "mc_dropout": Row(
            "MC-dropout, personal head",
            f"Gal and Ghahramani, ICML 2016, as {_PAPER} compares with it: five passes",
            {
                **_AVERAGED,
                "network": {"dropout": {"rate": 0.2}, "head": {"layout": "linear"}},
                "evaluation": {**_EXITS["evaluation"], "passes": 5},
            },
        ),
        "fedee_tweu": Row(
            "FedUAA with early exits",
            "not published: TWEU exits and head, UAW weights; means of alpha/S and u",
            {**_EVIDENTIAL, "evaluation": {"estimator": "evidence_mean", "auc_input": "answer"}},
        ),
        "fedee_dempster": Row(
            "FedUAA with early exits, fused by Dempster's rule",
            "not published: TWEU exits and head, UAW weights; the members' opinions fused as in TMC",
            {**_EVIDENTIAL, "evaluation": {"estimator": "evidence_dempster", "auc_input": "answer"}},
        ),
    }
)
