"""Writes the folder `final` of a site, as a run leaves it, from one short training at home."""

from pathlib import Path

from fedretina.data.site_data import SiteData
from fedretina.evaluation.figures import LabelledPredictions
from fedretina.exchange.payload import tensors_digest
from fedretina.local.trainer import LocalTrainer
from fedretina.networks.build import build_network
from fedretina.report.card import build_card
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Plan
from fedretina.storage import write_json, write_tensors
from fedretina.uncertainty.estimators import build_estimator


def judged(
    trainer: LocalTrainer, experiment: Experiment, data: SiteData, shared, personal, split: str
) -> LabelledPredictions:
    answers = trainer.answers(shared, personal, data.split(split))
    said = build_estimator(experiment.evaluation).predict(answers.logits)
    return LabelledPredictions(said.probabilities, said.uncertainty, answers.labels.numpy(), data.split(split).patients)


def write_final(folder: Path, experiment: Experiment, data: SiteData, rounds: int = 1):
    """Train, write model and card; returns the trainer with the shared and the personal part."""
    trainer = LocalTrainer(experiment, data)
    start = build_network(experiment.network, data.scheme.num_classes, experiment.seed).state_dict()
    shared, snapshot = {key: start[key] for key in trainer.partition.shared}, trainer.initial()
    plan = Plan.of(experiment)
    for number in range(rounds):
        update = trainer.train(shared, snapshot, plan[number])
        shared, snapshot = update.tensors, update.snapshot
    model = trainer.state(shared, snapshot.tensors)
    card = build_card(
        experiment=experiment,
        scheme=data.scheme,
        run="a-run",
        site=data.name,
        synthetic=data.synthetic,
        chosen=plan[rounds - 1],
        theta=snapshot.record["theta"],
        fingerprint=data.fingerprint,
        counts=data.graded,
        model_digest=tensors_digest(model),
        normalisation=trainer.normalisation,
        validation=judged(trainer, experiment, data, shared, snapshot.tensors, "val"),
        test=judged(trainer, experiment, data, shared, snapshot.tensors, "test"),
    )
    write_tensors(folder / "model.safetensors", model, {"card": card})
    write_json(folder / "card.json", card)
    return trainer, shared, snapshot.tensors
