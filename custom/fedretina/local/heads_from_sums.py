"""A site's part in heads from sums: what it sums of its training images, and the model that it makes of the total.

The encoder stands still: it is the one that the run starts with, or that its phases without labels gave, which the
server then sends along. All that the heads need besides it and the total (standardisation, own head) is kept as the
site's own part of the run; the end folds it into one linear layer, an ordinary head.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedretina.analytic.answer import Scaling, class_shares, in_grades, mean_of
from fedretina.analytic.features import FeatureMap, LinearHead, projection
from fedretina.analytic.ridge import RidgeHead, likeliest, own_head
from fedretina.analytic.sums import Sums
from fedretina.data.site_data import SiteData, Split
from fedretina.errors import DataError, SettingsError, TrainingError
from fedretina.exchange.noise import noised_sums
from fedretina.exchange.partition import SUMS
from fedretina.exchange.payload import Tensors
from fedretina.local.features import FrozenEncoder, fitted_gate
from fedretina.local.site_state import Snapshot
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.policy import SumsNoise
from fedretina.settings.sums import SumsSettings

_log = logging.getLogger(__name__)
_MEAN, _WEIGHT, _PRIOR = "own.mean", "own.weight", "own.prior"
HEAD = MappingProxyType({"head.0.weight": "weight", "head.0.bias": "bias"})
"""Keys of a linear head in a network's state, and the part of `LinearHead` that each is."""
_AS_IT_STARTS: Tensors = MappingProxyType({})
ANSWERS = ("own", "federated", "both")
FEW_LEFT_OUT = "few_left_out"
"""In a site's own record: whether patients fewer than `data.min_count` have the images that are in no sum."""


class Answer(NamedTuple):
    """The head that a site ends with.

    Attributes:
        head: On the encoder's features; its outputs are logits of the site's grades.
        record: Which of `ANSWERS` it is, the strengths of both heads, and the loss of each on validation.
        gate: By its keys in a network's state; empty where the run's estimator reads none.
    """

    head: LinearHead
    record: Mapping[str, Any]
    gate: Tensors


class _Scored(NamedTuple):
    """One of the heads that a site may end with: its loss on validation, and the strength of its ridge."""

    head: LinearHead
    loss: float
    strength: float


class SiteNoise(NamedTuple):
    """What a site adds to sums before they leave.

    Attributes:
        settings: How much.
        key: The site's secret for it.
    """

    settings: SumsNoise
    key: bytes


