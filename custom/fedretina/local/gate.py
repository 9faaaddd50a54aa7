"""A site's gate for a model that it ends a run with, and how it and the model's own doubt do on spoiled photographs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.modalities import Look, modality
from fedretina.data.site_data import SiteData, Split
from fedretina.gate.appearance import Appearance, appearance
from fedretina.gate.gate import Gate, Shown
from fedretina.gate.spoils import SPOILS
from fedretina.local.verdict import Contestant, Splits

_FITTED_ON = 512
"""Most training images that distances are measured from: 330 told strangers as well as 1,700 (docs/doubt.md)."""
_SPOILED = 32


class Spoiled(NamedTuple):
    """Validation images that were spoiled on purpose.

    Attributes:
        stopped: Whether the gate stopped each [N].
        logits: What the model answers to them.
    """

    stopped: NDArray[np.bool_]
    logits: torch.Tensor


class SiteGate(NamedTuple):
    """A gate with what is known of it.

    Attributes:
        gate: The gate.
        own: Images of the test split that the site does not call ungradable, how many of them it stopped, and how many
            of the others it calls unusual.
        patients: Patients of all images of the test split, how many have an image that it stopped, and how many have
            one that is stopped or unusual. Whoever is asked about later has photographs that nobody can grade too.
        spoiled: By the name of what was done to them; empty for signals.
        silent: Of all images of the test split, whether it lets no answer be shown [N].
        odd: Of all images of the test split, whether it stops one or calls it unusual [N]: a doctor looks either way.
    """

    gate: Gate
    own: Mapping[str, int]
    patients: Mapping[str, int]
    spoiled: Mapping[str, Spoiled]
    silent: NDArray[np.bool_]
    odd: NDArray[np.bool_]


class Pictures(NamedTuple):
    """The site's images that gates are fitted on and tried on, and what they look like: the same for every model.

    Attributes:
        train: Of the training split, what distances are measured from.
        validation: Places in the validation split.
        spoiled: Some validation images, spoiled in all ways, one way after another; None for signals.
        looks: Of "train", "val", "test" and "spoiled"; none of what is empty, and none for signals.
    """

    train: Split
    validation: NDArray[np.int64]
    spoiled: Split | None
    looks: Mapping[str, Appearance]

    @classmethod
    def of(cls, data: SiteData, splits: Splits, expected: Look | None) -> Pictures:
        """Choose, spoil and measure them.

        Images that the site itself grades as ungradable have no part in it.
        """
        grade = data.scheme.ungradable_class
        train, validation = (gradable(split, grade) for split in (data.split("train"), splits["val"]))
        few = np.linspace(0, len(train) - 1, min(_FITTED_ON, len(train))).astype(np.int64)
        fitted_on = part(data.split("train"), train[few])
        if expected is None:
            return cls(fitted_on, validation, None, {})
        own = part(splits["val"], validation)
        spoiled = _spoiled(own)
        images = {
            "train": fitted_on.images,
            "val": own.images,
            "test": splits["test"].images,
            "spoiled": spoiled.images,
        }
        looks = {name: appearance(some) for name, some in images.items() if len(some)}
        return cls(fitted_on, validation, spoiled, looks)


def site_gate(
    model: Contestant, model_digest: str, data: SiteData, splits: Splits, pictures: Pictures | None = None
) -> SiteGate:
    """Fit the gate of a model on the site's own images, and try it.

    The test split is looked at, and decides nothing.

    Args:
        model: The model, with its answers.
        model_digest: Of its tensors.
        data: The site's data.
        splits: Validation and test.
        pictures: As `Pictures.of` gave them for another model of the same run.
    """
    expected = expected_look(model)
    grade = data.scheme.ungradable_class
    if pictures is None:
        pictures = Pictures.of(data, splits, expected)
    validation, looks = pictures.validation, pictures.looks
    gate = Gate.fitted(
        answered(model, pictures.train)._replace(looks=looks.get("train")),
        shown(model, splits, "val", validation)._replace(looks=looks.get("val")),
        [splits["val"].patients[at] for at in validation],
        expected,
        model_digest,
        data.unusual,
    )
    every = np.arange(len(splits["test"].labels))
    said = gate.look(shown(model, splits, "test", every)._replace(looks=looks.get("test")))
    rows = gradable(splits["test"], grade)
    silent = np.array([not one.answered for one in said], dtype=np.bool_)
    stopped = np.array([one.reason is not None for one in said], dtype=np.bool_)
    odd = stopped | np.array([one.unusual for one in said], dtype=np.bool_)
    own = {
        "images": len(rows),
        "stopped": int(stopped[rows].sum()),
        "unusual": sum(said[at].unusual for at in rows),
    }
    of = np.array(splits["test"].patients, dtype=np.str_)
    patients = {
        "all": np.unique(of).size,
        "stopped": np.unique(of[stopped]).size,
        "odd": np.unique(of[odd]).size,
    }
    return SiteGate(gate, own, patients, _tried(gate, model, pictures), silent, odd)


def expected_look(model: Contestant) -> Look | None:
    """What the run's pictures look like; None for signals."""
    settings = model.experiment.images
    return None if settings.signal else modality.of(settings).look


