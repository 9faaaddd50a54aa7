"""What single patients lose to who reads what leaves: `python -m benchmarks.leaks`, on phantoms.

Attacks of the literature in their plainest form, on the product's own sums, heads and noise. Phantoms are drawn,
so their features are less rich than those of eyes: the figures say how strongly a guard acts, not how safe a hospital
is. Written into docs/governance.md; `--render` only writes the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import RESULTS, ROOT, machine
from benchmarks.render import machine_line
from fedretina.analytic.features import FeatureMap
from fedretina.analytic.ridge import own_head
from fedretina.analytic.sums import Sums
from fedretina.data.site_data import load_site_data
from fedretina.exchange.noise import cost, noised_sums
from fedretina.networks.encoder import build_encoder
from fedretina.networks.weights import load_encoder_weights
from fedretina.seeds import reproducible_torch
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import WeightsSettings
from fedretina.settings.policy import SumsNoise
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.site import SiteDataSettings
from fedretina.settings.sums import SumsSettings
from fedretina.settings.training import TrainingSettings
from fedretina.storage import read_json, write_json, write_text
from fedretina_papers.engine.table import listing
from fedretina_papers.markdown import between

STORED = RESULTS / "leaks.json"
PAGE = ROOT / "docs" / "governance.md"
BEGIN, END = "<!-- begin leaks: from benchmarks/leaks.py -->", "<!-- end leaks -->"
_ENCODER, _SEED = "efficientnet_lite0", 1
_PATIENTS = (1, MIN_COUNT, 20, 100, 500, 1000)
_MULTIPLIERS = (None, 0.5)
_HEADS = (20, 100, 400)
_BATCHES = (1, 8, 32)
_NOISE_KEY = b"of the benchmark"
_ATTACKS = {"mean": "by the mean", "second": "by the second moments"}


def main() -> int:
    """Measure, store and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="only write the page")
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch" / "leaks")
    chosen = parser.parse_args()
    if not chosen.render:
        write_json(STORED, measure(chosen.scratch))
    write_text(PAGE, render(PAGE.read_text(encoding="utf-8"), read_json(STORED)))
    return 0


def measure(scratch: Path, images: int = 3800, repeats: int = 40) -> dict[str, Any]:
    """All attacks.

    Args:
        scratch: For the phantoms' cache.
        images: Phantom images to draw people from; half of them is what the attacker knows of the population.
        repeats: Draws of the people of a sum, a head or a batch.
    """
    features, labels = _features(scratch, images)
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(features))
    half = len(order) // 2
    people, known = order[:half], order[half:]
    return {
        "images": len(features),
        "repeats": repeats,
        "width": SumsSettings().width(features.shape[1]),
        "sums": [
            attack(features, people, known, patients, multiplier, rng, repeats)
            for multiplier in _MULTIPLIERS
            for patients in _PATIENTS
            for attack in (_by_mean, _by_second_moments)
            if 3 * patients <= half
        ],
        "heads": [_head(features, labels, people, size, rng, repeats) for size in _HEADS if 2 * size <= half],
        "gradients": [_gradient(features, labels, people, batch, rng, repeats) for batch in _BATCHES],
        "machine": machine(),
    }