class HeadsFromSums:
    """What a site does in a run of sums.

    Args:
        experiment: The run's settings; it has `sums` and `classes`.
        data: The site's data.
        noise: What is added to what leaves; None for nothing.
        small_grades: Whether grades of fewer patients than `data.min_count` are summed too.

    Raises:
        SettingsError: It is a run that trains.
        TrainingError: The site's scheme does not fit the classes, or none of its grades stands for any of them.
    """

    def __init__(
        self, experiment: Experiment, data: SiteData, noise: SiteNoise | None = None, small_grades: bool = False
    ) -> None:
        if experiment.sums is None or experiment.classes is None:
            raise SettingsError("this run trains: it has no phase of sums.")
        self._experiment = experiment
        self._settings: SumsSettings = experiment.sums
        self._classes = len(experiment.classes)
        self._data = data
        self._noise = noise
        self._small_grades = noise is not None or small_grades
        self._encoder = FrozenEncoder(experiment, data)
        self._cover = _cover(data, experiment.classes)

    def sums(self, encoder: Tensors = _AS_IT_STARTS) -> tuple[Sums, Snapshot]:
        """What leaves, and what the site keeps: its standardisation and its own head.

        Images of a grade with fewer patients than `data.min_count` stay out of the sums: whoever sees these would see
        their mean, in the clear the server, and under encryption each site, in the total, where no other site has the
        grade. The site's own head learns from them too. Under noise, or where the site says so, every grade of a site
        with that many patients is summed. Under noise the images of a patient weigh 1 together, as it is made for.

        Args:
            encoder: What the run's phases without labels made of the encoder, by the network's keys.

        Raises:
            TrainingError: No grade has enough patients, so nothing may leave; the site adds noise, and the job sets no
                bound for it; or a feature is not finite.
        """
        noise, bound = self._noise, self._settings.bound
        if noise is not None and bound is None:
            raise TrainingError(
                "this site adds noise to sums, for which the job must bound each image: set `bound` in the phase's "
                "sums, and few features."
            )
        split = self._data.split("train")
        with reproducible_torch(self._experiment.training):
            seen = self._on(encoder).features(split)
            told = self._told(split)
            # What leaves is centred by the images in it: by all of them, it would tell of those that stay out.
            leaving = self._map(seen[told])
            shares = class_shares(split.labels, self._cover, self._classes, self._settings.shares)
            if noise is not None:
                shares = shares / _images_of(split.patients)
            with _refusing("the sums of this site cannot be formed"):
                sums = Sums.of(leaving(seen[told], cut=True), shares[told], self._settings.balance)
            if noise is not None and leaving.longest is not None:
                length = math.hypot(leaving.longest, 1.0)
                sums = noised_sums(sums, noise.settings, length, noise.key)
            kept = self._own_part(split, seen)
        record = {"images_summed": float(sums.counts.sum()), FEW_LEFT_OUT: self._few(split, ~told)}
        return sums, kept._replace(record={**kept.record, **record})

    def require_told(self) -> None:
        """Say why a site has no part in the sums, where it is its own rule.

        Raises:
            TrainingError: No grade has enough patients; see `sums`.
        """
        self._told(self._data.split("train"))

    def own_part(self, encoder: Tensors = _AS_IT_STARTS) -> Snapshot:
        """What the site keeps, without any sums: for a site that takes a total in which it has no part.

        Args:
            encoder: As for `sums`.

        Raises:
            TrainingError: A feature is not finite.
        """
        split = self._data.split("train")
        with reproducible_torch(self._experiment.training):
            seen = self._on(encoder).features(split)
            return self._own_part(split, seen)

    def _own_part(self, split: Split, seen: Tensor) -> Snapshot:
        mapped = self._map(seen)
        phi = mapped(seen)
        graded = torch.nn.functional.one_hot(split.labels, self._data.scheme.num_classes).double()
        with _refusing("this site's own head cannot be solved"):
            own = own_head(phi, graded, Sums.of(phi, graded, False).totals())
        kept = {_MEAN: mapped.mean, _WEIGHT: own.weight, _PRIOR: own.prior}
        return Snapshot(kept, {"own_strength": own.strength, "scale": mapped.scale})

    def answer(self, total: Sums, kept: Snapshot, encoder: Tensors = _AS_IT_STARTS) -> Answer:
        """The head that the total and the site's own part give, as `sums.answer` chooses it.

        By validation, the choice is by negative log likelihood, not by AUC: it is defined with one class, every image
        counts, and of splits of a few dozen images it changes less by chance. All three candidates are scaled on the
        same images, so that none has an advantage of it. Of equals the one that has seen more is taken. The mean of the
        two heads is the default all the same: of 15 validation images the choice took the worse one too often (four
        real fundus sites, 60 training images each, 4 draws: macro AUC .701 own, .738 federated, .741 both, .730 by
        validation).

        Args:
            total: Of the sums of all sites.
            kept: The site's own part.
            encoder: As for `sums`.

        Raises:
            TrainingError: The total is not one of real features, or the site's are not finite.
        """
        standing = self._on(encoder)
        found = self._scored(total, kept, standing)
        chosen: str = self._settings.answer
        if chosen == "validation":
            chosen = min(reversed(ANSWERS), key=lambda name: found[name].loss)
        with reproducible_torch(self._experiment.training):
            gate = fitted_gate(standing, self._data, self._experiment.evaluation.gate)
        record = {
            "answer": chosen,
            "own_strength": found["own"].strength,
            "federated_strength": found["federated"].strength,
            "validation_nll": {name: found[name].loss for name in ANSWERS},
        }
        return Answer(found[chosen].head, record, gate)

    def heads(self, total: Sums, kept: Snapshot) -> dict[str, LinearHead]:
        """Every head that the total and the site's own part give, by the names of `ANSWERS`; see `answer`."""
        return {name: one.head for name, one in self._scored(total, kept, self._on(_AS_IT_STARTS)).items()}

    def _scored(self, total: Sums, kept: Snapshot, standing: FrozenEncoder) -> dict[str, _Scored]:
        split = self._data.split("val")
        with reproducible_torch(self._experiment.training):
            mapped = self._kept_map(kept)
            own = RidgeHead(kept.tensors[_WEIGHT], kept.tensors[_PRIOR], float(kept.record["own_strength"]))
            federated = in_grades(self.federated(total), self._cover, own)
            heads = dict(zip(ANSWERS, (own, federated, mean_of(own, federated)), strict=True))
            phi = mapped(standing.features(split))
            with _refusing("the heads of this site cannot be scaled"):
                scaled = {name: Scaling.fitted(head.scores(phi), split.labels) for name, head in heads.items()}
            return {
                name: _Scored(scaled[name].on(mapped.folded(head)), scaled[name].loss, head.strength)
                for name, head in heads.items()
            }

    def federated(self, total: Sums) -> RidgeHead:
        """The head over the shared classes, its strength by the likelihood of all labels.

        Raises:
            TrainingError: The total is not one of real features.
        """
        with _refusing("no head follows from the sums of all sites"):
            return likeliest(total.totals(total.balance() if self._settings.balance else None))

    def _on(self, encoder: Tensors) -> FrozenEncoder:
        """The encoder that the heads stand on; the one that the run starts with is built once."""
        return FrozenEncoder(self._experiment, self._data, encoder) if encoder else self._encoder

    def _map(self, features: Tensor) -> FeatureMap:
        settings, wide = self._settings, features.shape[1]
        width = settings.width(wide)
        if settings.bound is None:
            return FeatureMap.of_site(features, width, self._experiment.seed)
        return FeatureMap.bounded(wide, width, self._experiment.seed, settings.bound)

    def _kept_map(self, kept: Snapshot) -> FeatureMap:
        mean, inner = kept.tensors[_MEAN], len(kept.tensors[_WEIGHT]) - 1
        return FeatureMap(mean, float(kept.record["scale"]), projection(len(mean), inner, self._experiment.seed))

    def _few(self, split: Split, chosen: Tensor) -> bool:
        """Whether some patients have these images, and too few to be counted."""
        patients = {split.patients[at] for at in chosen.nonzero().flatten().tolist()}
        return 0 < len(patients) < self._data.min_count

    def _told(self, split: Split) -> Tensor:
        """Which images of train the sums may speak of."""
        behind: dict[int, set[str]] = {}
        for patient, label in zip(split.patients, split.labels.tolist(), strict=True):
            behind.setdefault(label, set()).add(patient)
        shared = {grade for grade, members in enumerate(self._cover) if members}
        enough = {grade for grade in shared if len(behind.get(grade, ())) >= self._data.min_count}
        if self._small_grades:
            enough = shared if len(set(split.patients)) >= self._data.min_count else set()
        few = sorted((shared - enough) & behind.keys())
        if not enough:
            raise TrainingError(
                "no grade of this site has as many patients among its training images as its min_count asks for, so "
                "nothing of them leaves: it has no part in the sums, and may take the federated head when the run is "
                "over (`fedretina head`)."
            ).with_note(f"data.min_count is {self._data.min_count}.")
        if few:
            names = ", ".join(self._data.scheme.grades[grade] for grade in few)
            _log.info("%s: of fewer patients than min_count, and so in no sum: %s", self._data.name, names)
        return torch.tensor([label in enough for label in split.labels.tolist()], dtype=torch.bool)


