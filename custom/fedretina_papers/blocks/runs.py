"""The runs of a block in one process: draw by draw, each row tuned once, run, measured and stored."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.data.site_data import SiteData
from fedretina.errors import DivergedError, FedretinaError, SettingsError
from fedretina.settings.evaluation import SoftmaxMeanSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.scalars import MIN_COUNT
from fedretina.storage import read_json, write_json
from fedretina_papers.blocks.figures import Said, measured, read
from fedretina_papers.blocks.hospitals import (
    Hospital,
    ImageSet,
    as_by_own_batchnorm,
    deal,
    read_sets,
    with_splits,
    with_stages,
    without_exits,
)
from fedretina_papers.blocks.joined import at_even_grades, at_own_temperature, joined
from fedretina_papers.blocks.plan import LESS_IS_BETTER, PIXELS, BlockCase, BlockPlan, BlockRow, Size
from fedretina_papers.blocks.side_by_side import goes_side_by_side, trained_side_by_side
from fedretina_papers.blocks.train import Ran, pooled, summed, trained
from fedretina_papers.choices import passes
from fedretina_papers.one_run import machine
from fedretina_papers.tuning import Search


class Draw(NamedTuple):
    """A draw of hospitals, which all rows are run on."""

    case: str
    size: Size
    draw: int


class Outcome(NamedTuple):
    """Of a run: which, what came out or why nothing did, and whether that is so."""

    name: str
    words: str
    failed: bool


def _widest(plan: BlockPlan) -> Experiment:
    """The settings by which images are read: with early exits where any row has them."""
    trained = [row for row in plan.rows if row.kind in ("trained", "pooled") and plan.shown(row) != PIXELS]
    every = [plan.experiment_of(row, 1, {}) for row in trained]
    return next((one for one in every if one.network.exits is not None), every[0])


class BlockRuns:
    """The runs of a block in one process; what rows of a draw have in common is worked out once.

    Attributes:
        plan: What is run.
        out: The block's folder.

    Args:
        plan: What is run.
        out: The block's folder.
        said: Called while images are read: of which site, how many, of how many.
    """

    def __init__(
        self, plan: BlockPlan, out: Path, said: Callable[[str, int, int], None] = lambda what, done, of: None
    ) -> None:
        torch.set_num_threads(1)
        self.plan = plan
        self.out = out
        self._said = said
        self._sets: dict[str, dict[str, ImageSet]] = {}
        self._dealt: tuple[Any, dict[str, dict[str, Hospital]]] = ((), {})
        self._sums: dict[tuple[str, ...], dict[str, Ran]] = {}
        self._last: tuple[Sequence[Experiment], Mapping[str, Hospital], Ran] = ((), {}, Ran({}, 0, 0))

    def sets(self, shown: str) -> dict[str, ImageSet]:
        """All sets as rows see them, see `BlockPlan.shown`; read once."""
        if shown not in self._sets:
            self._sets[shown] = read_sets(self.plan, _widest(self.plan), self.out / "cache", self._said, shown)
        return self._sets[shown]

    def waiting(self, draw: Draw) -> list[BlockRow]:
        """Rows that have not run in a draw, controls before methods."""
        mine = self.plan.at(draw.size, self.plan.case(draw.case)).rows
        rows = sorted(mine, key=lambda row: ("alone", "pooled", "federated").index(row.role))
        return [self.plan.row(row.name, draw.case) for row in rows if not self._file(draw, row).exists()]

    def runs(self, draw: Draw) -> Iterator[Outcome]:
        """Run what waits of a draw, and store each run as it ends."""
        for row in self.waiting(draw):
            name = f"{draw.case}, {row.name}, {draw.size}, draw {draw.draw}"
            try:
                yield Outcome(name, self._store(draw, row), False)
            except FedretinaError as error:
                yield Outcome(name, str(error), True)

    def _file(self, draw: Draw, row: BlockRow) -> Path:
        return self.out / "results" / draw.case / f"{draw.size}" / row.name / f"draw-{draw.draw}.json"

    def _store(self, of: Draw, row: BlockRow) -> str:
        """Run a row once and write its record; say what came out."""
        case, (_, size, draw) = self.plan.case(of.case), of
        change = self.tuned(of.case, row)
        hospitals, began = self._hospitals(case, size, draw, self.plan.shown(row)), time.monotonic()
        said, ran, went = self._run(case, row, hospitals, draw + 1, change)
        seconds = time.monotonic() - began
        found = measured(hospitals, said, "test", self.plan.figures, self.plan.least, self.plan.resamples)
        images = {
            name: {split: one.data.counts[split] for split in ("train", "val")} | {"grades": _grades(one.data)}
            for name, one in hospitals.items()
        }
        sites = {name: {"images": images[name], "test": dict(test)} for name, test in found.sites.items()}
        begun = self.plan.encoders.get(row.start)
        blind = (0, 0, 0) if begun is None else (begun.passes, begun.sent, begun.received)
        record = {
            "case": case.name,
            "row": row.name,
            "size": size,
            "draw": draw,
            "sites": sites,
            "drawn": {name: list(values) for name, values in found.drawn.items()},
            "passes": went + blind[0],
            "bytes_up": round(ran.up / len(hospitals)) + blind[1],
            "bytes_down": round(ran.down / len(hospitals)) + blind[2],
            "seconds": round(seconds, 1),
            "machine": machine(),
            "tuned": change,
        }
        if ran.correction is not None:
            record["correction_ratio"] = ran.correction
        write_json(self._file(of, row), record)
        first = self.plan.figures[0]
        known = [one for test in found.sites.values() if (one := test.get(first)) is not None]
        return f"{first} {fmean(known):.3f}, {seconds:.1f} s" if known else f"{seconds:.1f} s"

    def _hospitals(self, case: BlockCase, size: Size, draw: int, shown: str) -> dict[str, Hospital]:
        """The hospitals of a draw as rows see them; the same patients whatever these see."""
        key = (case.name, size, draw)
        if self._dealt[0] != key:
            self._dealt, self._sums = (key, {}), {}
        if shown not in self._dealt[1]:
            self._dealt[1][shown] = deal(case, self.sets(shown), size, draw)
        return self._dealt[1][shown]

    def _run(
        self, case: BlockCase, row: BlockRow, hospitals: Mapping[str, Hospital], seed: int, change: Mapping[str, Any]
    ) -> tuple[dict[str, Said], Ran, int]:
        """What a row says of each hospital's images, what moved, and how often it went over the training images."""
        if row.role == "alone":  # what the others do changes nothing
            hospitals = {name: one for name, one in hospitals.items() if one.judged}
        if row.kind == "majority":
            return {name: _commonest(one.data) for name, one in hospitals.items()}, Ran({}, 0, 0), 0
        if row.kind == "ensemble":
            return self._ensemble(row, hospitals, seed, change)
        if row.kind == "mean":
            return self._mean(row, case, hospitals, seed)
        if row.kind == "joined":
            return self._joined(row, case, hospitals, seed)
        experiment = self.plan.experiment_of(row, seed, change)
        ran = self._ran(row, experiment, hospitals)
        said = {name: read(experiment, one["test"]) for name, one in ran.answers.items()}
        if row.kind == "temperature":
            said = {
                name: at_own_temperature(
                    experiment, one, read(experiment, ran.answers[name]["val"]), hospitals[name].data
                )
                for name, one in said.items()
            }
        if row.kind == "even":
            said = {name: at_even_grades(experiment, one, hospitals[name].data) for name, one in said.items()}
        return said, ran, round(passes(experiment))

    def _ran(self, row: BlockRow, experiment: Experiment, hospitals: Mapping[str, Hospital]) -> Ran:
        if row.kind == "sums":
            return self._summed(row, experiment)
        plain = experiment.network.exits is None and self.plan.shown(row) != PIXELS
        data = {name: self._pooled(one) if plain else one.data for name, one in hospitals.items()}
        if row.standard:
            data = {name: as_by_own_batchnorm(one) for name, one in data.items()}
        begun = self._begun(row, experiment, hospitals)
        if row.kind == "pooled":
            return pooled(begun[0][0], data)
        if row.standard:
            return self._trained(experiment, data)
        asked, known, ran = self._last
        same = len(known) == len(hospitals) and all(one is hospitals.get(name) for name, one in known.items())
        if not same or asked != [one for one, _ in begun]:
            ran = _together([self._trained(one, {name: data[name] for name in names}) for one, names in begun])
            # A temperature or even grades read their row's run.
            self._last = [one for one, _ in begun], hospitals, ran
        return ran

    def _begun(
        self, row: BlockRow, experiment: Experiment, hospitals: Mapping[str, Hospital]
    ) -> list[tuple[Experiment, list[str]]]:
        """A row's settings with the weights that a network which trains whole begins from, and whose they are.

        Raises:
            SettingsError: Hospitals that share a network are to begin from different ones.
        """
        if not row.start or self.plan.shown(row) != PIXELS:
            return [(experiment, list(hospitals))]
        found: list[tuple[Experiment, list[str]]] = []
        for name, one in hospitals.items():
            network = experiment.network.model_copy(update={"weights": self.plan.begin(row.start, one.of)})
            mine = experiment.model_copy(update={"network": network})
            like = next((names for other, names in found if other == mine), None)
            if like is None:
                found.append((mine, like := []))
            like.append(name)
        if len(found) > 1 and row.role != "alone":
            raise SettingsError(
                f"row {row.name!r} trains one network, but the encoder {row.start!r} differs from set to set: take "
                "one that all sites pre-trained together."
            )
        return found

    def _trained(self, experiment: Experiment, data: Mapping[str, SiteData]) -> Ran:
        if goes_side_by_side(experiment):
            return trained_side_by_side(experiment, data)
        with tempfile.TemporaryDirectory(dir=self.out) as folder:
            return trained(experiment, data, Path(folder))

    def _mean(
        self, row: BlockRow, case: BlockCase, hospitals: Mapping[str, Hospital], seed: int
    ) -> tuple[dict[str, Said], Ran, int]:
        """The mean of the probabilities of several rows, each tuned as it is by itself."""
        parts = [self.plan.row(name, case.name) for name in row.parts]
        ran = [self._run(case, part, hospitals, seed, self.tuned(case.name, part)) for part in parts]
        said = {}
        for name in hospitals:
            odds = np.mean([answers[name].probabilities for answers, _, _ in ran], axis=0)
            said[name] = Said(odds, 1 - odds.max(1), odds)
        moved = Ran({}, sum(one.up for _, one, _ in ran), sum(one.down for _, one, _ in ran))
        return said, moved, sum(went for _, _, went in ran)

    def _joined(
        self, row: BlockRow, case: BlockCase, hospitals: Mapping[str, Hospital], seed: int
    ) -> tuple[dict[str, Said], Ran, int]:
        parts: list[dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]] = []
        up = down = went = 0
        for part in (self.plan.row(name, case.name) for name in row.parts):
            experiment = self.plan.experiment_of(part, seed, self.tuned(case.name, part))
            ran = self._ran(part, experiment, hospitals)
            said = {name: {split: read(experiment, one[split]) for split in one} for name, one in ran.answers.items()}
            parts.append({name: (one["val"].probabilities, one["test"].probabilities) for name, one in said.items()})
            up, down, went = up + ran.up, down + ran.down, went + round(passes(experiment))
        labels = {name: one.data.split("val").labels.numpy() for name, one in hospitals.items()}
        return joined(parts, labels), Ran({}, up, down), went

    def _summed(self, row: BlockRow, experiment: Experiment) -> Ran:
        """What a row of heads from sums answers; rows that read the sums of a draw otherwise share the work."""
        sums = experiment.sums
        assert sums is not None
        asked = sums.model_copy(update={"answer": "both"}).model_dump_json()
        key = (row.start, f"{row.stages}", f"{row.small_grades}", asked)
        if key not in self._sums:
            sets = self.sets(row.start)
            data = {
                name: with_stages(one.data, (*sets[one.of].early, sets[one.of].pooled))
                if row.stages
                else self._pooled(one)
                for name, one in self._dealt[1][row.start].items()
            }
            if not row.small_grades:
                data = {name: replace(one, min_count=MIN_COUNT) for name, one in data.items()}
            self._sums[key] = summed(experiment, data)
        return self._sums[key][sums.answer]

    def _pooled(self, hospital: Hospital) -> SiteData:
        return without_exits(hospital.data, self.sets("")[hospital.of].pooled)

    def _ensemble(
        self, row: BlockRow, hospitals: Mapping[str, Hospital], seed: int, change: Mapping[str, Any]
    ) -> tuple[dict[str, Said], Ran, int]:
        """Deep ensemble: the mean softmax of several starts."""
        runs = []
        for member in range(row.members):
            experiment = self.plan.experiment_of(row, 1000 * (member + 1) + seed, change)
            runs.append(self._ran(row, experiment, hospitals))
        joined = experiment.model_copy(update={"evaluation": SoftmaxMeanSettings()})
        answers = {
            name: {part: torch.stack([_last(run.answers[name][part]) for run in runs], 1) for part in ("val", "test")}
            for name in hospitals
        }
        said = {name: read(joined, one["test"]) for name, one in answers.items()}
        moved = Ran(answers, sum(run.up for run in runs), sum(run.down for run in runs))
        return said, moved, row.members * round(passes(experiment))

    def tuned(self, name: str, row: BlockRow) -> dict[str, Any]:
        """What tuning chose for a row in a case; it is done once, on a draw that is not reported.

        Each number is judged by the mean of the primary figures over the hospitals, on all validation images of the
        sets, figures of which less is better being taken from 1; the test images are never seen.
        """
        tuned = self.plan.row(row.of if row.of and row.kind != "pooled" else row.name, name)
        if not tuned.tune:
            return {}
        file, case = self.out / "tuning" / name / f"{tuned.name}.json", self.plan.case(name)
        if file.exists():
            found: dict[str, Any] = read_json(file)["chosen"]
            return found
        sets = self.sets(self.plan.shown(tuned))
        hospitals = {
            title: one._replace(data=_judged_on_validation(one, sets[one.of]))
            for title, one in deal(case, sets, self.plan.tuning_size, self.plan.tuning_draw).items()
        }
        search = Search(tuned.tune)
        while asked := search.asks:
            search.learn([self._worth(case, tuned, hospitals, change) for change in asked])
        write_json(file, search.record)
        return search.change

    def _worth(
        self, case: BlockCase, row: BlockRow, hospitals: Mapping[str, Hospital], change: Mapping[str, Any]
    ) -> float | None:
        try:
            said, _, _ = self._run(case, row, hospitals, self.plan.tuning_draw + 1, change)
        except DivergedError:
            return None
        return worth(
            measured(hospitals, said, "test", self.plan.figures[: self.plan.primary], self.plan.least, 0).sites
        )


