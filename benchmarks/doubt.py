"""Which doubt finds wrong answers, and which finds strangers: `python -m benchmarks.doubt fundus --site NAME=FILE ...`.

Heads from sums on a frozen encoder, as the row `analytic` makes them, and everything that could be called their doubt,
on the same draws of images as `benchmarks.small_sites`. Strangers are images that a site's grades do not fit: other
sites' eyes (another camera), images of another kind, diseases that nobody grades, spoiled photographs. They are given
as sites without labels; none of them, and no test image, has a part in any choice. `--render` writes docs/doubt.md from
what is stored: figures, and nothing of any image. The images are not part of the project.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import RESULTS, ROOT, machine
from benchmarks.small_sites import ALL, BASE, SETS
from fedretina.analytic.answer import Scaling, class_shares, in_grades, mean_of
from fedretina.analytic.distance import ClassDistance, gate_layer, limit_of
from fedretina.analytic.features import FeatureMap
from fedretina.analytic.ridge import RidgeHead, likeliest, own_head
from fedretina.analytic.sums import Sums, total
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.evaluation.metrics import error_detection_auroc
from fedretina.gate.spoils import SPOILS
from fedretina.local.features import FrozenEncoder
from fedretina.losses.evidential import evidential_loss
from fedretina.settings.evaluation import SoftmaxGatedSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import read_data_settings
from fedretina.storage import write_json
from fedretina.uncertainty.evidence import opinion
from fedretina_papers.draws import drawn
from fedretina_papers.packed import pack, unpack

STORED = RESULTS / "doubt.jsonl.gz"
SHARES = (0.98, 0.95, 0.9)
"""Shares of images like those of validation that a gate lets through."""
_SPOILED = 60  # test images a site that are spoiled
_EVIDENCE_STEPS = 150


def main() -> int:
    """Measure what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS), nargs="?")
    parser.add_argument("--site", action="append", default=[], metavar="NAME=FILE", help="a site and its site file")
    parser.add_argument(
        "--stranger",
        action="append",
        default=[],
        metavar="KIND=FILE",
        help="a site file of images without labels; SITE/KIND=FILE where they are strangers to that site alone",
    )
    parser.add_argument("--sizes", default="60,330,all")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "small_sites")
    parser.add_argument("--render", action="store_true", help="only write the page")
    chosen = parser.parse_args()
    if not chosen.render:
        sizes = [ALL if text == "all" else int(text) for text in chosen.sizes.split(",")]
        sites, strangers = (dict(pair.split("=", 1) for pair in given) for given in (chosen.site, chosen.stranger))
        _run_all(chosen.set, sites, strangers, sizes, chosen.draws, chosen.scratch)
    from benchmarks.doubt_page import write_page

    write_page(STORED)
    return 0


def _run_all(
    kind: str, files: Mapping[str, str], strange: Mapping[str, str], sizes: list[int], draws: int, scratch: Path
) -> None:
    done = scratch / "doubt"
    done.mkdir(parents=True, exist_ok=True)
    if STORED.exists() and not any(done.iterdir()):
        unpack(STORED, done)
    words = merged(merged(BASE, SETS[kind]), {"row": "analytic"})
    experiment = Experiment.resolve({**words, "seed": 1})
    whole = {name: _opened(name, file, experiment, scratch) for name, file in files.items()}
    away = {
        name: _features(experiment, _opened(name.replace("/", "-"), file, experiment, scratch, False), "pretrain")
        for name, file in strange.items()
    }
    study = _Study(experiment, whole, away)
    for draw in range(draws):
        for size in sizes:
            file = done / f"{kind}-{'all' if size == ALL else size}-{draw}.json"
            if not file.exists() and not (size == ALL and draw):
                found = {"set": kind, "size": size, "draw": draw, "sites": study.measured(size, draw, draw + 1)}
                write_json(file, found | {"machine": machine()})
                print(file.name, flush=True)
    pack(done, STORED)


def _opened(name: str, file: str, experiment: Experiment, scratch: Path, labels: bool = True) -> SiteData:
    settings = read_data_settings(Path(file), name)
    return load_site_data(name, settings, experiment.images, 1, scratch / "cache" / name, needs_labels=labels)


def _features(experiment: Experiment, data: SiteData, split: str) -> Tensor:
    return FrozenEncoder(experiment, data).features(data.split(split))


