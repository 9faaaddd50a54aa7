"""The rows of FedUAA and of the methods that it is compared with, on fundus photographs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.rows.base import Row

_FEDUAA = "Wang et al., FedUAA, MICCAI 2023"
_SOFTMAX = {"name": "cross_entropy"}
_ANSWER_SOFTMAX = {"estimator": "softmax", "auc_input": "logits_softmax"}
_ANSWER_EVIDENCE = {"estimator": "evidence", "auc_input": "expected_probability"}
_AVERAGED: Mapping[str, Mapping[str, Any]] = {
    "objective": _SOFTMAX,
    "exchange": {"personal": "head", "batchnorm": "shared_all"},
    "aggregation": {"rule": "samples"},
    "evaluation": _ANSWER_SOFTMAX,
}
_ALONE: Mapping[str, Mapping[str, Any]] = {
    "exchange": {"personal": "everything"},
    "aggregation": {"rule": "uniform"},
}
_HEAD_AND_NORM_STAY = {"personal": "head", "batchnorm": "local_all"}
_UAA: Mapping[str, Mapping[str, Any]] = {
    "objective": {"name": "tweu"},
    "exchange": _HEAD_AND_NORM_STAY,
    "aggregation": {"rule": "uaw"},
    "evaluation": _ANSWER_EVIDENCE,
}

FUNDUS_ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "singleset": Row(
            "SingleSet",
            f"{_FEDUAA}, Table 1: no exchange",
            {**_ALONE, "objective": _SOFTMAX, "evaluation": _ANSWER_SOFTMAX},
        ),
        "singleset_eu": Row(
            "SingleSet + EU",
            f"{_FEDUAA}, Table 2: no exchange, evidential head without warming",
            {**_ALONE, "objective": {"name": "evidential"}, "evaluation": _ANSWER_EVIDENCE},
        ),
        "singleset_tweu": Row(
            "SingleSet + TWEU",
            f"{_FEDUAA}, Table 2: no exchange, TWEU head",
            {**_ALONE, "objective": {"name": "tweu"}, "evaluation": _ANSWER_EVIDENCE},
        ),
        "centralised": Row(
            "Centralised",
            "images of sites with the same grades in one place; the plain loop only",
            {**_ALONE, "objective": _SOFTMAX, "evaluation": _ANSWER_SOFTMAX, "pooled": True},
        ),
        "fedavg": Row(
            "FedAvg, personal head",
            "McMahan et al., AISTATS 2017; where grades differ the last layer stays, so this is FedPer too",
            _AVERAGED,
        ),
        "fedprox": Row(
            "FedProx, personal head",
            "Li et al., MLSys 2020: a proximal term",
            {**_AVERAGED, "correction": {"name": "fedprox"}},
        ),
        "fedavg_ft": Row(
            "FedAvg + FT",
            "FedAvg, then fine-tuning at each site",
            {**_AVERAGED, "tune": {"epochs": 5}},
        ),
        "fedprox_ft": Row(
            "FedProx + FT",
            "FedProx, then fine-tuning at each site",
            {**_AVERAGED, "correction": {"name": "fedprox"}, "tune": {"epochs": 5}},
        ),
        "ditto": Row(
            "Ditto, personal head",
            "Li et al., ICML 2021: a model of the site's own beside the one that travels, held to it by a proximal "
            "term; twice the passes over the data",
            {**_AVERAGED, "tune": {"epochs": 1, "when": "rounds"}},
        ),
        "fedrep": Row(
            "FedRep",
            "Collins et al., ICML 2021: the head trains first, then the encoder",
            {
                **_AVERAGED,
                "training": {"stretches": ({"train": "head", "epochs": 5}, {"train": "encoder", "epochs": 1})},
            },
        ),
        "scaffold": Row(
            "SCAFFOLD, personal head",
            "Karimireddy et al., ICML 2020: control variates",
            {**_AVERAGED, "aggregation": {"rule": "uniform"}, "correction": {"name": "scaffold"}},
        ),
        "feddyn": Row(
            "FedDyn, personal head",
            "Acar et al., ICLR 2021: a proximal term whose centre follows the site's drift",
            {**_AVERAGED, "aggregation": {"rule": "uniform"}, "correction": {"name": "feddyn"}},
        ),
        "feddc": Row(
            "FedDC, personal head",
            "Gao et al., CVPR 2022: drift and gradient memories",
            {**_AVERAGED, "aggregation": {"rule": "uniform"}, "correction": {"name": "feddc"}},
        ),
        "moon": Row(
            "MOON on pooled features, personal head",
            "Li et al., CVPR 2021, as FedUAA compares with it: no projection",
            {**_AVERAGED, "correction": {"name": "moon"}},
        ),
        "moon_projected": Row(
            "MOON, personal head",
            "Li et al., CVPR 2021: contrast on a projection of 256",
            {**_AVERAGED, "network": {"projector": 256}, "correction": {"name": "moon"}},
        ),
        "mdt": Row(
            "MDT on FedAvg, personal head",
            "Yu et al., NeurIPS 2022: multi-domain temperature scaling; FedUAA names no base, here FedAvg",
            {**_AVERAGED, "network": {"calibrator": True}},
        ),
        "fedbn": Row(
            "FedBN, personal head",
            "Li et al., ICLR 2021; the backbone row of FedUAA, Table 2",
            {
                "objective": _SOFTMAX,
                "exchange": _HEAD_AND_NORM_STAY,
                "aggregation": {"rule": "uniform"},
                "evaluation": _ANSWER_SOFTMAX,
            },
        ),
        "fedap": Row(
            "FedAP, personal head",
            "Lu et al., 2022: a model per site, mixed by how alike BatchNorm statistics are",
            {
                "objective": _SOFTMAX,
                "exchange": _HEAD_AND_NORM_STAY,
                "aggregation": {"rule": "similarity"},
                "evaluation": _ANSWER_SOFTMAX,
            },
        ),
        "eu": Row(
            "FedBN + EU",
            f"{_FEDUAA}, Table 2: evidential head without warming",
            {
                "objective": {"name": "evidential"},
                "exchange": _HEAD_AND_NORM_STAY,
                "aggregation": {"rule": "uniform"},
                "evaluation": _ANSWER_EVIDENCE,
            },
        ),
        "tweu": Row(
            "FedBN + TWEU",
            f"{_FEDUAA}, Table 2: TWEU head, uniform weights",
            {
                "objective": {"name": "tweu"},
                "exchange": _HEAD_AND_NORM_STAY,
                "aggregation": {"rule": "uniform"},
                "evaluation": _ANSWER_EVIDENCE,
            },
        ),
        "feduaa": Row(
            "FedUAA",
            f"{_FEDUAA}: TWEU head, UAW weights, personal head and BatchNorm",
            _UAA,
        ),
        "feduaa_scaffold": Row(
            "FedUAA + SCAFFOLD",
            "not published: UAW weights, control variates",
            {**_UAA, "correction": {"name": "scaffold"}},
        ),
        "feduaa_fedprox": Row(
            "FedUAA + FedProx",
            "not published: UAW weights, a proximal term",
            {**_UAA, "correction": {"name": "fedprox"}},
        ),
        "feduaa_official": Row(
            "FedUAA, as its code does it",
            f"{_FEDUAA}; the released code, with its BatchNorm leak, annealing, theta rule and AUC input",
            {
                "network": {"normalise": "none"},
                "objective": {"name": "tweu", "kl_anneal": "official"},
                "exchange": {**_HEAD_AND_NORM_STAY, "bn_match": "name"},
                "theta": {"rule": "official", "source": "train_online"},
                "aggregation": {"rule": "uaw"},
                "evaluation": {"estimator": "evidence", "auc_input": "logits_softmax"},
            },
        ),
    }
)
