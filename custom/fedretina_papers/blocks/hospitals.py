"""Hospitals of a block: dealt out of sets by whole patients, with what a frozen encoder makes of their images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.clients import ClientSkew, divide
from fedretina.data.site_data import SiteData, Split, load_site_data
from fedretina.errors import DataError
from fedretina.local.features import FrozenOutputs
from fedretina.networks.build import build_network
from fedretina.seeds import derive_seed, reproducible_torch, torch_device
from fedretina.settings.experiment import Experiment
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings, read_data_settings
from fedretina_papers.blocks.plan import PIXELS, BlockCase, BlockPlan, Size, images_of
from fedretina_papers.draws import rows_of, some

_FEWEST = 16
"""Training images that every hospital has at the least: two batches."""
_PHANTOMS = 64
_LEAST = 10
"""Validation images of a hospital, however few it trains on; they scale scores and find temperatures."""


class ImageSet(NamedTuple):
    """A set of images as a row's network takes them.

    Attributes:
        data: Its splits; in the place of images stand float16 rows [N, L], see `Network.frozen_outputs`, unless rows
            train all of the network.
        pooled: Length of the pooled features, which stand last in a row; before them is what early exits read. 0 where
            images stand.
        early: Lengths of what each early exit reads, in their order.
    """

    data: SiteData
    pooled: int
    early: tuple[int, ...] = ()

    def told(self) -> dict[str, Any]:
        """What a record says of the set: images by grade in each split."""
        grades = self.data.scheme.grades
        counts = {name: Counter(self.data.split(name).labels.tolist()) for name in ("train", "val", "test")}
        return {
            "grades": list(grades),
            "images": {name: [counts[name][at] for at in range(len(grades))] for name in counts},
            "patients": {name: len(set(self.data.split(name).patients)) for name in counts},
            "synthetic": self.data.synthetic,
            "fingerprint": self.data.fingerprint,
        }


class Hospital(NamedTuple):
    """One hospital of a draw.

    Attributes:
        data: Its training and validation images, and all test images of its set.
        of: Its set.
        judged: Whether its figures count.
    """

    data: SiteData
    of: str
    judged: bool


def read_sets(
    plan: BlockPlan, experiment: Experiment, folder: Path, tell: Callable[[str, int, int], None], start: str = ""
) -> dict[str, ImageSet]:
    """Read all sets, through the frozen encoder but for `PIXELS`; what it makes of an image is kept on the disk.

    Args:
        plan: Names the sites.
        experiment: Its network is frozen wholly; with early exits where any row has them.
        folder: Of the caches, where a site file names none.
        tell: Called while images are read: of which site, how many, of how many.
        start: Name of the encoder; the experiment's own where "", none for `PIXELS`.

    Raises:
        SettingsError: There is no such encoder for a site.
    """
    found: dict[str, ImageSet] = {}
    for site, file in plan.sites.items():
        weights = None if start in ("", PIXELS) else plan.begin(start, site)
        settings = SiteDataSettings(phantom_images=_PHANTOMS) if file is None else read_data_settings(file, site)
        data = load_site_data(
            site,
            settings,
            experiment.images,
            experiment.seed,
            folder / site,
            tell=lambda done, of, site=site: tell(f"images of {site}", done, of),  # type: ignore[misc]
        )
        if start == PIXELS:
            found[site] = ImageSet(_gradable(data, plan.without), 0)
            continue
        seen = experiment.model_copy(update={"network": experiment.network.model_copy(update={"weights": weights})})
        found[site] = _seen(_gradable(data, plan.without), seen if start else experiment)
    return found


def _gradable(data: SiteData, without: Sequence[str]) -> SiteData:
    """A set without the images of some grades, and without these grades."""
    left = [name for name in without if name in data.scheme.grades]
    if not left:
        return data
    scheme = data.scheme
    gone = {scheme.grades.index(name) for name in left}
    kept = [at for at in range(len(scheme.grades)) if at not in gone]
    grades = tuple(scheme.grades[at] for at in kept)
    fewer = GradingScheme(
        grades=grades,
        labels={raw: grade for raw, grade in scheme.labels.items() if grade in grades},
        ungradable=None if scheme.ungradable in left else scheme.ungradable,
        referable=tuple(name for name in scheme.referable if name in grades),
        covers={grade: names for grade, names in scheme.covers.items() if grade in grades},
    )
    splits = {}
    for name in ("train", "val", "test"):
        split = data.split(name)
        rows = [at for at, label in enumerate(split.labels.tolist()) if label not in gone]
        part = rows_of(split, rows)
        splits[name] = part._replace(labels=torch.tensor([kept.index(one) for one in part.labels.tolist()]))
    return with_splits(data, splits, grading=fewer)


def _seen(data: SiteData, experiment: Experiment) -> ImageSet:
    """A set with what the frozen encoder makes of its images in their place."""
    net = build_network(experiment.network, data.scheme.num_classes, experiment.seed)
    layout = torch.channels_last if experiment.training.channels_last else torch.contiguous_format
    net.to(device=torch_device(experiment.training), memory_format=layout)  # type: ignore[call-overload]
    outputs = FrozenOutputs(net, experiment, data)
    splits = {}
    with reproducible_torch(experiment.training):
        for name in ("train", "val", "test"):
            split = data.split(name)
            splits[name] = split._replace(images=outputs.of(split)(np.arange(len(split.labels))))
    pooled = net.encoder.features
    early, left = [], splits["test"].images.shape[1] - pooled
    for stage in () if net.exits is None else net.exits.after:
        if left:
            early.append(net.encoder.widths[stage])
            left -= early[-1]
    return ImageSet(with_splits(data, splits, features=None), pooled, tuple(early))


def without_exits(data: SiteData, pooled: int) -> SiteData:
    """A hospital's data for a network that has no early exits: the pooled features alone."""
    splits = {name: data.split(name) for name in ("train", "val", "test")}
    return with_splits(data, {name: split._replace(images=split.images[:, -pooled:]) for name, split in splits.items()})


