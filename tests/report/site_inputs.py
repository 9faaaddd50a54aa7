"""Inputs of a site's report, whole or degenerate, without any training; and results as a server stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedretina.exchange.min_count import encode
from fedretina.report.site_report import AnsweredSplit, SiteReportInputs, leaving_scalars, site_report
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.uncertainty.estimators import build_estimator

SETTINGS = Experiment.resolve({"row": "feduaa"}).agreed()
SHARE = {"k": 3, "n": 10, "value": 0.3, "low": 0.07, "high": 0.65}
CARD = {
    "model_digest": "ab" * 32,
    "data_fingerprint": "cd" * 32,
    "limits": ["It knows no disease but one."],
    "temperature": {"value": 0.5, "reason": "fitted"},
    "referral": {
        "threshold": 0.55,
        "validation": {"images": 40, "errors": 10, "caught": 8, "alarms": 5},
        "test": {"load": SHARE, "doubt_load": SHARE, "missed": SHARE, "sensitivity": SHARE, "specificity": None},
    },
}
ROUNDS = [
    {
        "step": f"train-{at:04}",
        "theta": 0.4 + at / 10,
        "theta_reason": "youden" if at else "too_few_errors",
        "weight": 0.3,
        "loss": 2.0 - at / 4,
        "accuracy": 0.5,
        "val_auc": 0.6 + at / 20,
        "val_accuracy": 0.5,
    }
    for at in range(3)
]
UNKNOWN = {**dict.fromkeys(ROUNDS[0]), "step": "train-0000", "theta": 0.5, "theta_reason": "no_errors"}


def site_inputs(
    count: int = 40,
    scheme: GradingScheme | None = None,
    labels: Any = None,
    logits: Any = None,
    files: list[str] | None = None,
    **changed: Any,
) -> SiteReportInputs:
    """A site whose model is right more often than not; two images per patient."""
    rng = np.random.default_rng(count)
    scheme = scheme or preset("icdr5")
    classes = scheme.num_classes
    labels = rng.integers(0, classes, count) if labels is None else np.asarray(labels)
    logits = rng.normal(0, 2, (count, classes)) + 3 * np.eye(classes)[labels] if logits is None else np.asarray(logits)
    whole: dict[str, Any] = {
        "site": "site-1",
        "run": "demo",
        "synthetic": False,
        "scheme": scheme,
        "method": "FedUAA",
        "chosen": "train-0001",
        "estimator": "evidence",
        "test": AnsweredSplit(
            torch.from_numpy(logits),
            torch.from_numpy(labels),
            [f"p{at // 2}" for at in range(count)],
            files or [f"image-{at:03}.png" for at in range(count)],
            torch.from_numpy(rng.integers(0, 255, (count, 3, 40, 40), dtype=np.uint8)),
        ),
        "history": ROUNDS,
        "card": CARD,
        "partition": {"encoder": {"tensors": 3, "values": 1000, "travels": True}},
        "settings": SETTINGS,
        "versions": {"fedretina": "0.1.0"},
        "ledger": [
            {
                "run": "demo",
                "phase": "train",
                "round": 0,
                "attempt": 0,
                "tensors": {"encoder": 3},
                "scalars": {"theta": 0.4, "images": 50.0, "bin_uncertainty_19_images": 7.0},
                "bytes": 4000,
                "digest": "ef" * 32,
            }
        ],
        "bad_files": 0,
        "images": {"train": 50, "val": 10, "test": count},
        "seed": 1,
        "draws": 200,
    }
    return SiteReportInputs(**{**whole, **changed})


DEGENERATE = {
    "one image": lambda: site_inputs(1, labels=[2], card={}, history=[], ledger=[]),
    "one class": lambda: site_inputs(30, labels=[0] * 30, history=[UNKNOWN]),
    "no errors": lambda: site_inputs(
        24, preset("normal_3stages"), np.arange(24) % 4, 8.0 * np.eye(4)[np.arange(24) % 4], card={}
    ),
    "only errors": lambda: site_inputs(
        20, preset("icdr5_ungradable"), [1] * 20, np.tile([5.0, 0, 0, 0, 0, 0], (20, 1)), history=[UNKNOWN]
    ),
    "six grades": lambda: site_inputs(60, preset("icdr5_ungradable")),
    "nobody could grade any": lambda: site_inputs(6, preset("icdr5_ungradable"), labels=[5] * 6),
    "no referable grades": lambda: site_inputs(20, GradingScheme(grades=("a", "b")), card={"temperature": None}),
    "twenty grades": lambda: site_inputs(80, GradingScheme(grades=tuple(f"g{at}" for at in range(20)))),
}


def stored_results(sites: dict[str, SiteReportInputs], counts: bool = True, min_count: int = 5) -> dict[str, Any]:
    """What a server stores of a run over these sites; without counts and intervals as runs of old."""
    figures = {}
    for name, inputs in sites.items():
        report = site_report(inputs)
        answer = build_estimator(inputs.estimator).predict(inputs.test.logits)
        figures[name] = {
            **{
                f"test_{figure}": found["value"]
                for figure, found in report["figures"].items()
                if found["value"] is not None
                and figure in ("auc", "auc_supported", "accuracy", "kappa", "error_auroc", "ece", "brier")
            },
            "grades": float(inputs.scheme.num_classes),
            "bad_files": 0.0,
            "synthetic": float(inputs.synthetic),
            **{f"images_{split}": float(many) for split, many in inputs.images.items()},
            "theta": 0.5,
            "weight": 1 / len(sites),
        }
        if counts:
            labels = inputs.test.labels.numpy()
            figures[name] |= leaving_scalars(report)
            figures[name] |= encode(answer.probabilities, labels, answer.uncertainty, inputs.test.patients, min_count)
    return {
        "run": "demo",
        "settings": SETTINGS,
        "versions": {"fedretina": "0.1.0"},
        "partition": {"encoder": ["a", "b"]},
        "digest": "12" * 32,
        "model_digest": "34" * 32,
        "chosen": "train-0001",
        "validation": {
            f"train-{at:04}": {"mean_auc": 0.6 + at / 10, "auc": dict.fromkeys(sites, 0.6 + at / 10)} for at in range(2)
        },
        "sites": figures,
        "without_result": {"site-9": "its state is missing"},
        "steps": [
            *(
                {
                    "step": f"train-{at:04}",
                    "task": "train",
                    "scalars": {name: {"theta": 0.5, "images": 50.0} for name in sites},
                    "weights": dict.fromkeys(sites, 1 / len(sites)),
                    "refused": {"site-9": "the loss became infinite"} if at else {},
                    "bytes_up": dict.fromkeys(sites, 1000),
                    "bytes_down": 1000,
                }
                for at in range(2)
            ),
            {"step": "validate-0000", "task": "validate", "scalars": {name: {} for name in sites}, "bytes_down": 1000},
        ],
    }