class _Study:
    """All sites of a set, and the strangers to them.

    Args:
        experiment: Of the row whose heads are asked.
        sites: Their data.
        strangers: Features by kind, or by site and kind.
    """

    def __init__(self, experiment: Experiment, sites: Mapping[str, SiteData], strangers: Mapping[str, Tensor]) -> None:
        self._experiment = experiment
        self._encoders = {name: FrozenEncoder(experiment, data) for name, data in sites.items()}
        self._sites = {name: _without_ungradable(data) for name, data in sites.items()}
        self._tests = {name: self._seen(name, data.split("test")) for name, data in self._sites.items()}
        self._strangers = strangers
        self._away = {name: self._kinds(name, data) for name, data in sites.items()}

    def _seen(self, site: str, split: Split) -> Tensor:
        return self._encoders[site].features(split)

    def _kinds(self, site: str, data: SiteData) -> dict[str, Tensor]:
        """Strangers to a site, by kind."""
        found = {f"images of {other}": seen for other, seen in self._tests.items() if other != site}
        for name, seen in self._strangers.items():
            owner, _, kind = name.rpartition("/")
            if owner in ("", site):
                found[kind] = seen
        grade = data.scheme.ungradable_class
        if grade is not None:
            split = [data.split(name) for name in ("train", "val", "test")]
            found["ungradable"] = torch.cat([self._seen(site, one)[one.labels == grade] for one in split])
        test = self._sites[site].split("test")
        few = np.linspace(0, len(test.labels) - 1, min(_SPOILED, len(test.labels))).astype(int)
        for kind, spoil in SPOILS.items():
            images = torch.from_numpy(np.stack([spoil(test.images[at].numpy()) for at in few]))
            unkept = FrozenEncoder(self._experiment, _unkept(data))
            names = tuple(f"{kind}-{at}" for at in few)
            found[kind] = unkept.features(Split(images, test.labels[few], names, names))
        return found

    def measured(self, size: int, draw: int, seed: int) -> dict[str, Any]:
        """Figures of every site at a size, in a draw."""
        parts = {name: self._part(name, drawn(data, size, draw, {}), seed) for name, data in self._sites.items()}
        whole = total((name, part.sums) for name, part in parts.items())
        return {name: self._of_site(name, part, whole) for name, part in parts.items()}

    def _part(self, site: str, data: SiteData, seed: int) -> _Part:
        splits = {name: data.split(name) for name in ("train", "val", "test")}
        seen = {name: self._seen(site, split) for name, split in splits.items()}
        labels = {name: split.labels for name, split in splits.items()}
        settings, classes = self._experiment.sums, self._experiment.classes
        assert settings is not None
        assert classes is not None  # the row has both
        mapped = FeatureMap.of_site(seen["train"], settings.width(seen["train"].shape[1]), seed)
        phi = mapped(seen["train"])
        cover = data.scheme.cover(classes, outside=True)
        sums = Sums.of(phi, class_shares(labels["train"], cover, len(classes)), False)
        graded = torch.nn.functional.one_hot(labels["train"], data.scheme.num_classes).double()
        own = own_head(phi, graded, Sums.of(phi, graded, False).totals())
        return _Part(mapped, seen, labels, graded, sums, own, cover)

    def _of_site(self, site: str, part: _Part, whole: Sums) -> dict[str, Any]:
        doubts = _Doubts(part, whole)
        own, wrong = doubts.of(part.seen["test"]), doubts.wrong("test")
        val = doubts.of(part.seen["val"])
        kinds: dict[str, Any] = {}
        for kind, seen in self._away[site].items():
            strange = doubts.of(seen)
            kinds[kind] = {
                "images": len(seen),
                "auroc": {name: _auroc(u, strange[name]) for name, u in own.items()},
                "stopped": {name: _stopped(strange[name], val[name]) for name in GATES},
            }
        return {
            "images": {name: len(labels) for name, labels in part.labels.items()},
            "accuracy": float(1 - wrong.mean()),
            "wrong": {name: error_detection_auroc(u, wrong) for name, u in own.items()},
            "stopped": {name: _stopped(own[name], val[name]) for name in GATES},
            "strangers": kinds,
        }


GATES = ("distance", "class_distance", "distance_wide", "nearest")
"""Doubts whose gate is counted: what is above nearly all that validation showed."""


@dataclass(frozen=True)
class _Part:
    """What a site has of a draw."""

    mapped: FeatureMap
    seen: Mapping[str, Tensor]
    labels: Mapping[str, Tensor]
    graded: Tensor
    sums: Sums
    own: RidgeHead
    cover: tuple[tuple[int, ...], ...]