def with_stages(data: SiteData, widths: Sequence[int]) -> SiteData:
    """A hospital's data for heads from sums over the averages of several stages.

    Each stage's numbers are divided by one number, which makes their mean variance over the hospital's training images
    1, so that no stage outweighs another by the scale of its maps.

    Args:
        data: The hospital's.
        widths: Length of each stage's part of a row, the pooled features' last.
    """
    parts = torch.split(data.split("train").images.float(), list(widths), dim=1)
    scales = torch.cat(
        [part.var(0, correction=0).mean().sqrt().clamp(min=1e-6).repeat(part.shape[1]) for part in parts]
    )
    splits = {name: data.split(name) for name in ("train", "val", "test")}
    return with_splits(data, {name: one._replace(images=one.images.float() / scales) for name, one in splits.items()})


def as_by_own_batchnorm(data: SiteData) -> SiteData:
    """A hospital's rows as a BatchNorm of its own leaves them.

    Few images hardly know a number's variance, so that the mean variance of all numbers counts as one image more.
    """
    own = data.split("train").images.float()
    mean, variance = own.mean(0), own.var(0, correction=0)
    scale = ((len(own) * variance + variance.mean()) / (len(own) + 1)).sqrt().clamp(min=1e-6)
    splits = {name: data.split(name) for name in ("train", "val", "test")}
    return with_splits(
        data, {name: one._replace(images=(one.images.float() - mean) / scale) for name, one in splits.items()}
    )


def deal(case: BlockCase, sets: Mapping[str, ImageSet], size: Size, draw: int) -> dict[str, Hospital]:
    """The hospitals of a draw.

    A set's training and validation patients are dealt among its hospitals anew in each draw; a hospital takes the first
    n images of its own in an order that the draw decides, whole patients, so that the draws of a smaller n lie within
    those of a larger one. It is judged on all test images of its set, the same in every draw.

    Raises:
        DataError: A set is too small for so many hospitals.
    """
    found = {}
    for name, count in sorted(case.hospitals.items()):
        whole = sets[name].data
        homes = _homes(whole, count, case.alpha, draw)
        few = name in case.judged
        for at in range(count):
            own = {split: _of(whole.split(split), homes.get(split), at) for split in ("train", "val")}
            title = f"{name}-{at + 1}" if count > 1 else name
            parts = {"test": whole.split("test")}
            for split, part in own.items():
                most = images_of(size if few else "all", len(part.labels))
                if split == "val" and most != len(part.labels):
                    most = max(_LEAST, most // 4 if isinstance(size, int) else most)
                parts[split] = some(part, most, derive_seed(name, at, split, draw))
            found[title] = Hospital(replace(with_splits(whole, parts), name=title), name, few)
    return found


def _homes(data: SiteData, count: int, alpha: float | None, draw: int) -> dict[str, NDArray[np.int64]]:
    """Number of the hospital of each image, by split; nothing where there is one."""
    if count == 1:
        return {}
    parts = {name: data.split(name) for name in ("train", "val")}
    patients = [who for part in parts.values() for who in part.patients]
    labels = [label for part in parts.values() for label in part.labels.tolist()]
    names = [name for name, part in parts.items() for _ in part.labels]
    least = {"minimum": _FEWEST}
    skew = ClientSkew(name="even", **least) if alpha is None else ClientSkew(name="dirichlet", alpha=alpha, **least)
    homes = divide(patients, labels, names, count, skew, derive_seed(data.name, draw)).homes
    ends = len(parts["train"].labels)
    return {"train": homes[:ends], "val": homes[ends:]}


def _of(split: Split, homes: NDArray[np.int64] | None, at: int) -> Split:
    return split if homes is None else rows_of(split, np.flatnonzero(homes == at).tolist())


def with_splits(data: SiteData, splits: Mapping[str, Split], **changed: Any) -> SiteData:
    """A site's data with other splits.

    Raises:
        DataError: One of them has no image.
    """
    counts = {name: len(split.labels) for name, split in splits.items()}
    if not all(counts.values()):
        raise DataError(f"{data.name} has a split without images after it was dealt: deal fewer hospitals from it.")
    # Images of public sets need not be kept back, so every grade may be in the sums, however few its patients.
    return replace(data, _read=splits.__getitem__, counts=counts, min_count=1, **changed)