def _together(rans: Sequence[Ran]) -> Ran:
    """One run of hospitals that have nothing to do with each other; itself where there is one."""
    if len(rans) == 1:
        return rans[0]
    answers = {name: one for ran in rans for name, one in ran.answers.items()}
    return Ran(answers, sum(ran.up for ran in rans), sum(ran.down for ran in rans))


def worth(sites: Mapping[str, Mapping[str, float | None]]) -> float:
    """What tuning looks at, more being better: the mean of the figures, those of which less is better taken from 1.

    Args:
        sites: Figures by hospital and name; None where one is undefined.
    """
    known = [
        1 - one if name in LESS_IS_BETTER else one
        for test in sites.values()
        for name, one in test.items()
        if one is not None
    ]
    return fmean(known) if known else 0.0


def _judged_on_validation(hospital: Hospital, whole: ImageSet) -> SiteData:
    """A hospital whose place for test images holds all validation images of its set."""
    parts = {name: hospital.data.split(name) for name in ("train", "val")}
    return with_splits(hospital.data, {**parts, "test": whole.data.split("val")})


def _last(logits: Tensor) -> Tensor:
    return logits if logits.ndim == 2 else logits[:, -1]


def _grades(data: SiteData) -> list[int]:
    counts: list[int] = np.bincount(data.split("train").labels.numpy(), minlength=data.scheme.num_classes).tolist()
    return counts


def _commonest(data: SiteData) -> Said:
    """Answers to everything with how common each grade is among the training images."""
    shares = np.array(_grades(data), dtype=np.float64) + 1e-9
    odds = np.tile(shares / shares.sum(), (len(data.split("test").labels), 1))
    return Said(odds, 1 - odds.max(1), odds)
