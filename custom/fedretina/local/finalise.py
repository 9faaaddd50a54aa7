"""The end of a run at a site: the test split is read once, and model, card, figures and report are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedretina.data.site_data import SiteData, Split
from fedretina.evaluation.predictions import LabelledPredictions
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.min_count import encode
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.local.site_state import History, Snapshot
from fedretina.local.supervised import Predictions
from fedretina.local.trainer import LocalTrainer
from fedretina.networks.encoder_file import write_encoder
from fedretina.report.card import NOT_A_DEVICE, build_card, card_page
from fedretina.report.render import render_site, write_page
from fedretina.report.site_report import AnsweredSplit, SiteReportInputs, leaving_scalars, rounds_of, site_report
from fedretina.rows import row
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import Normalisation
from fedretina.settings.plan import Step
from fedretina.storage import read_json, write_json, write_tensors
from fedretina.uncertainty.estimators import ESTIMATORS
from fedretina.version import versions

_DIGITS = 4
_LEAVING = ("auc", "auc_logits", "accuracy", "kappa", "error_auroc", "ece", "brier")


class Ending(NamedTuple):
    """What a site ends a run with.

    Attributes:
        run: Name of the run.
        folder: The site's own folder of the run.
        experiment: The run's settings.
        data: The site's data.
        trainer: Puts the network together and answers.
        chosen: The step whose model was chosen by mean validation AUC.
        shared: The aggregate of that step.
        kept: The site's personal part of that step.
        data_changes: Steps that the site began with other data than those before.
    """

    run: str
    folder: Path
    experiment: Experiment
    data: SiteData
    trainer: LocalTrainer
    chosen: Step
    shared: Tensors
    kept: Snapshot
    data_changes: tuple[str, ...] = ()


def finalise(ending: Ending) -> dict[str, float]:
    """Write a site's personal model with its card, figures and report, and return the scalars that may leave.

    All of it goes to `final/` in the site's folder. `figures.json` is written last: when it is there, the test split
    was read, and it is not read again however often the server asks.
    """
    folder = ending.folder / "final"
    # The server may ask again, after a restart or a lost reply. The test split was read for this model already, so the
    # stored scalars go out once more; for another model, after the run went back, everything is done anew.
    model = ending.trainer.state(ending.shared, ending.kept.tensors)
    model_digest = tensors_digest(model)
    if (folder / "figures.json").exists():
        stored = read_json(folder / "figures.json")
        if stored["model_digest"] == model_digest:
            return dict(stored["scalars"])
    # The one time that the test split is predicted. The threshold of the card is chosen on validation alone.
    splits = {name: ending.data.split(name) for name in ("val", "test")}
    answers = {
        name: ending.trainer.answers(ending.shared, ending.kept.tensors, split) for name, split in splits.items()
    }
    labelled = {name: _labelled(ending, split, answers[name]) for name, split in splits.items()}
    card = _card(ending, model_digest, labelled["val"], labelled["test"])
    # Everything that stays at the site: the model with its card, the card for people, the report.
    write_tensors(folder / "model.safetensors", model, {"card": card})
    write_json(folder / "card.json", card)
    write_page(folder / "card.md", card_page(card))
    report = site_report(_inputs(ending, card, splits["test"], answers["test"]))
    write_json(folder / "report.json", report)
    if ending.experiment.report.page:
        write_page(folder / "report.html", render_site(report))
    # Last, what marks all of the above as done, and holds what leaves.
    scalars = _scalars(ending, report, labelled["test"])
    write_json(
        folder / "figures.json",
        {
            "notice": NOT_A_DEVICE,
            "model_digest": model_digest,
            "chosen": ending.chosen.name,
            "theta": ending.kept.record.get("theta"),
            "test": report["figures"],
            "scalars": scalars,
        },
    )
    return scalars


def _labelled(ending: Ending, split: Split, found: Predictions) -> LabelledPredictions:
    answer = ESTIMATORS[ending.experiment.evaluation.estimator].predict(found.logits)
    labels = np.asarray(found.labels.numpy(), dtype=np.int64)
    return LabelledPredictions(answer.probabilities, answer.uncertainty, labels, split.patients)


def _card(
    ending: Ending, model_digest: str, validation: LabelledPredictions, test: LabelledPredictions
) -> dict[str, Any]:
    return build_card(
        experiment=ending.experiment,
        scheme=ending.data.scheme,
        run=ending.run,
        site=ending.data.name,
        synthetic=ending.data.synthetic,
        chosen=ending.chosen,
        theta=ending.kept.record.get("theta"),
        fingerprint=ending.data.fingerprint,
        data_changes=ending.data_changes,
        counts=ending.data.graded,
        model_digest=model_digest,
        normalisation=ending.trainer.normalisation,
        validation=validation,
        test=test,
        sums=ending.kept.record.get("sums"),
    )


def _inputs(ending: Ending, card: dict[str, Any], split: Split, test: Predictions) -> SiteReportInputs:
    return SiteReportInputs(
        site=ending.data.name,
        run=ending.run,
        synthetic=ending.data.synthetic,
        scheme=ending.data.scheme,
        method=row(ending.experiment.row).title,
        chosen=ending.chosen.name,
        estimator=ending.experiment.evaluation.estimator,
        test=AnsweredSplit(test.logits, test.labels, split.patients, split.files, split.images),
        history=rounds_of(History(ending.folder / "history.json").steps()),
        card=card,
        partition=ending.trainer.partition.by_kind(),
        settings=ending.experiment.agreed(),
        versions=versions(),
        ledger=Ledger(ending.folder / "ledger.jsonl").lines(),
        bad_files=ending.data.bad_files,
        images=ending.data.graded,
        seed=ending.experiment.seed,
        draws=ending.experiment.report.draws,
    )


def _scalars(ending: Ending, report: dict[str, Any], test: LabelledPredictions) -> dict[str, float]:
    data = ending.data
    values = {name: report["figures"].get(name, {}).get("value") for name in _LEAVING}
    figures = {f"test_{name}": value for name, value in values.items() if value is not None} | leaving_scalars(report)
    if len(set(test.patients)) < data.min_count:
        figures = {}  # an accuracy of one patient is that patient's
    return {
        # At full precision a figure such as kappa narrows down the counts that are withheld.
        **{name: round(float(value), _DIGITS) for name, value in figures.items()},
        **encode(test.probabilities, test.labels, test.uncertainty, test.patients, data.min_count),
        "grades": float(data.scheme.num_classes),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
        **{f"images_{name}": float(count) for name, count in data.graded.items()},
    }


def finalise_encoder(
    run: str, folder: Path, experiment: Experiment, data: SiteData, tensors: Tensors, normalisation: Normalisation
) -> dict[str, float]:
    """Write a site's encoder to `final/` and return the scalars that may leave.

    Args:
        run: Name of the run.
        folder: The site's own folder of the run.
        experiment: The run's settings.
        data: The site's data.
        tensors: The last aggregate, with what the site keeps of the encoder laid over it.
        normalisation: How the encoder's images were normalised.
    """
    write_encoder(folder / "final", run, experiment, tensors, normalisation)
    return {
        "images_pretrain": float(data.counts["pretrain"]),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
    }