def gradable(split: Split, ungradable: int | None) -> NDArray[np.int64]:
    """Places in a split of the images that the site does not call ungradable."""
    labels = split.labels.numpy()
    return np.flatnonzero(np.ones(len(labels), np.bool_) if ungradable is None else labels != ungradable)


def part(split: Split, rows: NDArray[np.int64]) -> Split:
    """Some images of a split."""
    names = [tuple(one[at] for at in rows) for one in (split.patients, split.files)]
    digests = tuple(split.digests[at] for at in rows) if split.digests else ()
    return Split(split.images[rows], split.labels[rows], names[0], names[1], digests)


def answered(model: Contestant, split: Split) -> Shown:
    """Images with what a model sees in them, as a gate looks at them; see `LocalTrainer.answers`."""
    if not len(split.labels):
        return Shown(split.images, None)
    said = model.trainer.answers({}, model.model, split)
    return Shown(split.images, said.features, middle=said.middle)


def shown(model: Contestant, splits: Splits, name: str, rows: NDArray[np.int64]) -> Shown:
    """Images of a split that the model has answered, as a gate looks at them."""
    said = model.answers[name]
    features, middle = (None if one is None else one[rows] for one in (said.features, said.middle))
    return Shown(splits[name].images[rows], features, middle=middle)


def _spoiled(own: Split) -> Split:
    """Some images of a split, spoiled in all ways, one way after another."""
    few = np.linspace(0, len(own.labels) - 1, min(_SPOILED, len(own.labels))).astype(np.int64)
    whole = part(own, few)
    copies = [spoil(image) for spoil in SPOILS.values() for image in whole.images.numpy()]
    images = torch.from_numpy(np.stack(copies)) if copies else whole.images
    return Split(images, whole.labels.repeat(len(SPOILS)), (), ())


def _tried(gate: Gate, model: Contestant, pictures: Pictures) -> dict[str, Spoiled]:
    """What gate and model say of the spoiled images, by what was done to them."""
    spoiled = pictures.spoiled
    if spoiled is None or not len(spoiled.labels):
        return {}
    # All of them in one pass, for a model is loaded for each. What frozen stages make of them is kept like that of the
    # site's other images: a second model on the same encoder, and the next run, find it.
    said: Any = model.trainer.answers({}, model.model, spoiled)
    looks = gate.look(Shown(spoiled.images, said.features, pictures.looks["spoiled"], said.middle))
    stopped = np.array([one.reason is not None for one in looks])
    few = len(stopped) // len(SPOILS)
    logits = said.logits.split(few)
    return {name: Spoiled(stopped[at * few :][:few], logits[at]) for at, name in enumerate(SPOILS)}
