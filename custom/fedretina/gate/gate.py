"""The gate: looks at an image before the model's answer counts, and says why that answer is not to be relied on.

A model answers whatever it is given, and is often surest of what it has never seen (docs/gate.md). So each site fits a
gate at the end of a run, on its own images and on its own model, whatever the row: it is a file beside the model, which
no run sends, and asks for no second network. It measures three things: how far the image's features, as the model
itself computes them, lie from those of the site's training images, and where the encoder trains what its middle stage
gives as well, which training changes less; how far its looks do; and light, sharpness and cover. Each is told in steps
of the site's own validation images, and the largest of them counts, against one limit. Beside it stand the rules of
`data check` that hold at any site.

What is within that limit but among the least usual of the site's own is answered, and a doctor looks as well: no limit
that lets a site's own eyes pass stops another camera's at a site with photographs of many.

Whatever answers with a site's model asks it: `Gate.look` for images as the network gets them, `Gate.refuses` for a
picture as it was stored, where only that tells its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.analytic.distance import SHRINK, ClassDistance, directions
from fedretina.analytic.features import projection
from fedretina.analytic.sums import Sums
from fedretina.data.check.limits import BLANK, BLUE, BRIGHT, BURNT, COLOURED, DARK, GREY
from fedretina.data.modalities import Look as Expected
from fedretina.errors import StateError
from fedretina.exchange.payload import tensors_digest
from fedretina.gate.appearance import Appearance, appearance
from fedretina.storage import read_tensors, write_tensors

FILE = "gate.safetensors"
FORMAT = 2
_READ = (1, FORMAT)
"""Gates of format 1 have no distance in the middle stage; a version that knew no other must not leave one out."""
STOPPED = 0.02
"""Share of a site's own patients that the gate may stop, of those whose image the model could have answered."""
SURE = 0.9
"""How sure that is to be, over sites; few validation patients cannot bear it, see `_limit`."""
_LEAST = 10  # images to fit on, and to take a limit from
_APPEARANCE_SHRINK = 0.1  # there are more images than numbers
_RARE = 0.01  # a rule that more of a site's own images break is not one for that site

Reason = Literal["another kind of image", "ungradable", "unlike this site's photographs"]


class Look(NamedTuple):
    """What the gate says of an image.

    Attributes:
        reason: Why its answer does not count; None where nothing is odd.
        words: The same for a person, a sentence; "" where nothing is odd.
        answered: Whether the model's answer may be shown, with the reason: not where the image is of another kind, or
            cannot be read.
        unusual: Where nothing is odd: whether it is one of the least usual for the site, so that a doctor looks as
            well. Its answer counts.
    """

    reason: Reason | None
    words: str
    answered: bool
    unusual: bool = False


FINE = Look(None, "", True)
UNUSUAL = Look(None, "", True, True)


class Shown(NamedTuple):
    """Images that a gate is fitted on, or looks at.

    Attributes:
        images: uint8 [N, 3, H, W], as the network gets them.
        features: What enters the model's head, float32 [N, F] on the CPU; None where nobody has them.
        looks: What they look like, where that was measured before, for another model; else it is measured.
        middle: What the encoder's middle stage gave of them, float32 [N, C] on the CPU (`networks.dropout.Answered`);
            None where nobody has it.
    """

    images: Tensor
    features: Tensor | None
    looks: Appearance | None = None
    middle: Tensor | None = None

    @property
    def seen(self) -> Mapping[str, Tensor]:
        """What the model saw of them, by the name of the distance that is measured in it."""
        return seen_inside(self.features, self.middle)

    def measured(self) -> Appearance:
        """What they look like; there is at least one."""
        return appearance(self.images) if self.looks is None else self.looks


def seen_inside(features: Tensor | None, middle: Tensor | None) -> dict[str, Tensor]:
    """See `Shown.seen`."""
    return {name: one for name, one in (("features", features), ("middle", middle)) if one is not None}


