"""The end of a run at a site: the test split is read once, and the model, its card and the figures are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedretina.data.site_data import SiteData
from fedretina.evaluation.evaluate import evaluate
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.experiment import Experiment
from fedretina.local.snapshot import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.plan import Step
from fedretina.storage import read_json, write_json, write_tensors
from fedretina.uncertainty.estimators import ESTIMATORS
from fedretina.version import __version__

NOT_A_DEVICE = "Research software, not a medical device: a doctor decides, whatever it says."


def finalise(
    folder: Path,
    experiment: Experiment,
    data: SiteData,
    trainer: LocalTrainer,
    chosen: Step,
    shared: Tensors,
    kept: Snapshot,
) -> dict[str, float]:
    """Write a site's personal model with its card and figures, and return the scalars that may leave.

    The figures are written last: when they are there, the test split was read, and it is not read again however
    often the server asks.

    Args:
        folder: `model.safetensors`, `card.json` and `figures.json` go here.
        experiment: The run's settings.
        data: The site's data.
        trainer: Puts the network together and evaluates it.
        chosen: The step whose model was chosen by mean validation AUC.
        shared: The aggregate of that step.
        kept: The site's personal part of that step.
    """
    figures_path = folder / "figures.json"
    model = trainer.state(shared, kept.tensors)
    model_digest = tensors_digest(model)
    if figures_path.exists():
        stored = read_json(figures_path)
        if stored["model_digest"] == model_digest:
            return dict(stored["scalars"])
    card = _card(experiment, data, chosen, kept, model_digest)
    write_tensors(folder / "model.safetensors", model, {"card": card})
    write_json(folder / "card.json", card)
    answers = trainer.answers(shared, kept.tensors, "test")
    figures = trainer.evaluate(answers)
    logit_ranking = evaluate(
        answers.logits,
        answers.labels,
        ESTIMATORS[experiment.evaluation.estimator],
        "logits_softmax",
        experiment.objective.tweu.tau,
    )
    leaving = {f"test_{name}": value for name, value in figures._asdict().items()}
    leaving["test_auc_logits"] = logit_ranking.auc
    scalars = {
        **{name: float(value) for name, value in leaving.items() if name in _LEAVING and value is not None},
        "grades": float(data.scheme.num_classes),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
        **{f"images_{name}": float(count) for name, count in data.counts.items()},
    }
    write_json(
        figures_path,
        {
            "notice": NOT_A_DEVICE,
            "model_digest": model_digest,
            "chosen": chosen.name,
            "theta": kept.record.get("theta"),
            "test": {**figures._asdict(), "auc_logits": logit_ranking.auc},
            "scalars": scalars,
        },
    )
    return scalars


_LEAVING = frozenset(
    {
        "test_auc",
        "test_auc_logits",
        "test_accuracy",
        "test_kappa",
        "test_error_auroc",
        "test_ece",
        "test_brier",
    }
)


def _card(experiment: Experiment, data: SiteData, chosen: Step, kept: Snapshot, model_digest: str) -> dict[str, Any]:
    return {
        "notice": NOT_A_DEVICE,
        "synthetic": data.synthetic,
        "fedretina": __version__,
        "row": experiment.row,
        "grades": list(data.scheme.grades),
        "chosen": chosen.name,
        "theta": kept.record.get("theta"),
        "data_fingerprint": data.fingerprint,
        "images": dict(data.counts),
        "model_digest": model_digest,
        "settings": experiment.agreed(),
    }
