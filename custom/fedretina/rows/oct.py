"""The rows of the OCT paper: pre-training without labels, then fine-tuning, with and without drift correction.

Their two phases are named `pretrain` and `train`; a job that lists its phases by these names says only what it changes
of them. All sites share one head of named classes; a site whose grades are other ones says in its scheme which classes
each of them stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.rows.base import Row

_PAPER = "Jumaili, SJPAS 2026"
_SCAFFOLD = {"name": "scaffold"}
_OCT: Mapping[str, Any] = {
    "images": {"modality": "oct"},
    "augment": {"flip": True, "rotate_degrees": 10},
    "network": {"head": {"layout": "linear"}},
    "classes": ("normal", "drusen", "dme", "cnv"),
    "objective": {"name": "cross_entropy"},
    "exchange": {"personal": "nothing", "batchnorm": "shared_all"},
    "aggregation": {"rule": "uniform"},
    "evaluation": {"estimator": "softmax", "auc_input": "logits_softmax"},
}
# Section 3.6 of the paper: SGD for the first stage, Adam with cosine annealing and a smaller rate on the backbone for
# the second. Its rounds, 100 of 5 epochs and then 50 of 3, are for a job to set.
_STAGE_1 = {"epochs": 5, "optimizer": "sgd", "learning_rate": 0.03, "momentum": 0.9, "weight_decay": 1e-4}
_STEPS_2 = {"optimizer": "adam", "learning_rate": 1e-3, "schedule": "cosine", "encoder_factor": 0.1}
_STAGE_2 = {"epochs": 3, **_STEPS_2}
_TUNED = {"name": "train", "training": _STAGE_2}
_FROM_SCRATCH = {"name": "train", "training": {**_STAGE_2, "encoder_factor": 1.0}}


def _two_stages(method: str, **more: Any) -> dict[str, Any]:
    first = {"name": "pretrain", "contrastive": {"method": method}, "training": _STAGE_1}
    network = {**_OCT["network"], "contrast": {"layout": method}}
    return {**_OCT, "network": network, "phases": (first, _TUNED), **more}


OCT_ROWS: Mapping[str, Row] = MappingProxyType(
    {
        "oct_fedavg": Row(
            "FedAvg, OCT",
            f"{_PAPER}, Table 3: supervised, without pre-training",
            {**_OCT, "phases": (_FROM_SCRATCH,)},
        ),
        "oct_fedprox": Row(
            "FedProx, OCT",
            f"{_PAPER}, Table 3: supervised, a proximal term",
            {**_OCT, "phases": (_FROM_SCRATCH,), "correction": {"name": "fedprox"}},
        ),
        "oct_scaffold": Row(
            "SCAFFOLD, OCT",
            f"{_PAPER}, Table 5: without contrastive pre-training",
            {**_OCT, "phases": (_FROM_SCRATCH,), "correction": _SCAFFOLD},
        ),
        "oct_centralised": Row(
            "Centralised, OCT",
            f"{_PAPER}, Table 3: images of sites with the same grades in one place; the plain loop only",
            {
                **{name: value for name, value in _OCT.items() if name != "classes"},
                "phases": (_FROM_SCRATCH,),
                "exchange": {"personal": "everything"},
                "pooled": True,
            },
        ),
        "oct_simclr_fedavg": Row("SimCLR + FedAvg, OCT", f"{_PAPER}, Table 3", _two_stages("simclr")),
        "oct_simclr_scaffold": Row(
            "SimCLR + SCAFFOLD, OCT",
            f"{_PAPER}, Table 5: without a momentum encoder",
            _two_stages("simclr", correction=_SCAFFOLD),
        ),
        "oct_moco_fedavg": Row("MoCo v2 + FedAvg, OCT", f"{_PAPER}, Table 5: without SCAFFOLD", _two_stages("moco_v2")),
        "oct_moco_scaffold": Row(
            "MoCo + SCAFFOLD, OCT",
            f"{_PAPER}: its equations are MoCo v2 with a queue, described as v3 in the source",
            _two_stages("moco_v2", correction=_SCAFFOLD),
        ),
        "oct_moco_v3_scaffold": Row(
            "MoCo v3 + SCAFFOLD, OCT",
            f"{_PAPER}, with the objective that its title names: predictor, symmetric loss, no queue",
            _two_stages("moco_v3", correction=_SCAFFOLD),
        ),
        "oct_moco_linear": Row(
            "MoCo + SCAFFOLD, linear evaluation, OCT",
            f"{_PAPER}, section 3.6: the encoder stands still, the head trains",
            _two_stages("moco_v2", correction=_SCAFFOLD)
            | {
                "phases": (
                    {"name": "pretrain", "contrastive": {"method": "moco_v2"}, "training": _STAGE_1},
                    {"name": "train", "training": {**_STEPS_2, "stretches": ({"train": "head", "epochs": 3},)}},
                )
            },
        ),
        "oct_moco_sums": Row(
            "MoCo + SCAFFOLD, then heads from sums, OCT",
            "not published: the paper's first phase, without labels, then ridge heads from the sites' sums on it",
            {
                **{name: value for name, value in _two_stages("moco_v2").items() if name not in ("phases", "augment")},
                "phases": (
                    {"name": "pretrain", "contrastive": {"method": "moco_v2"}, "training": _STAGE_1},
                    {"name": "sums", "rounds": 1, "sums": {}},
                ),
                "correction": _SCAFFOLD,
                "exchange": {"personal": "head", "batchnorm": "shared_all"},
                "evaluation": {"estimator": "softmax_gated", "auc_input": "logits_softmax"},
            },
        ),
        "oct_moco_feduaa": Row(
            "MoCo, then FedUAA, OCT",
            "not published: pre-training without labels, then TWEU with personal heads and UAW weights",
            {
                **{name: value for name, value in _two_stages("moco_v2").items() if name != "classes"},
                "objective": {"name": "tweu"},
                "exchange": {"personal": "head", "batchnorm": "local_all"},
                "aggregation": {"rule": "uaw"},
                "evaluation": {"estimator": "evidence", "auc_input": "expected_probability"},
            },
        ),
    }
)
