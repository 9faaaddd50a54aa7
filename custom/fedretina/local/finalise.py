"""The end of a run at a site: the test split is read once, and model, card, figures and report are written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedretina.data.site_data import SiteData, Split
from fedretina.evaluation.doubt import Doubt, DoubtChoice, choose_doubt, doubted, order_of
from fedretina.evaluation.figures import LabelledPredictions
from fedretina.evaluation.referral_curve import ill_counts, referral_scores
from fedretina.evaluation.subgroups import subgroup_sums
from fedretina.evaluation.support import supported_auc
from fedretina.evaluation.verdict import FEDERATED
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.min_count import OUTCOMES, encode
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.local.gate import Pictures, SiteGate, expected_look, site_gate
from fedretina.local.heads_from_sums import FEW_LEFT_OUT
from fedretina.local.site_state import Snapshot
from fedretina.local.trainer import LocalTrainer
from fedretina.local.verdict import Contestant, Splits, contestants, judged
from fedretina.networks.encoder_file import Learned, write_encoder
from fedretina.report.card import NOT_A_DEVICE, LookFigures, SpoiledFigures, build_card
from fedretina.report.card_words import card_page
from fedretina.report.render import render_site, write_page
from fedretina.report.site_report import AnsweredSplit, SiteReportInputs, leaving_scalars, rounds_of, site_report
from fedretina.settings.encoder import Normalisation
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import Step
from fedretina.storage import read_json, write_json, write_tensors
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.referral import referral_threshold
from fedretina.version import versions

_DIGITS = 4
_LEAVING = ("auc", "auc_supported", "auc_logits", "accuracy", "kappa", "error_auroc", "ece", "brier")


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
        history: As `History.steps` gives it.
        twin: Gives the same row trained at home, where the run asks for it.
        curve: The other sites' ill patients by chance of disease, as `evaluation.referral_curve` adds them up.
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
    history: Sequence[Mapping[str, Any]] = ()
    twin: Callable[[Splits], Contestant | None] = lambda splits: None
    curve: tuple[int, ...] = ()


def curve_counts(ending: Ending) -> dict[str, float]:
    """What may leave of the site's ill validation patients, by the model that it is about to end with.

    The test split is not read. Nobody is counted where the scheme names no referable grades.
    """
    splits = {"val": ending.data.split("val")}
    model = Contestant.of(FEDERATED, ending.experiment, ending.trainer, ending.shared, ending.kept.tensors, splits)
    validation, _ = _validated(model, splits)
    threshold = referral_threshold(validation.uncertainty, validation.wrong).value
    return ill_counts(referral_scores(validation, threshold, ending.data.scheme), ending.data.min_count)


def finalise(ending: Ending) -> dict[str, float]:
    """Write the model that a site keeps with its card, figures and report, and return the scalars that may leave.

    All of it goes to `final/` in the site's folder. Where the verdict keeps another model than the run's, that one
    lies beside it in `final/federated/`, likewise with card and report. What leaves tells of the run's model alone,
    whichever is kept. `figures.json` is written last: when it is there, the test split was read, and it is not read
    again however often the server asks.
    """
    folder = ending.folder / "final"
    # The server may ask again, after a restart or a lost reply. The test split was read for this model already, so the
    # stored scalars go out once more; for another model or curve, after the run went back, everything is done anew.
    model_digest = tensors_digest(ending.trainer.state(ending.shared, ending.kept.tensors))
    if (folder / "figures.json").exists():
        stored = read_json(folder / "figures.json")
        if stored["model_digest"] == model_digest and stored.get("curve", []) == list(ending.curve):
            return dict(stored["scalars"])
    # The one time that the test split is predicted. Which model is kept is chosen on validation alone, like the
    # threshold of its card.
    experiment, data = ending.experiment, ending.data
    splits = {name: data.split(name) for name in ("val", "test")}
    federated = Contestant.of(FEDERATED, experiment, ending.trainer, ending.shared, ending.kept.tensors, splits)
    verdict, kept = None, federated
    if experiment.verdict != "off":
        models = contestants(federated, ending.twin(splits), data, splits)
        verdict = judged(models, data, splits, experiment)
        kept = next(model for model in models if model.name == verdict["kept"])
    # Everything that stays at the site. What gates are fitted and tried on is the same for both models.
    pictures = Pictures.of(data, splits, expected_look(federated))
    report = _write(folder, ending, kept, verdict, splits, pictures)
    if kept is federated:
        shutil.rmtree(folder / FEDERATED, ignore_errors=True)  # of a verdict before the run went back
    else:
        report = _write(folder / FEDERATED, ending, federated, verdict, splits, pictures)
    # Last, what marks all of the above as done, and holds what leaves.
    scalars = _scalars(ending, report, _labelled(federated, splits, "test"), verdict, _columns(data, splits["test"]))
    write_json(
        folder / "figures.json",
        {
            "notice": NOT_A_DEVICE,
            "model_digest": model_digest,
            "chosen": ending.chosen.name,
            "theta": ending.kept.record.get("theta"),
            "test": report["figures"],
            "verdict": verdict,
            "scalars": scalars,
            **({"curve": list(ending.curve)} if ending.curve else {}),
        },
    )
    return scalars


def _write(
    folder: Path,
    ending: Ending,
    model: Contestant,
    verdict: Mapping[str, Any] | None,
    splits: Splits,
    pictures: Pictures,
) -> dict[str, Any]:
    """Write a model, its gate, its card for programs and for people, and its report; returns the report."""
    gate = site_gate(model, tensors_digest(model.model), ending.data, splits, pictures)
    card = _card(ending, model, verdict, splits, gate)
    write_tensors(folder / "model.safetensors", model.model, {"card": card})
    gate.gate.write(folder)
    write_json(folder / "card.json", card)
    write_page(folder / "card.md", card_page(card))
    report = site_report(_inputs(ending, model, card, splits["test"], gate))
    write_json(folder / "report.json", report)
    if ending.experiment.report.page:
        write_page(folder / "report.html", render_site(report))
    return report


def _labelled(model: Contestant, splits: Splits, name: str) -> LabelledPredictions:
    found = model.answers[name]
    answer = build_estimator(model.experiment.evaluation).predict(found.logits)
    labels = np.asarray(found.labels.numpy(), dtype=np.int64)
    return LabelledPredictions(answer.probabilities, answer.uncertainty, labels, splits[name].patients)


def _validated(model: Contestant, splits: Splits) -> tuple[LabelledPredictions, DoubtChoice]:
    """A model's answers to validation with the doubt that is used, and how that was chosen."""
    validation = _labelled(model, splits, "val")
    choice = choose_doubt(validation, gated=model.experiment.evaluation.gate is not None)
    return doubted(validation, choice.used), choice