def folded(start: Tensors, found: Answer) -> dict[str, Tensor]:
    """The network's whole state with head and gate put in."""
    parts = found.head._asdict()
    return {**start, **{key: parts[part] for key, part in HEAD.items()}, **found.gate}


def parted(tensors: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The total that came down, and beside it what its features stand on: an encoder that the run has pre-trained."""
    total = {key: tensor for key, tensor in tensors.items() if key.startswith(SUMS)}
    return total, {key: tensor for key, tensor in tensors.items() if key not in total}


def packed(sums: Sums) -> dict[str, Tensor]:
    """The sums by their keys on the wire."""
    return {f"{SUMS}{name}": tensor for name, tensor in sums.packed().items()}


def unpacked(tensors: Tensors) -> Sums:
    """What `packed` gave, or a total of such.

    Raises:
        TrainingError: It is no sum of features.
    """
    with _refusing("the total of the sums cannot be used"):
        return Sums.unpacked({key.removeprefix(SUMS): tensor for key, tensor in tensors.items()})


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Numbers that cannot be used cost the site this step, and never the run."""
    try:
        yield
    except DataError as error:
        raise TrainingError(f"{what}: {error}") from error


def _images_of(patients: Sequence[str]) -> Tensor:
    """How many images the patient of each image has, [n, 1]."""
    counts = Counter(patients)
    return torch.tensor([[float(counts[patient])] for patient in patients], dtype=torch.float64)


def _cover(data: SiteData, classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    try:
        cover = data.scheme.cover(classes, outside=True)
    except DataError as error:
        raise TrainingError(
            "the grades of this site do not fit the classes that the sites share: say in the site's scheme which of "
            "them each grade stands for (`covers`)."
        ) from error
    if not any(cover):
        raise TrainingError(
            "no grade of this site stands for any of the classes that the sites share: say in the site's scheme which "
            "of them each grade stands for (`covers`)."
        )
    outside = [grade for grade, members in zip(data.scheme.grades, cover, strict=True) if not members]
    if outside:
        _log.warning(
            "%s: outside the shared classes, answered by its own head alone: %s", data.name, ", ".join(outside)
        )
    return cover
