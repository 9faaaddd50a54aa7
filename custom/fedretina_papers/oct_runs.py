"""What the tables of the OCT paper need of a run, and the figures that they show of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import SettingsError
from fedretina.evaluation.bootstrap import Counts, Interval, patient_bootstrap
from fedretina.exchange.moved import Moved
from fedretina_papers.costs.forward_cost import ForwardCost
from fedretina_papers.engine.records import Records
from fedretina_papers.statistics.classification import Classification, classification


class SiteAnswers(NamedTuple):
    """What a run answered about a site's test images.

    Attributes:
        origin: The public set that the images are of, such as "kermany"; several sites may share one.
        classes: Names of the site's classes, in the order of the columns.
        labels: int64 [N], 0 to K - 1.
        probabilities: float64 [N, K].
        patients: Patient of each image [N].
        trained: Whether the site took part in training; False for a set that was left out.
    """

    origin: str
    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    patients: Sequence[str]
    trained: bool = True


class RoundNote(NamedTuple):
    """A round, over the sites.

    Attributes:
        phase: Name of its phase.
        loss: Mean training loss; None where none was told.
        accuracy: Validation accuracy in [0, 1]; None in a phase without labels.
    """

    phase: str
    loss: float | None
    accuracy: float | None


class OctRun(NamedTuple):
    """One stored run.

    Attributes:
        name: Row or variant of the plan.
        seed: Its seed.
        title: The row in print.
        encoder: Name of the encoder.
        classes: Names of the shared classes.
        sites: Answers by site, those of a set left out among them.
        moved: Bytes by phase, over all its rounds and sites, as measured.
        history: Its rounds, both phases in order.
        cost: Parameters and arithmetic of the network with its head; None where not counted.
        inference_s: Seconds to answer one image; None where not measured.
        memory_bytes: Peak memory of a training step; None where not measured.
        seconds: Of all rounds; None for a run that was interrupted.
        training_images: Labelled training images of all its sites; None where not told.
        passes: Over a site's training images, those without labels among them; None where not told.
    """

    name: str
    seed: int
    title: str
    encoder: str
    classes: tuple[str, ...]
    sites: Mapping[str, SiteAnswers]
    moved: Mapping[str, Moved]
    history: tuple[RoundNote, ...]
    cost: ForwardCost | None = None
    inference_s: float | None = None
    memory_bytes: float | None = None
    seconds: float | None = None
    training_images: int | None = None
    passes: float | None = None


class OctFigures(NamedTuple):
    """A run with the figures of its answers.

    Attributes:
        run: The run.
        union: Figures of all test images of the sets that count (`OctResults.sets`), pooled; None without any.
        accuracy: Share of right answers of each set, over the images of its sites.
        images: Test images of each set.
        unseen: Sets of which no site took part in training.
        right: Whether each pooled image was answered rightly [N].
        patients: Patient of each pooled image [N].
    """

    run: OctRun
    union: Classification | None
    accuracy: Mapping[str, float]
    images: Mapping[str, int]
    unseen: frozenset[str]
    right: NDArray[np.bool_]
    patients: tuple[str, ...]

    @property
    def moved(self) -> Moved:
        """Bytes of the whole run."""
        return Moved(sum(one.up for one in self.run.moved.values()), sum(one.down for one in self.run.moved.values()))

    @property
    def sites(self) -> int:
        """Sites that took part in training."""
        return sum(site.trained for site in self.run.sites.values())

    def record(self) -> dict[str, Any]:
        """The figures of the tables: shares in [0, 1], bytes, seconds."""
        run, moved, rounds = self.run, self.moved, len(self.run.history)
        trained = {origin: share for origin, share in self.accuracy.items() if origin not in self.unseen}
        upload = moved.up / (rounds * self.sites) if rounds * self.sites else None  # phases may differ in what travels
        union = self.union
        return {
            "union": union and {**union._asdict(), "classes": [one._asdict() for one in union.classes]},
            "trained": trained,
            "worst": min(trained.values()) if len(trained) > 1 else None,
            "unseen": {origin: self.accuracy[origin] for origin in self.unseen},
            "images": self.images,
            "passes": run.passes,
            "bytes_up": moved.up,
            "up": moved.up,
            "down": moved.down,
            "both": moved.both,
            "upload": upload,
            "upload_of_all": None if upload is None else upload * self.sites,
            "rounds": rounds,
            "trained_sites": self.sites,
            "best": max((note.accuracy for note in run.history if note.accuracy is not None), default=None),
            "cost": run.cost and run.cost._asdict(),
            "inference_s": run.inference_s,
            "memory_bytes": run.memory_bytes,
            "seconds_a_round": None if run.seconds is None or not rounds else run.seconds / rounds,
            "training_images": run.training_images,
        }

    def rounds_to(self, target: float) -> int | None:
        """Number of the first round, over both phases, whose validation accuracy reaches a target; None if none does.

        Rounds without labels count, for they are paid for too.
        """
        return next(
            (at for at, one in enumerate(self.run.history, 1) if one.accuracy is not None and one.accuracy >= target),
            None,
        )


@dataclass(frozen=True)
class OctResults:
    """All runs, by name and then by seed.

    Attributes:
        runs: Figures of each run by name; a name without runs is left out.
        sets: The sets over whose images the figures of a method are pooled: those on which the proposed method trained
            and whose sites know all classes. The same sets for every run, also for one that trained on fewer. A site
            that knows only some classes answers an easier question, so its images are in no pool.
        intervals: Stored intervals of the mean accuracy by name, None where there is none; None as a whole where they
            are drawn from the answers.
        apart: See `Benchmark.apart`.
    """

    runs: Mapping[str, tuple[OctFigures, ...]]
    sets: tuple[str, ...]
    intervals: Mapping[str, Interval | None] | None = None
    apart: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Iterable[OctRun], order: Sequence[str]) -> OctResults:
        """Compute the figures.

        Args:
            runs: Stored runs, in any order.
            order: Names in the order of the tables, the proposed method first: the first that was run decides which
                sets count. Names that are not listed come behind, by alphabet.

        Raises:
            SettingsError: A name has two runs of one seed.
            TrainingError: Labels or probabilities are unfit.
        """
        found: dict[str, dict[int, OctRun]] = {}
        for run in runs:
            if run.seed in found.setdefault(run.name, {}):
                raise SettingsError(f"{run.name} has two runs of seed {run.seed}: give each seed once.")
            found[run.name][run.seed] = run
        names = [*(name for name in dict.fromkeys(order) if name in found), *sorted(set(found) - set(order))]
        sets = _whole_sets(found[names[0]][min(found[names[0]])]) if names else ()
        made = {name: tuple(_figures(found[name][seed], sets) for seed in sorted(found[name])) for name in names}
        return cls(made, sets)

    @cached_property
    def records(self) -> Records:
        """The figures of every run, for the engine of the tables."""
        return Records({name: {one.run.seed: one.record() for one in many} for name, many in self.runs.items()})

    def accuracy_interval(self, name: str, draws: int = 1000) -> Interval | None:
        """95 % interval over patients of the mean accuracy over seeds.

        None where the seeds did not answer the same images, as with a split anew for each.
        """
        if self.intervals is not None:
            return self.intervals.get(name)
        runs = self.runs.get(name, ())
        if not runs or not runs[0].patients or any(one.patients != runs[0].patients for one in runs):
            return None
        right = np.mean([one.right for one in runs], axis=0)

        def mean(counts: Counts) -> dict[str, NDArray[np.float64]]:
            return {"accuracy": counts @ right / np.sum(counts, axis=1)}

        return patient_bootstrap(mean, runs[0].patients, 0, draws)["accuracy"]


def _whole_sets(run: OctRun) -> tuple[str, ...]:
    trained = {site.origin for site in run.sites.values() if site.trained and site.classes == run.classes}
    return tuple(sorted(trained))


def _figures(run: OctRun, sets: Sequence[str]) -> OctFigures:
    pooled = [site for site in run.sites.values() if site.origin in sets and site.classes == run.classes]
    joined = (
        classification(
            np.concatenate([site.probabilities for site in pooled]), np.concatenate([site.labels for site in pooled])
        )
        if any(len(site.labels) for site in pooled)
        else None
    )
    right: dict[str, int] = {}
    images: dict[str, int] = {}
    for site in run.sites.values():
        if len(site.labels):
            right[site.origin] = right.get(site.origin, 0) + int(np.sum(_right(site)))
            images[site.origin] = images.get(site.origin, 0) + len(site.labels)
    known = {site.origin for site in run.sites.values() if site.trained}
    return OctFigures(
        run=run,
        union=joined,
        accuracy={origin: right[origin] / count for origin, count in images.items()},
        images=images,
        unseen=frozenset(images) - known,
        right=np.concatenate([_right(site) for site in pooled] or [np.empty(0, dtype=np.bool_)]),
        patients=tuple(f"{site.origin}|{patient}" for site in pooled for patient in site.patients),
    )


def _right(site: SiteAnswers) -> NDArray[np.bool_]:
    hits: NDArray[np.bool_] = np.equal(np.argmax(site.probabilities, axis=1), site.labels)
    return hits
