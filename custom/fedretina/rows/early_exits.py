"""The rows of FedEE and of the ensembles that it is compared with.

Exits stay at their site under every strategy. On fundus photographs, whose grades differ between sites, the final head
stays too; where grades agree a job lets it travel, as in the paper: `exchange: {personal: exits}, grades: K`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.rows.base import Row

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


def _task(modality: str, encoder: str, grades: int, rate: float, **more: Any) -> dict[str, Any]:
    """One of the paper's tasks: grades agree, so the final head travels; one Adam per site for the whole run."""
    return {
        **_AVERAGED,
        "images": {"modality": modality},
        "network": {**_EXITS["network"], "encoder": encoder},
        "training": {"optimizer": "adam", "optimizer_state": "keep", "learning_rate": rate},
        "exchange": {"personal": "exits", "batchnorm": "shared_all"},
        "grades": grades,
        **more,
    }


# FLamby's weights of the eight classes: all images over those of the class.
_ISIC = (5.58, 2.05, 7.02, 26.12, 9.54, 101.07, 92.52, 38.34)
_SKIN = {"flip": True, "flip_vertical": True, "rotate_degrees": 50, "brightness": 0.15, "contrast": 0.1}
_SOUND = {"flip": False, "rotate_degrees": 0, "roll": 0.5}
_MOTION = {"flip": False, "rotate_degrees": 0}

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
        "fedee_dermoscopy": Row(
            "FedEE on dermoscopy",
            f"{_PAPER}, ISIC2019: EfficientNet-B0, eight diagnoses, weighted focal loss",
            _task(
                "dermoscopy",
                "efficientnet_b0",
                8,
                5e-4,
                augment=_SKIN,
                objective={"name": "focal", "gamma": 2.0, "alpha": _ISIC},
            ),
        ),
        "fedee_heart_sound": Row(
            "FedEE on heart sounds",
            f"{_PAPER}, PhysioNet 2016: ResNet-18 on spectrograms; two classes by cross entropy, not one sigmoid",
            _task("heart_sound", "resnet18", 2, 1e-4, augment=_SOUND),
        ),
        "fedee_activity": Row(
            "FedEE on activity",
            f"{_PAPER}, PAMAP2: three convolutions over ten seconds of an accelerometer, eight activities",
            _task("activity", "signal_cnn", 8, 3e-4, augment=_MOTION),
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