def _features(scratch: Path, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the frozen encoder gives of phantom images [N, F], and their grades [N]; each image is another person."""
    experiment = Experiment.resolve(
        {
            "row": "analytic",
            "images": {"image_size": 64},
            "network": {"encoder": _ENCODER, "weights": {"source": "package"}},
        }
    )
    settings = SiteDataSettings(phantom_images=images)
    site = load_site_data("site-1", settings, experiment.images, _SEED, scratch)
    splits = [site.split(name) for name in ("train", "val", "test")]
    pixels = torch.cat([split.images for split in splits])
    labels = torch.cat([torch.as_tensor(split.labels) for split in splits])
    encoder = build_encoder(_ENCODER).eval()
    load_encoder_weights(_ENCODER, encoder, WeightsSettings(source="package"))
    with reproducible_torch(TrainingSettings(threads=1)), torch.inference_mode():
        found = [encoder((some.float() / 255 - 0.5) / 0.5) for some in torch.split(pixels, 128)]
    return torch.cat(found).double(), labels


def _by_mean(
    features: torch.Tensor,
    people: NDArray[np.intp],
    known: NDArray[np.intp],
    patients: int,
    multiplier: float | None,
    rng: np.random.Generator,
    repeats: int,
) -> dict[str, Any]:
    """Who is in the sum of one grade? Sankararaman 2009: how far a person lies towards the sum's mean.

    The site has as many images of other grades, since its own centre would otherwise be the grade's.
    """
    seen = _map(features[known], features[known], multiplier)(features, cut=True)[:, :-1]
    centre = seen[known].mean(0)

    def once() -> float:
        drawn = rng.choice(people, 3 * patients, replace=False)
        site = features[drawn[: 2 * patients]]
        grades = torch.eye(2, dtype=torch.float64).repeat_interleave(patients, 0)
        sums = _sent(site, grades, features[known], multiplier, rng)
        direction = sums.first[0, :-1] / max(float(sums.counts[0]), 1.0) - centre
        told = (seen[drawn] - centre) @ direction
        return _auroc(told[:patients], told[2 * patients :])

    return _of_sums("mean", patients, multiplier, _spread(once, repeats))


def _by_second_moments(
    features: torch.Tensor,
    people: NDArray[np.intp],
    known: NDArray[np.intp],
    patients: int,
    multiplier: float | None,
    rng: np.random.Generator,
    repeats: int,
) -> dict[str, Any]:
    """Who is in the second moments of a site? A person whom they hold lies near their span, and few others do.

    The distance is a person's leverage in them: where images are fewer than features, what lies out of the span
    outweighs all else; where they are more, it is Mahalanobis' distance.
    """
    seen = _map(features[known], features[known], multiplier)(features, cut=True)[:, :-1]

    def once() -> float:
        drawn = rng.choice(people, 2 * patients, replace=False)
        sums = _sent(features[drawn[:patients]], torch.ones(patients, 1), features[known], multiplier, rng)
        values, directions = torch.linalg.eigh(sums.second[0, :-1, :-1])
        floor = max(float(values[-1]) * 1e-9, 1e-9)  # what is less is rounding
        told = -((seen[drawn] @ directions).square() / values.clamp(min=floor)).sum(1)
        return _auroc(told[:patients], told[patients:])

    return _of_sums("second", patients, multiplier, _spread(once, repeats))


def _sent(
    site: torch.Tensor,
    shares: torch.Tensor,
    known: torch.Tensor,
    multiplier: float | None,
    rng: np.random.Generator,
) -> Sums:
    """What a site sends of its images, as the product computes it at its default width."""
    mapped = _map(site, known, multiplier)
    sums = Sums.of(mapped(site, cut=True), shares, by_class=False)
    if multiplier is None:
        return sums
    length = math.hypot(math.sqrt(sums.first.shape[1] - 1), 1.0)
    return noised_sums(sums, SumsNoise(multiplier=multiplier), length, _NOISE_KEY + bytes(rng.bytes(8)))


def _map(own: torch.Tensor, known: torch.Tensor, multiplier: float | None) -> FeatureMap:
    """Features to what is summed: without noise by the own images, under noise by a bound that all know.

    An attacker does not know the centre of a site, and takes the population's.
    """
    width = SumsSettings().width(own.shape[1])
    if multiplier is None:
        return FeatureMap.of_site(own, width, _SEED)
    bound = float(known.norm(dim=1).median()) / math.sqrt(own.shape[1] / (width - 1))
    return FeatureMap.bounded(own.shape[1], width, _SEED, bound)


def _of_sums(attack: str, patients: int, multiplier: float | None, found: dict[str, float]) -> dict[str, Any]:
    noise = None if multiplier is None else SumsNoise(multiplier=multiplier)
    epsilon = None if noise is None else cost(noise).total(noise.delta)
    return {"attack": attack, "patients": patients, "multiplier": multiplier, "epsilon": epsilon, **found}


def _head(
    features: torch.Tensor,
    labels: torch.Tensor,
    people: NDArray[np.intp],
    size: int,
    rng: np.random.Generator,
    repeats: int,
) -> dict[str, Any]:
    """On whom was a head fitted? Yeom 2018: people whom it answers with the smaller error."""
    classes = int(labels.max()) + 1

    def once() -> float:
        drawn = rng.choice(people, 2 * size, replace=False)
        mapped = FeatureMap.of_site(features[drawn[:size]], SumsSettings().width(features.shape[1]), _SEED)
        phi = mapped(features[drawn])
        shares = torch.nn.functional.one_hot(labels[drawn], classes).double()
        totals = Sums.of(phi[:size], shares[:size], by_class=False).totals()
        head = own_head(phi[:size], shares[:size], totals)
        error = (head.scores(phi) - shares).square().sum(1)
        return _auroc(-error[:size], -error[size:])

    return {"images": size, **_spread(once, repeats)}


def _gradient(
    features: torch.Tensor,
    labels: torch.Tensor,
    people: NDArray[np.intp],
    batch: int,
    rng: np.random.Generator,
    repeats: int,
) -> dict[str, Any]:
    """How much of an image's features does a head's gradient show? The best row of it against each image, |cosine|."""
    centred = features - features.mean(0)
    classes = int(labels.max()) + 1

    def once() -> float:
        drawn = rng.choice(people, batch, replace=False)
        weight = torch.zeros(classes, features.shape[1], dtype=torch.float64, requires_grad=True)
        loss = torch.nn.functional.cross_entropy(centred[drawn] @ weight.T, labels[drawn])
        (gradient,) = torch.autograd.grad(loss, weight)
        rows = torch.nn.functional.normalize(gradient, dim=1)
        images = torch.nn.functional.normalize(centred[drawn], dim=1)
        return float((images @ rows.T).abs().max(1).values.mean())

    return {"batch": batch, **_spread(once, repeats)}


def _auroc(members: torch.Tensor, others: torch.Tensor) -> float:
    """The share of pairs in which the member has the larger figure; half of those that tie."""
    pairs = members[:, None] - others[None]
    return float((pairs > 0).double().mean() + (pairs == 0).double().mean() / 2)


def _spread(once: Callable[[], float], repeats: int) -> dict[str, float]:
    values = np.array([once() for _ in range(repeats)])
    low, high = np.quantile(values, (0.05, 0.95))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def render(page: str, stored: dict[str, Any]) -> str:
    """The page with the figures between its two marks."""
    return between(page, BEGIN, END, "\n".join(_lines(stored)))


def _lines(stored: dict[str, Any]) -> list[str]:
    noises = list(dict.fromkeys((one["multiplier"], one["epsilon"]) for one in stored["sums"]))
    sizes = list(dict.fromkeys(one["patients"] for one in stored["sums"]))
    by = {(one["patients"], one["multiplier"], one["attack"]): one for one in stored["sums"]}
    features = stored["width"] - 1

    def told(attack: str, multiplier: float | None, size: int) -> str:
        return _cell(by[size, multiplier, attack])

    attacked = {
        f"{_noise_words(*noise)}: {how}": partial(told, attack, noise[0])
        for noise in noises
        for attack, how in _ATTACKS.items()
    }
    return [
        f"Measured on {stored['images']} phantom images, which are drawn, so this says how strongly a guard acts and "
        f"not how safe a hospital is. Mean of {stored['repeats']} draws, and in brackets where nine of ten draws lie. "
        "For the first two tables 0.5 is chance, and 1 tells everybody apart.",
        "",
        "**Who is in a sum?** An attacker who has the images of some people and knows the population asks of each "
        "whether the person lies towards the mean of the sum of a grade (its first moments), or near the span of the "
        f"second moments of all images of a site. Both leave a site by default, of {features} features and a constant.",
        "",
        *listing(sizes, {"patients in the sum": _patients_words, **attacked}, right=()),
        f"So `min_count` ({MIN_COUNT}) keeps the features of a single patient from being read off a sum, and hides "
        "nobody who is in it. In the clear, the second moments of a site with fewer images than features tell who is "
        "in them to whoever also holds images of the people that he asks about; with somewhat more images than "
        "features they still tell it of most. Two things help: encryption, under which the server sees the total "
        "alone, and noise. A total is a sum as well: one of few images, or what is left of it when a site takes its "
        "own away, tells the same to every site that opens it.",
        "",
        "**On whom was a head fitted?** An attacker who has the head, a person's features and grade looks at the "
        "error.",
        "",
        *listing(
            stored["heads"],
            {"images that it was fitted to": lambda one: str(one["images"]), "tells members from others": _cell},
            right=(),
        ),
        "**What does one gradient of a head show?** The likeness (absolute cosine, 1 is equal) of each image's "
        "features with the nearest row of the gradient. This is of a head that travels and of one step; images "
        "themselves were not rebuilt here, and updates of an encoder were not attacked.",
        "",
        *listing(
            stored["gradients"],
            {"images in the batch": lambda one: str(one["batch"]), "likeness": _cell},
            right=(),
        ),
        machine_line(stored["machine"]),
    ]


def _patients_words(size: int) -> str:
    return f"{size}{' (leaves only noised, or encrypted if you say so)' if size < MIN_COUNT else ''}"


def _noise_words(multiplier: float | None, epsilon: float | None) -> str:
    if multiplier is None or epsilon is None:
        return "no noise"
    return f"`sums_noise.multiplier: {multiplier:g}` (epsilon {epsilon:.1f} a release)"


def _cell(one: dict[str, Any]) -> str:
    return f"{one['mean']:.2f} ({one['low']:.2f} to {one['high']:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