class _Rule(NamedTuple):
    """What makes an image odd at any site; of pictures of a retina alone, or of all."""

    odd: Callable[[Appearance], Tensor]
    reason: Reason
    words: str
    retina: bool


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "image_grey": _Rule(
            lambda one: one.chroma < GREY, "another kind of image", "it has no colour, so it is no photograph.", True
        ),
        "image_blank": _Rule(lambda one: one.spread < BLANK, "ungradable", "there is nothing to be seen in it.", False),
        "image_dark": _Rule(lambda one: one.luminance < DARK, "ungradable", "it is nearly black.", False),
        "image_overexposed": _Rule(
            lambda one: (one.luminance > BRIGHT) | (one.burnt > BURNT), "ungradable", "it is overexposed.", True
        ),
        "channels_swapped": _Rule(
            lambda one: (one.chroma >= GREY) & (one.blue > BLUE * one.red),
            "ungradable",
            "it is bluer than any retina: its red and blue seem to be exchanged.",
            True,
        ),
    }
)
"""By the code of `data check` whose limits they have."""


class _Fact(NamedTuple):
    """Of which one end makes a photograph unreadable; `least` is the smallest step that a site may have."""

    of: Callable[[Appearance], Tensor]
    words: str
    least: float


_FACTS: Mapping[str, _Fact] = MappingProxyType(
    {
        "dark": _Fact(lambda one: -one.luminance.log1p(), "it is much darker than this site's own.", 0.05),
        "bright": _Fact(lambda one: one.luminance.log1p(), "it is much brighter than this site's own.", 0.05),
        "faint": _Fact(lambda one: -one.detail, "it shows much less detail than this site's own.", 0.05),
        "blurred": _Fact(lambda one: -one.sharpness, "it is much less sharp than this site's own.", 0.05),
        "covered": _Fact(lambda one: one.dark, "much more of it is covered than of this site's own.", 0.08),
    }
)


