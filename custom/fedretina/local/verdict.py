"""The controls of a run at a site, and the verdict over them: was sharing worth it here, and which model stays?

The own head needs no training beyond a ridge regression on the features of the encoder as the run starts with it:
seconds, nothing exchanged. What the federated model has above it is what the rounds and the other sites gave.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedretina.analytic.layer import ridge_layer
from fedretina.data.site_data import SiteData, Split
from fedretina.data.splits import labelled_subset
from fedretina.errors import DataError
from fedretina.evaluation import verdict
from fedretina.evaluation.verdict import FEDERATED, OWN, TWIN, Answered, Truth
from fedretina.exchange.payload import Tensors
from fedretina.local.features import FrozenEncoder, fitted_gate
from fedretina.local.supervised import Predictions
from fedretina.local.trainer import LocalTrainer
from fedretina.report.text import rounded
from fedretina.seeds import reproducible_torch
from fedretina.settings.evaluation import SoftmaxSettings
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import HeadSettings
from fedretina.settings.objective import CrossEntropySettings
from fedretina.storage import read_tensors
from fedretina.uncertainty.estimators import auc_scores, build_estimator, members
from fedretina.uncertainty.temperature import fit_temperature

_SHARP = 10.0
"""Logits of a ridge's scores before their temperature: scores run from about 0 to 1, and a softmax of those would call
every grade about as likely as any other."""
_log = logging.getLogger(__name__)


Splits = Mapping[str, Split]
"""Validation ("val") and test ("test"), read once for all models."""


class Contestant(NamedTuple):
    """A model that a site may keep.

    Attributes:
        name: `FEDERATED`, `OWN` or `TWIN`.
        experiment: Settings under which it is an ordinary model of this package.
        trainer: Puts its network together and answers.
        model: All its tensors.
        answers: What it answers to "val" and to "test".
    """

    name: str
    experiment: Experiment
    trainer: LocalTrainer
    model: Tensors
    answers: Mapping[str, Predictions]

    @classmethod
    def of(
        cls, name: str, experiment: Experiment, trainer: LocalTrainer, shared: Tensors, own: Tensors, splits: Splits
    ) -> Contestant:
        """Put a model together and ask it once about validation and test."""
        model = trainer.state(shared, own)
        answers = {split: trainer.answers(shared, own, images) for split, images in splits.items()}
        return cls(name, experiment, trainer, model, answers)

    def answered(self, split: str) -> Answered:
        """Its answers as models are compared by them: ranked as the run ranks."""
        logits, chosen = self.answers[split].logits, self.experiment.evaluation
        estimator = build_estimator(chosen)
        scores = auc_scores(logits, chosen.auc_input, self.experiment.tau, estimator)
        return Answered(estimator.predict(logits).probabilities, scores)


def own_settings(experiment: Experiment) -> Experiment:
    """Settings under which the own head is an ordinary network: the encoder, one linear layer, a softmax."""
    bare: dict[str, Any] = dict.fromkeys(("projector", "contrast", "exits", "dropout"))
    head = HeadSettings(layout="linear")
    # All of it stands still, so its answers are read from the same kept features that the head is fitted on.
    bare |= {"calibrator": False, "head": head, "frozen": "all", "frozen_cache": "lenient"}
    network = experiment.network.model_copy(update=bare)
    # Beside a head from sums it doubts in the same way; the gate's settings stand with those of the sums.
    gated = experiment.evaluation.gate is not None
    summed = tuple(phase for phase in experiment.phases if phase.sums is not None)  # nothing is pre-trained for it
    beside: dict[str, Any] = {"phases": summed, "classes": experiment.classes} if gated else {}
    return Experiment(
        name=experiment.name,
        row=experiment.row,
        seed=experiment.seed,
        network=network,
        images=experiment.images,
        augment=experiment.augment,
        training=experiment.training.model_copy(update={"stretches": ()}),  # nothing trains
        objective=CrossEntropySettings(),
        exchange=ExchangeSettings(personal="everything"),
        evaluation=experiment.evaluation if gated else SoftmaxSettings(),
        report=experiment.report,
        phantom_images=experiment.phantom_images,
        verdict="off",
        **beside,
    )


def own_model(experiment: Experiment, data: SiteData, splits: Splits) -> Contestant:
    """The site's own head on the encoder as the run starts with it, folded into one linear layer.

    Features are centred by the training images and scaled by one number; the ridge's strength has the least squared
    leave-one-out error on them; one temperature on validation makes scores into probabilities, so that the card, the
    report and the referral threshold mean the same as for any other model.

    Raises:
        DataError: A feature is not finite.
        SettingsError: The encoder's weights cannot be loaded.
    """
    settings = own_settings(experiment)
    trainer = LocalTrainer(settings, data)
    train = _labelled(experiment, data)
    encoder = FrozenEncoder(experiment, data)
    features = encoder.features(train)
    with reproducible_torch(experiment.training):
        gate = fitted_gate(encoder, data, settings.evaluation.gate)
        head, strength = ridge_head(features, train.labels, data.scheme.num_classes)
    start = {**trainer.initial().tensors, **gate}
    validation = trainer.answers({}, {**start, **head}, splits["val"])
    alone = members(validation.logits)[:, -1]
    temperature = fit_temperature(alone.softmax(1).numpy(), validation.labels.numpy())
    model = trainer.state({}, {**start, **{key: tensor / temperature.value for key, tensor in head.items()}})
    if gate:  # what a gate says is no logit, and is not divided
        tempered = trainer.answers({}, model, splits["val"])
    else:
        # The network answers validation once: dividing its logits is dividing its head, to the last bits of a float32.
        tempered = validation._replace(logits=validation.logits / temperature.value)
    answers = {"val": tempered, "test": trainer.answers({}, model, splits["test"])}
    _log.info(
        "%s: own head on the frozen encoder: strength %.3g, temperature %.3g (%s)",
        data.name,
        strength,
        temperature.value,
        temperature.reason,
    )
    return Contestant(OWN, settings, trainer, model, answers)


def twin_model(settings: Experiment, data: SiteData, folder: Path, splits: Splits) -> Contestant:
    """The model of a twin that has come to its end.

    Args:
        settings: The twin's.
        data: The site's data.
        folder: The twin's folder.
        splits: Validation and test.

    Raises:
        StateError: Its model is missing or damaged.
    """
    model, _ = read_tensors(folder / "final" / "model.safetensors")
    return Contestant.of(TWIN, settings, LocalTrainer(settings, data), {}, model, splits)


def ridge_head(features: Tensor, labels: Tensor, grades: int) -> tuple[dict[str, Tensor], float]:
    """A ridge regression on centred and scaled features as the linear head of a network.

    Args:
        features: [n, F].
        labels: int64 [n], 0 to grades - 1.
        grades: K, the outputs.

    Returns:
        Weight and bias in float32 by the keys of a linear head, whose logits are the ridge's scores times a constant
        (`_SHARP`); and the strength lambda.

    Raises:
        DataError: A feature is not finite.
    """
    fitted = ridge_layer(features, labels, grades)
    layer = {"head.0.weight": (_SHARP * fitted.weight).float(), "head.0.bias": (_SHARP * fitted.bias).float()}
    return layer, fitted.strength


def judged(models: Sequence[Contestant], data: SiteData, splits: Splits, experiment: Experiment) -> dict[str, Any]:
    """The verdict as it is stored: which model is kept by validation, and what test says of the difference.

    Args:
        models: The federated model and its controls.
        data: The site's data.
        splits: Validation and test.
        experiment: The run's settings; its seed and its draws are the bootstrap's.

    Returns:
        Plain values that JSON can hold. It belongs to the site: what may leave is its `outcome`.
    """
    truth = {
        name: Truth(np.asarray(split.labels.numpy(), dtype=np.int64), split.patients, data.scheme)
        for name, split in splits.items()
    }
    by_name = {model.name: model for model in models}
    choice = verdict.choose({name: model.answered("val") for name, model in by_name.items()}, truth["val"])
    test = {name: model.answered("test") for name, model in by_name.items()}
    commonest = _labelled(experiment, data).labels.numpy()
    test[verdict.MAJORITY] = verdict.majority(commonest, truth["test"].labels.size, data.scheme.num_classes)
    controls = [name for name in (OWN, TWIN) if name in by_name]
    # The better control by validation is the one to beat: chosen on test it would be the luckier one.
    rivals = [name for name in controls if choice.values[name] is not None] or controls
    rival = max(rivals, key=lambda name: choice.values[name] or 0.0, default=None)
    gaps = {
        name: verdict.compare(test[FEDERATED], test[name], truth["test"], experiment.seed, experiment.report.draws)
        for name in test
        if name != FEDERATED
    }
    return {
        "asked": experiment.verdict,
        "shared": experiment.shares,
        "start": experiment.network.weights.source,
        "measure": choice.measure,
        "kept": choice.kept,
        "reason": choice.reason,
        "validation": {
            "patients": choice.patients,
            "values": {name: rounded(value) for name, value in choice.values.items()},
        },
        "rival": rival,
        "outcome": None if rival is None else gaps[rival][choice.measure].outcome,
        "test": {
            "images": int(truth["test"].labels.size),
            "patients": len(set(truth["test"].patients)),
            "majority": data.scheme.grades[int(np.argmax(test[verdict.MAJORITY].probabilities[0]))],
            "models": {
                name: {figure: rounded(value) for figure, value in verdict.figures(answered, truth["test"]).items()}
                for name, answered in test.items()
            },
            "differences": {
                name: {
                    figure: {**{end: rounded(getattr(gap, end)) for end in ("value", "low", "high")}}
                    for figure, gap in found.items()
                }
                for name, found in gaps.items()
            },
        },
    }


def contestants(federated: Contestant, twin: Contestant | None, data: SiteData, splits: Splits) -> list[Contestant]:
    """The federated model and the controls that the run asks for; one that cannot be had is left out, with a warning.

    A run must not lose a site's federated model because a control failed.
    """
    found = [federated]
    try:
        found.append(own_model(federated.experiment, data, splits))
    except DataError as error:
        _log.warning("%s: no own head to compare with: %s", data.name, error)
    return found if twin is None else [*found, twin]


def _labelled(experiment: Experiment, data: SiteData) -> Split:
    """The training images whose labels the run may use, as its last phase may."""
    split, share = data.split("train"), experiment.phases[-1].label_share
    if share == 1:
        return split
    chosen = labelled_subset(split.patients, split.labels.tolist(), share, experiment.seed)
    patients, files = (tuple(names[at] for at in chosen) for names in (split.patients, split.files))
    return Split(split.images[chosen], split.labels[chosen], patients, files)