def _card(
    ending: Ending, model: Contestant, verdict: Mapping[str, Any] | None, splits: Splits, gate: SiteGate
) -> dict[str, Any]:
    validation, choice = _validated(model, splits)
    test = doubted(_labelled(model, splits, "test"), choice.used)
    return build_card(
        experiment=model.experiment,
        scheme=ending.data.scheme,
        run=ending.run,
        site=ending.data.name,
        synthetic=ending.data.synthetic,
        chosen=ending.chosen,
        theta=ending.kept.record.get("theta") if model.name == FEDERATED else None,
        fingerprint=ending.data.fingerprint,
        data_changes=ending.data_changes,
        counts=ending.data.graded,
        model_digest=tensors_digest(model.model),
        normalisation=model.trainer.normalisation,
        start=model.trainer.provenance,
        public_sets=ending.data.public_sets,
        validation=validation,
        test=test,
        model=model.name,
        verdict=verdict,
        sums=ending.kept.record.get("sums") if model.name == FEDERATED else None,
        gate=_measures(model),
        look=LookFigures(
            gate.gate.record,
            gate.own,
            gate.patients,
            _on_spoiled(model, gate, choice.used),
            gate.odd,
            gate.silent,
        ),
        doubt=choice,
        order=order_of(test, ending.experiment.seed, ending.experiment.report.draws),
        asked=ending.data.promise,
        curve=ending.curve,
        support=supported_auc(
            model.answered("test").scores,
            test.labels,
            test.patients,
            ending.experiment.report.least_patients,
        ),
    )


