"""A run in one place, as a run of its row leaves it, resumable from round to round."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedretina.data.site_data import SiteData
from fedretina.errors import StateError
from fedretina.evaluation.model_selection import chosen_step
from fedretina.exchange.payload import Tensors
from fedretina.local.site_state import STATE, History
from fedretina.local.trainer import LocalTrainer
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_tensors, write_json, write_tensors
from fedretina_papers.one_place import OnePlace, Together


def train_in_one_place(
    experiment: Experiment,
    sites: Mapping[str, SiteData],
    folder: Path,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Train a row's network in one place, or go on with it, and leave models, course and results as a run does.

    The round whose model is kept is chosen as a run chooses it. Stopped at any moment, the next call goes on behind the
    last whole round and ends with the same bits.

    Args:
        experiment: The row's settings.
        sites: Data by name.
        folder: Of the run.
        tell: Called before each round and at the end: how many are done, and of how many.

    Raises:
        SettingsError: The row cannot, see `require_one_place`.
        TrainingError: There are fewer images than a batch.
        DivergedError: A loss that is not finite.
        StateError: What was reached was reached with other images, or cannot be read or written.
    """
    began = time.monotonic()
    trainers = {name: LocalTrainer(experiment, data) for name, data in sorted(sites.items())}
    place = OnePlace(experiment, sites, trainers)
    stored, of = _Rounds(folder / "rounds", experiment, sites), len(place.steps)
    course, kept = _Course(experiment, sites, trainers), place.models()
    fresh = stored.last is None
    if stored.last is not None:
        memory, found = stored.read(stored.last)
        course.recall(found)
        place.recall(stored.read(course.chosen)[0])
        kept = place.models()
        place.recall(memory)
        stored.keep(stored.last, course.chosen)
    tell(course.done, of)
    for one in place.rounds(course.done):
        if course.note(one):
            kept = one.models
        stored.write(course.done - 1, place.memory(), course.record)
        stored.keep(course.done - 1, course.chosen)
        tell(course.done, of)
    for name, trainer in trainers.items():
        write_tensors(folder / name / "final" / "model.safetensors", trainer.state(*kept[name]), {})
        write_json(folder / name / STATE, {"history": course.histories[name].noted})
    steps = [*course.steps, _record("validate-0000", "validate", course.said)]
    results = {
        "settings": experiment.agreed(),
        "steps": steps,
        "end": None,
        "chosen": steps[course.chosen]["step"],
        "validation": {},
        "sites": {name: {"theta": None, "weight": None} for name in sites},
    }
    write_json(folder / "server" / "results.json", results)
    # A run that was interrupted has no honest time of its own.
    write_json(folder / "seconds.json", {"seconds": round(time.monotonic() - began, 1) if fresh else None})
    stored.forget()


class _Course:
    """What a training in one place leaves beside its networks.

    Attributes:
        steps: Records of its rounds.
        said: What each site's model was worth after the last one.
        histories: Figures by site.
        chosen: Number of the round whose models the training would end with now.
    """

    def __init__(
        self, experiment: Experiment, sites: Mapping[str, SiteData], trainers: Mapping[str, LocalTrainer]
    ) -> None:
        self._choice, self._sites, self._trainers = experiment.choice, sites, trainers
        self.steps: list[dict[str, Any]] = []
        self.said: dict[str, dict[str, float]] = {}
        self.histories = {name: History() for name in trainers}
        self.chosen = 0

    @property
    def done(self) -> int:
        """How many rounds are done."""
        return len(self.steps)

    @property
    def record(self) -> dict[str, Any]:
        """All of it in a form that a file can hold."""
        histories = {name: history.noted for name, history in self.histories.items()}
        return {"steps": self.steps, "said": self.said, "histories": histories, "chosen": self.chosen}

    def recall(self, record: Mapping[str, Any]) -> None:
        """Go on from a `record`."""
        self.steps, self.said, self.chosen = record["steps"], record["said"], record["chosen"]
        self.histories = {name: History(noted) for name, noted in record["histories"].items()}

    def note(self, one: Together) -> bool:
        """Measure the models of a round, and say whether the training would end with them."""
        at = len(self.steps)
        images = {name: {"images": float(data.counts["train"])} for name, data in self._sites.items()}
        told = {name: images[name] | self.said.get(name, {}) for name in images}
        self.steps.append(_record(one.step.name, "train", told))
        self.said = {}
        for name, trainer in self._trainers.items():
            split = self._sites[name].split("val")
            answers = trainer.answers(*one.models[name], split)
            found, supported = trainer.evaluate(answers), trainer.supported(answers, split.patients)
            worth = {"val_auc": found.auc, "val_auc_supported": supported, "val_accuracy": found.accuracy}
            self.said[name] = {key: float(value) for key, value in worth.items() if value is not None}
            self.histories[name].note(one.step, loss=one.loss, validation={"accuracy": found.accuracy})
        # As a run has it: what a round is worth stands in the record of the step after it.
        steps = [*self.steps, _record("validate-0000", "validate", self.said)]
        now = chosen_step(steps, range(at + 1), self._choice)
        if now is None or now == at:  # where no site can measure any, the last is as good
            self.chosen = at
        return self.chosen == at


class _Rounds:
    """Files of what rounds have reached: of the last one, and of the one that the training would end with.

    Each is written at once, with all that the next round needs, so that a kill costs no more than the round it was in.
    """

    def __init__(self, folder: Path, experiment: Experiment, sites: Mapping[str, SiteData]) -> None:
        self._folder = folder
        self._of = [experiment.settings_digest(), {name: data.fingerprint for name, data in sorted(sites.items())}]

    @property
    def last(self) -> int | None:
        """Number of the last round that is whole; None before the first."""
        return max((int(path.stem) for path in self._folder.glob("[0-9]*.safetensors")), default=None)

    def write(self, number: int, memory: Tensors, record: Mapping[str, Any]) -> None:
        """Store what a round reached."""
        write_tensors(self._file(number), memory, {**record, "of": self._of})

    def keep(self, *numbers: int) -> None:
        """Remove what all other rounds reached."""
        for path in self._folder.glob("[0-9]*.safetensors"):
            if int(path.stem) not in numbers:
                path.unlink()

    def read(self, number: int) -> tuple[Tensors, dict[str, Any]]:
        """What a round reached.

        Raises:
            StateError: It is of other images or settings, or cannot be read.
        """
        memory, record = read_tensors(self._file(number))
        if record["of"] != self._of:
            raise StateError(
                f"{self._folder} holds rounds of other images, settings or another version: go on with those that "
                "began them, or remove the folder to begin anew."
            )
        return memory, record

    def forget(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:05d}.safetensors"


def _record(step: str, task: str, scalars: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    return {"step": step, "task": task, "scalars": scalars}