class _Doubts:
    """Every candidate at one site.

    Args:
        part: The site's.
        whole: The total of all sites' sums.
    """

    def __init__(self, part: _Part, whole: Sums) -> None:
        self._part = part
        federated = likeliest(whole.totals())
        here = in_grades(federated, part.cover, part.own)
        heads = {"own": part.own, "federated": here, "both": mean_of(part.own, here)}
        val = part.mapped(part.seen["val"])
        self._heads = {
            name: (head, Scaling.fitted(head.scores(val), part.labels["val"])) for name, head in heads.items()
        }
        phi = part.mapped(part.seen["train"])
        alone = Sums.of(phi, part.graded, False)
        self._variance = {
            "variance": _inverse(whole.second.sum(0), federated.strength),
            "variance_own": _inverse(alone.second.sum(0), part.own.strength),
        }
        together = Sums(alone.counts.sum().view(1), alone.first.sum(0, keepdim=True), alone.second)
        everyone = Sums(whole.counts.sum().view(1), whole.first.sum(0, keepdim=True), whole.second)
        self._class = ClassDistance.of(alone)
        self._single = ClassDistance.of(together)
        self._everyone = ClassDistance.of(everyone)
        self._train = torch.nn.functional.normalize(part.seen["train"].double(), dim=1)
        self._evidence = _evidential(phi, part.labels["train"], part.graded.shape[1])
        ones = torch.ones(len(phi), 1)
        self._wide = ClassDistance.of(Sums.of(part.seen["train"].double() - part.mapped.mean, ones, False))
        self._gate = gate_layer(part.seen["train"], part.seen["val"], SoftmaxGatedSettings().within)
        self._shown = [1 - self.answers(part.seen["val"]).max(1).values, self._single(val)]

    def answers(self, seen: Tensor, head: str = "both") -> Tensor:
        """Probabilities, calibrated on validation."""
        found, scaled = self._heads[head]
        return (found.scores(self._part.mapped(seen)) * scaled.scale + scaled.shift).softmax(1)

    def wrong(self, split: str) -> np.ndarray:
        """Whether the mean of own and federated head errs."""
        return self.answers(self._part.seen[split]).argmax(1).ne(self._part.labels[split]).numpy().astype(float)

    def of(self, seen: Tensor) -> dict[str, np.ndarray]:
        """Every candidate's doubt of images, larger for less sure."""
        phi = self._part.mapped(seen)
        p, own, federated = (self.answers(seen, name) for name in ("both", "own", "federated"))
        least, single = 1 - p.max(1).values, self._single(phi)
        mean = (own + federated) / 2
        apart = _entropy(mean) - (_entropy(own) + _entropy(federated)) / 2
        near = torch.nn.functional.normalize(seen.double(), dim=1) @ self._train.T
        ratio = torch.nn.functional.linear(seen, self._gate.weight, self._gate.bias).square().sum(1)
        evidence = opinion(phi @ self._evidence)
        found = {
            "entropy": _entropy(p),
            "least": least,
            "disagreement": apart,
            **{name: ((phi @ matrix) * phi).sum(1) for name, matrix in self._variance.items()},
            "class_distance": self._class(phi),
            "relative": self._class(phi) - single,
            "distance": single,
            "distance_wide": self._wide(seen.double() - self._part.mapped.mean),
            "distance_all": self._everyone(phi),
            "nearest": 1 - near.max(1).values,
            "evidence": evidence.uncertainty,
            "ranked": _rank(least, self._shown[0]) + _rank(single, self._shown[1]),
            "gated": torch.where(ratio <= 1, least, torch.ones_like(least)),  # as the row has it
        }
        return {name: u.numpy() for name, u in found.items()}


def _inverse(gram: Tensor, strength: float) -> Tensor:
    inverse: Tensor = torch.linalg.inv(gram + strength * torch.eye(len(gram), dtype=torch.float64))
    return inverse


def _entropy(p: Tensor) -> Tensor:
    terms: Tensor = torch.special.entr(p)
    return terms.sum(1)


def _rank(u: Tensor, shown: Tensor) -> Tensor:
    """Share of the validation images below; beyond the last of them it goes on rising, towards 2."""
    below = torch.searchsorted(shown.sort().values, u).double() / len(shown)
    return below + (1 - shown.max() / u.clamp(min=1e-12)).clamp(min=0)


def _evidential(phi: Tensor, labels: Tensor, grades: int) -> Tensor:
    """The paper's head on the same features, lambda 1: a reference for its u = K / S."""
    weight = torch.zeros(phi.shape[1], grades, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=_EVIDENCE_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = evidential_loss(opinion(phi @ weight).alpha, labels, 1.0).mean() + 0.01 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach()


def _stopped(u: np.ndarray, validation: np.ndarray) -> dict[str, float]:
    """Share of images beyond what validation showed, by the share of its like that is let through."""
    shown = torch.from_numpy(validation)
    return {str(within): float(np.mean(u > limit_of(shown, within))) for within in SHARES}


def _auroc(own: np.ndarray, strange: np.ndarray) -> float | None:
    return error_detection_auroc(np.concatenate([own, strange]), np.repeat([0.0, 1.0], [len(own), len(strange)]))


def _without_ungradable(data: SiteData) -> SiteData:
    """The site without the images that it calls ungradable: here they are strangers."""
    grade = data.scheme.ungradable_class
    if grade is None:
        return data

    def read(name: str) -> Split:
        split = data.split(name)
        rows = np.flatnonzero(split.labels.numpy() != grade).tolist()
        names = [tuple(one[row] for row in rows) for one in (split.patients, split.files, split.pixel_digests())]
        return Split(split.images[rows], split.labels[rows], *names)

    return replace(data, _read=read)


def _unkept(data: SiteData) -> SiteData:
    return replace(data, features=None)


if __name__ == "__main__":
    raise SystemExit(main())