@dataclass(frozen=True)
class Gate:
    """A site's gate for one model; made by `fitted`, or read by `read`.

    Attributes:
        record: Plain values that JSON can hold: rules and limit, what they rest on, and the digests of the model that
            it belongs to and of `tensors`. The model's card repeats it.
        tensors: The two distances and the scales, by name.
        expected: What pictures of the run's modality look like; None for signals, whose looks nobody knows.
    """

    record: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    expected: Expected | None

    @classmethod
    def fitted(
        cls,
        train: Shown,
        validation: Shown,
        patients: Sequence[str],
        expected: Expected | None,
        model: str,
        unusual: float = 0.0,
    ) -> Gate:
        """Fit it on a site's own images, without those that the site itself calls ungradable.

        Args:
            train: What distances are measured from.
            validation: What the limit is taken from; no part of it is in `train`.
            patients: Patient of each validation image.
            expected: See `expected`.
            model: Digest of the model's tensors.
            unusual: Largest share of the site's own patients whose images may be called unusual; 0 calls none so.
        """
        measures = min(len(train.images), len(validation.images)) >= _LEAST
        tensors: dict[str, Tensor] = {}
        rules: list[str] = []
        seen: list[Appearance] = []
        if expected is not None:
            seen = [one.measured() for one in (train, validation) if len(one.images)]
            own = Appearance(*(torch.cat(column) for column in zip(*seen, strict=True))) if seen else None
            rules = [
                code
                for code, rule in _RULES.items()
                if (expected.retina or not rule.retina)
                and (own is None or int(rule.odd(own).sum()) <= max(1.0, _RARE * len(own.luminance)))
            ]
            if measures and own is not None:
                tensors |= _steps(torch.stack([fact.of(own) for fact in _FACTS.values()], 1))
                tensors |= _distance("appearance", seen[0].numbers, seen[1].numbers, _APPEARANCE_SHRINK, scaled=True)
        if measures:
            for name, inside in train.seen.items():
                if name in validation.seen:
                    tensors |= _distance(name, inside, validation.seen[name], SHRINK, scaled=False)
        record = {"format": FORMAT, "model": model, "rules": rules, "tensors": tensors_digest(tensors)}
        gate = cls({**record, "limit": None}, tensors, expected)
        if not tensors:
            return gate
        own_looks = None if expected is None else seen[-1]
        steps = gate._steps(own_looks, validation.seen, len(validation.images))
        broken, far = steps[0].numpy(), steps[1].numpy()
        worst = np.where(broken.any(1), math.inf, far.max(1))
        limit, stopped = _limit([float(max(worst[rows])) for rows in _by_patient(patients)])
        record |= {"limit": limit, "patients": len(set(patients)), "stopped": stopped}
        if unusual > 0 and (limits := _usual(far, patients, gate._distances(own_looks, validation.seen), unusual)):
            record["usual"] = {"share": unusual, **limits}
        return cls(record, tensors, expected)

    @property
    def measures(self) -> bool:
        """Whether it knows the site's own images; with too few of them it has the rules alone."""
        return self.record["limit"] is not None

    def look(self, shown: Shown) -> list[Look]:
        """Look at images, one `Look` each."""
        if not len(shown.images):
            return []
        kinds = self.kinds()
        seen = None if self.expected is None else shown.measured()
        return [kinds[at] for at in self.kind(seen, shown.seen, len(shown.images)).tolist()]

    def steps(self, shown: Shown) -> dict[str, NDArray[np.float64]]:
        """How far images lie from the site's own, each [N], in steps of its validation images; {} where it cannot tell.

        "features" is the distance in the model's features, "middle" that in what its middle stage gives, "appearance"
        that in looks: 0 is the middle of the site's own, and one in six of them lies beyond 1. "bright" is brightness,
        of which -1 is as far on the dark side. A whole folder may be shifted of which no image is odd enough to be
        stopped.
        """
        if not self.measures or not len(shown.images):
            return {}
        seen = None if self.expected is None else shown.measured()
        _, every, facts = self._steps(seen, shown.seen, len(shown.images))
        names = self._distances(seen, shown.seen)
        found = {name: every[:, len(_FACTS) + at] for at, name in enumerate(names)}
        if "facts.middle" in self.tensors and seen is not None:
            dark, bright = (facts[:, list(_FACTS).index(name)] for name in ("dark", "bright"))
            found["bright"] = torch.where(bright > 0, bright, -dark)
        return {name: column.double().numpy() for name, column in found.items()}

    def kinds(self) -> tuple[Look, ...]:
        """All that it may say, in the order of `kind`."""
        rules = [Look(_RULES[code].reason, _RULES[code].words, False) for code in self.record["rules"]]
        facts = [Look("ungradable", fact.words, False) for fact in _FACTS.values()]
        last = (UNUSUAL,) if "usual" in self.record else ()
        return (FINE, *rules, *facts, Look("unlike this site's photographs", _UNLIKE, True), *last)

    def kind(self, seen: Appearance | None, inside: Mapping[str, Tensor], count: int) -> Tensor:
        """What it says of each image: its place in `kinds`, int64 [N].

        Tensors alone, with no question about a value, so that an exported model has it in its graph.

        Args:
            seen: What the images look like; None for signals.
            inside: What the model saw of them; see `Shown.seen`.
            count: N.
        """
        broken, far, facts = self._steps(seen, inside, count)
        if self.measures:  # what is no number is not within the limit
            limit = float(self.record["limit"])
            odd = torch.cat([broken, ~(facts <= limit), ~(far <= limit).all(1, keepdim=True)], 1)
        else:
            odd = torch.nn.functional.pad(broken, (0, len(_FACTS) + 1))
        if "usual" in self.record:
            limits = [float(self.record["usual"][name]) for name in self._distances(seen, inside)]
            unusual = far[:, len(_FACTS) :] > torch.tensor(limits, dtype=far.dtype)
            odd = torch.cat([odd, unusual.any(1, keepdim=True)], 1)
        places = torch.arange(odd.shape[1], 0, -1)
        first = (odd.long() * places).amax(1)  # of the first that is odd; 0 where none is
        return torch.where(first > 0, odd.shape[1] + 1 - first, torch.zeros_like(first))

    def refuses(self, stored: NDArray[np.uint8]) -> Look:
        """Look at a picture as it was stored, uint8 [H, W, 3]: kinds that are told by colour, which a run takes away.

        Only where grey pictures are expected has it anything to say; `FINE` otherwise.
        """
        if self.expected is None or not self.expected.grey:
            return FINE
        whole = torch.from_numpy(np.ascontiguousarray(stored.transpose(2, 0, 1)))[None].float()
        small = torch.nn.functional.adaptive_avg_pool2d(whole, 64)[0]
        chroma = float((small - small.mean(0)).abs().amax(0).mean())
        return (
            Look("another kind of image", "it is in colour, so it is no scan.", False) if chroma >= COLOURED else FINE
        )

    def write(self, folder: Path) -> None:
        """Write it beside the model.

        Raises:
            StateError: The disk is full or not writable.
        """
        write_tensors(folder / FILE, self.tensors, {"gate": self.record})

    @classmethod
    def read(cls, folder: Path, record: Mapping[str, Any], expected: Expected | None) -> Gate:
        """Read the gate beside a model.

        Args:
            folder: Where the model lies.
            record: What the model's card says of it.
            expected: See `expected`.

        Raises:
            StateError: It is missing, damaged, of another version, or not the one that the card names.
        """
        if record.get("format") not in _READ:
            raise StateError(
                f"the gate in {folder} has format {record.get('format')}, this version reads "
                f"{' and '.join(map(str, _READ))}: predict with the version that made it."
            )
        tensors, header = read_tensors(folder / FILE)
        if header.get("gate") != dict(record) or tensors_digest(tensors) != record["tensors"]:
            raise StateError(
                f"the gate and the card in {folder} do not belong together, or one of them was changed after the run: "
                "restore both from the same run."
            )
        return cls(record, tensors, expected)

    def _distances(self, seen: Appearance | None, inside: Mapping[str, Tensor]) -> list[str]:
        """Names of the distances that images have, in the order of the last columns of all their steps."""
        names = (*(("appearance",) if seen is not None else ()), *inside)
        return [name for name in names if f"{name}.weight" in self.tensors]

    def _steps(
        self, seen: Appearance | None, inside: Mapping[str, Tensor], count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which rules each image breaks [N, rules], all its steps [N, L], and those of `_FACTS` [N, 5]."""
        columns = [] if seen is None else [_RULES[code].odd(seen) for code in self.record["rules"]]
        broken = torch.stack(columns, 1) if columns else torch.zeros(count, 0, dtype=torch.bool)
        facts = torch.full((count, len(_FACTS)), -math.inf, dtype=torch.float64)
        if seen is not None and "facts.middle" in self.tensors:
            raw = torch.stack([fact.of(seen) for fact in _FACTS.values()], 1)
            facts = (raw - self.tensors["facts.middle"]) / self.tensors["facts.step"]
        numbers = {**({} if seen is None else {"appearance": seen.numbers}), **inside}
        steps = [self._far(name, numbers[name].double()) for name in self._distances(seen, inside)]
        return broken, torch.cat([facts, *(one.unsqueeze(1) for one in steps)], 1), facts

    def _far(self, name: str, numbers: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"].double(), self.tensors[f"{name}.bias"].double()
        distance = _log_length(numbers @ weight.T + bias)
        middle, step = self.tensors[f"{name}.scale"]
        far: Tensor = (distance - middle) / step
        return far


_UNLIKE = "it is unlike the photographs of this site that the model learned from: another camera, kind or quality."


def _log_length(wide: Tensor) -> Tensor:
    length: Tensor = wide.square().sum(1).clamp(min=1e-12)
    return length.log()


def _distance(name: str, train: Tensor, validation: Tensor, shrink: float, scaled: bool) -> dict[str, Tensor]:
    """Mahalanobis distance to the mean of the training images (`analytic.distance`).

    Its logarithm is told in steps of the validation images'. There is none where the numbers do not vary.

    Args:
        name: Of its tensors.
        train: [n, D].
        validation: [m, D].
        shrink: Share of the scaled identity in the covariance.
        scaled: Whether each number is divided by its deviation first: numbers of unlike units must be, and features
            that are nearly always 0 must not.
    """
    seen = train.double()
    middle, spread = seen.mean(0), seen.std(0, correction=0)
    if not bool(torch.isfinite(seen).all() & torch.isfinite(validation).all()) or not float(spread.max()) > 1e-9:
        return {}
    scale = spread + 1e-3 * spread.max() if scaled else torch.ones_like(spread)
    rows = directions(seen.shape[1])
    drawn = projection(seen.shape[1], rows, 0)
    turn = torch.diag(1 / scale) if drawn is None else drawn / scale[:, None]
    far = ClassDistance.of(Sums.of((seen - middle) @ turn, torch.ones(len(seen), 1), by_class=False), shrink)
    weight = torch.linalg.solve_triangular(far.factor, turn.T, upper=False).float()
    bias = -(weight.double() @ middle)
    shown = _log_length(validation.double() @ weight.double().T + bias)
    step = max(float(shown.std()), 0.05)
    return {
        f"{name}.weight": weight,
        f"{name}.bias": bias,
        f"{name}.scale": torch.tensor([float(shown.mean()), step], dtype=torch.float64),
    }


def _steps(raw: Tensor) -> dict[str, Tensor]:
    """Middle and step of each fact: the site's own .98 quantile lies where that of a normal distribution does."""
    middle = raw.median(0).values
    high = torch.quantile(raw, 1 - STOPPED, dim=0)
    least = torch.tensor([fact.least for fact in _FACTS.values()], dtype=torch.float64)
    step = torch.maximum((high - middle) / NormalDist().inv_cdf(1 - STOPPED), least)
    return {"facts.middle": middle, "facts.step": step}


def _by_patient(patients: Sequence[str]) -> list[list[int]]:
    held: dict[str, list[int]] = {}
    for at, patient in enumerate(patients):
        held.setdefault(patient, []).append(at)
    return list(held.values())


def _limit(worst: Sequence[float]) -> tuple[float, int]:
    """The limit, and how many validation patients lie beyond it, from the largest step of each of them.

    The limit is the order statistic that at most `STOPPED` of new patients pass with probability `SURE` or more,
    whatever the distribution (Vovk, "Conditional validity of inductive conformal predictors", ACML 2012): of 439
    patients the fifth largest. Fewer than 114 cannot bear that: it is then the largest of them, or the tolerance limit
    of a normal distribution (Natrella, 1963) where that lies above.
    """
    count = len(worst)
    ordered = sorted(worst)
    finite = [one for one in ordered if math.isfinite(one)] or [0.0]
    beyond, chance = -1, _chance(0, count)  # of a binomial distribution, up to `beyond` + 1
    while chance <= 1 - SURE:
        beyond += 1
        chance += _chance(beyond + 1, count)
    limit = min(ordered[count - 1 - max(beyond, 0)], finite[-1])
    if beyond < 0 and len(finite) > 2:
        middle, spread = float(np.mean(finite)), float(np.std(finite, ddof=1))
        limit = max(limit, middle + _tolerance(len(finite)) * spread)
    return limit, sum(one > limit for one in worst)


def _usual(far: NDArray[np.float64], patients: Sequence[str], names: Sequence[str], share: float) -> dict[str, float]:
    """A limit for each distance, such that about `share` of patients have an image beyond one of them, or fewer.

    Each limit leaves as many validation images beyond it, so that looks and features count alike: which of them tells
    another camera differs from site to site. {} where there is no distance, or too few patients.

    Args:
        far: Steps of the validation images, as `Gate._steps` gives them.
        patients: Of each image.
        names: Of the last columns of `far`.
        share: Of the patients.
    """
    columns = np.sort(far[:, len(_FACTS) :], axis=0)
    ranks = [np.searchsorted(columns[:, at], far[:, len(_FACTS) + at]) for at in range(len(names))]
    if not ranks:
        return {}
    highest = np.max(ranks, axis=0)
    worst = sorted(int(max(highest[rows])) for rows in _by_patient(patients))
    last = math.ceil((len(worst) + 1) * (1 - share)) - 1
    return {name: float(columns[worst[last], at]) for at, name in enumerate(names)} if last < len(worst) else {}


def _chance(beyond: int, count: int) -> float:
    """That just so many of `count` pass, where each does with the chance `STOPPED`."""
    ways = math.lgamma(count + 1) - math.lgamma(beyond + 1) - math.lgamma(count - beyond + 1)
    return math.exp(ways + beyond * math.log(STOPPED) + (count - beyond) * math.log1p(-STOPPED))


def _tolerance(count: int) -> float:
    """Deviations above the mean below which 1 - `STOPPED` of a normal distribution lies, `SURE` of the time."""
    share, sure = NormalDist().inv_cdf(1 - STOPPED), NormalDist().inv_cdf(SURE)
    a = 1 - sure**2 / (2 * (count - 1))
    return (share + math.sqrt(max(share**2 - a * (share**2 - sure**2 / count), 0.0))) / a