def _on_spoiled(model: Contestant, gate: SiteGate, used: Doubt) -> dict[str, SpoiledFigures]:
    """What the gate and the model's own doubt say of spoiled validation images."""
    estimator = build_estimator(model.experiment.evaluation)
    found = {}
    for name, one in gate.spoiled.items():
        answer = estimator.predict(one.logits)
        labels, nobody = np.zeros(len(one.stopped), np.int64), ("",) * len(one.stopped)
        said = LabelledPredictions(answer.probabilities, answer.uncertainty, labels, nobody)
        found[name] = SpoiledFigures(one.stopped, doubted(said, used).uncertainty)
    return found


def _measures(model: Contestant) -> bool | None:
    """Whether a model knows how far an image lies from the site's own; None where its estimator does not ask."""
    return bool(model.model["gate.weight"].any()) if model.experiment.evaluation.gate is not None else None


def _inputs(ending: Ending, model: Contestant, card: dict[str, Any], split: Split, gate: SiteGate) -> SiteReportInputs:
    test = model.answers["test"]
    return SiteReportInputs(
        site=ending.data.name,
        run=ending.run,
        synthetic=ending.data.synthetic,
        scheme=ending.data.scheme,
        method=card["method"],
        chosen=ending.chosen.name,
        estimator=model.experiment.evaluation.estimator,
        test=AnsweredSplit(
            test.logits,
            test.labels,
            split.patients,
            split.files,
            split.images,
            gate.silent,
            _columns(ending.data, split),
        ),
        history=rounds_of(ending.history),
        card=card,
        partition=ending.trainer.partition.by_kind(),
        settings=ending.experiment.agreed() | {"evaluation": model.experiment.agreed()["evaluation"]},
        versions=versions(),
        ledger=Ledger(ending.folder / "ledger.jsonl").lines(),
        bad_files=ending.data.bad_files,
        images=ending.data.graded,
        seed=ending.experiment.seed,
        draws=ending.experiment.report.draws,
        least=ending.experiment.report.least_patients,
    )


def _columns(data: SiteData, split: Split) -> dict[str, list[str]]:
    return {name: data.column(name, split.files) for name in data.columns}


def _scalars(
    ending: Ending,
    report: dict[str, Any],
    test: LabelledPredictions,
    verdict: Mapping[str, Any] | None,
    columns: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    data = ending.data
    values = {name: report["figures"].get(name, {}).get("value") for name in _LEAVING}
    figures = {f"test_{name}": value for name, value in values.items() if value is not None} | leaving_scalars(
        report, ending.data.min_count
    )
    if verdict is not None and verdict["shared"] and verdict["outcome"] is not None:
        figures["verdict"] = next(code for code, name in OUTCOMES.items() if name == verdict["outcome"])
    if len(set(test.patients)) < data.min_count:
        figures = {}  # an accuracy of one patient is that patient's
    images = {f"images_{name}": float(count) for name, count in data.graded.items()}
    if ending.kept.record.get(FEW_LEFT_OUT):
        del images["images_train"]  # less the counts in the sums, it would be the count of few patients' images
    return {
        # At full precision a figure such as kappa narrows down the counts that are withheld.
        **{name: round(float(value), _DIGITS) for name, value in figures.items()},
        **encode(test.probabilities, test.labels, test.uncertainty, test.patients, data.min_count),
        **subgroup_sums(test, columns, data.scheme, data.min_count),
        "grades": float(data.scheme.num_classes),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
        **images,
    }


def finalise_encoder(
    run: str,
    folder: Path,
    experiment: Experiment,
    data: SiteData,
    tensors: Tensors,
    normalisation: Normalisation,
    start: Learned,
) -> dict[str, float]:
    """Write a site's encoder to `final/` and return the scalars that may leave.

    Args:
        run: Name of the run.
        folder: The site's own folder of the run.
        experiment: The run's settings.
        data: The site's data.
        tensors: The last aggregate, with what the site keeps of the encoder laid over it.
        normalisation: How the encoder's images were normalised.
        start: What is told of the weights that the run began with.
    """
    write_encoder(folder / "final", run, experiment, tensors, normalisation, start)
    return {
        "images_pretrain": float(data.counts["pretrain"]),
        "bad_files": float(data.bad_files),
        "synthetic": float(data.synthetic),
    }
