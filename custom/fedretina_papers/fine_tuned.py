"""Rows that differ from another only in their fine-tuning: they begin with its run, so that nothing trains twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.data.site_data import SiteData
from fedretina.exchange.payload import Tensors
from fedretina.local.site_state import STATE, Snapshot, read_history
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import TUNE, Plan, Step
from fedretina.settings.training import TuneSettings
from fedretina.storage import read_json, read_tensors, write_json, write_tensors
from fedretina_papers.choices import RowChoice
from fedretina_papers.plan import BenchmarkPlan


class Tuned(NamedTuple):
    """A site's model after its fine-tuning.

    Attributes:
        model: All its tensors.
        record: Loss and accuracy of the epochs.
        scalars: What the site says of its validation images.
    """

    model: Tensors
    record: Mapping[str, Any]
    scalars: dict[str, float]


def begins_with(plan: BenchmarkPlan, choice: RowChoice) -> RowChoice | None:
    """The row of the plan whose run is this row's, up to its fine-tuning; None where there is none.

    Both have the same grid, and the row takes what the other's tuning chose. A row with a grid of its own trains by
    itself, for its numbers are chosen by its own end; so does one of sites that put their images together, and one that
    fits a calibrator after its fine-tuning.

    Args:
        plan: The plan.
        choice: The row.
    """
    seed, grid = plan.seeds_of(choice)[0], plan.grid_of(choice)
    own = plan.experiment_of(choice, seed, {})
    if not own.tune.at_end or own.pooled or own.network.calibrator:
        return None
    for other in plan.rows:
        whole = plan.grid_of(other) == grid and set(plan.seeds_of(choice)) <= set(plan.seeds_of(other))
        whole = whole and not other.in_one_place
        same = whole and plan.trained_on(other) == plan.trained_on(choice) and other.by_seed == choice.by_seed
        if same and _deciding(plan.experiment_of(other, seed, {})) == _deciding(own, TuneSettings()):
            return other
    return None


def tune_on(experiment: Experiment, sites: Mapping[str, SiteData], start: Path, folder: Path) -> None:
    """Fine-tune the models that a run ended with, as the run itself would have done at its end.

    Models, course and results stand in `folder` afterwards as if all of it had run there.

    Args:
        experiment: Settings of the row that fine-tunes.
        sites: Data by site.
        start: Folder of the run that it begins with.
        folder: Its own folder.

    Raises:
        StateError: The run that it begins with is not there, or is damaged.
        TrainingError: A site cannot fine-tune.
    """
    began = time.monotonic()
    plan = Plan.of(experiment)
    step = plan.find(TUNE, 0)
    if step is None:
        raise ValueError("these settings ask for no fine-tuning: give tune.epochs.")
    scalars = {}
    for name in sorted(sites):
        if (start / name / "final" / "model.safetensors").exists():  # a site may have had no accepted update
            tuned = _tuned(experiment, sites[name], start / name, step)
            write_tensors(folder / name / "final" / "model.safetensors", tuned.model, {})
            history = read_history(start / name)
            history.note(step, **tuned.record)
            write_json(folder / name / STATE, {"history": history.noted})
            scalars[name] = tuned.scalars
    results = read_json(start / "server" / "results.json")
    validated = results["steps"][-1]  # what moves for fine-tuning is what moved for it
    results["steps"].append({**validated, "step": step.name, "task": step.task, "scalars": scalars})
    results["settings"] = experiment.agreed()
    write_json(folder / "server" / "results.json", results)
    before = read_json(start / "seconds.json")["seconds"]
    seconds = None if before is None else round(before + time.monotonic() - began, 1)
    write_json(folder / "seconds.json", {"seconds": seconds})


def _tuned(experiment: Experiment, data: SiteData, start: Path, step: Step) -> Tuned:
    trainer = LocalTrainer(experiment, data)
    model = read_tensors(start / "final" / "model.safetensors")[0]
    # The final model is the chosen aggregate and the site's part for it, joined.
    snapshot = trainer.tune({}, Snapshot(model, {}), step)
    found = trainer.evaluate(trainer.answers({}, snapshot.tensors, data.split("val")))
    said = {"val_auc": found.auc, "val_accuracy": found.accuracy}
    record = {name: snapshot.record[name] for name in ("loss", "accuracy")}
    return Tuned(trainer.state({}, snapshot.tensors), record, {k: float(v) for k, v in said.items() if v is not None})


def _deciding(experiment: Experiment, tune: TuneSettings | None = None) -> dict[str, Any]:
    """What decides a run, with other fine-tuning where it is given; nothing depends on the name of a row."""
    settings = (experiment if tune is None else experiment.model_copy(update={"tune": tune})).agreed()
    return {name: value for name, value in settings.items() if name != "row"}
