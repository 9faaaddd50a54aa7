"""A site's gate for a model that it ends a run with, and how it and the model's own doubt do on spoiled photographs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.data.modalities import Look, modality
from fedretina.data.site_data import SiteData, Split
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
        own: Images of the test split, how many of them it stopped, and how many of the others it calls unusual; their
            patients, how many have an image that it stopped, and how many have one that is stopped or unusual.
        spoiled: By the name of what was done to them; empty for signals.
        silent: Of all images of the test split, whether it lets no answer be shown [N].
    """

    gate: Gate
    own: Mapping[str, int]
    spoiled: Mapping[str, Spoiled]
    silent: NDArray[np.bool_]


def site_gate(model: Contestant, model_digest: str, data: SiteData, splits: Splits) -> SiteGate:
    """Fit the gate of a model on the site's own images, and try it.

    Images that the site itself grades as ungradable have no part in it. The test split is looked at, and decides
    nothing.

    Args:
        model: The model, with its answers.
        model_digest: Of its tensors.
        data: The site's data.
        splits: Validation and test.
    """
    expected = expected_look(model)
    grade = data.scheme.ungradable_class
    train, validation = (gradable(split, grade) for split in (data.split("train"), splits["val"]))
    few = np.linspace(0, len(train) - 1, min(_FITTED_ON, len(train))).astype(np.int64)
    fitted_on = part(data.split("train"), train[few])
    gate = Gate.fitted(
        Shown(fitted_on.images, answered(model, fitted_on)),
        shown(model, splits, "val", validation),
        [splits["val"].patients[at] for at in validation],
        expected,
        model_digest,
        data.unusual,
    )
    looks = gate.look(shown(model, splits, "test", np.arange(len(splits["test"].labels))))
    rows = gradable(splits["test"], grade)
    of = splits["test"].patients
    stopped = [at for at in rows if looks[at].reason is not None]
    unusual = [at for at in rows if looks[at].unusual]
    own = {
        "images": len(rows),
        "stopped": len(stopped),
        "unusual": len(unusual),
        "patients": len({of[at] for at in rows}),
        "patients_stopped": len({of[at] for at in stopped}),
        "patients_odd": len({of[at] for at in (*stopped, *unusual)}),
    }
    silent = np.array([not one.answered for one in looks], dtype=np.bool_)
    spoiled = {} if expected is None else _spoiled(gate, model, part(splits["val"], validation))
    return SiteGate(gate, own, spoiled, silent)


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


def answered(model: Contestant, split: Split, kept: bool = True) -> torch.Tensor | None:
    """Features that a model computes of images; see `LocalTrainer.answers`."""
    return model.trainer.answers({}, model.model, split, kept).features if len(split.labels) else None


def shown(model: Contestant, splits: Splits, name: str, rows: NDArray[np.int64]) -> Shown:
    """Images of a split that the model has answered, as a gate looks at them."""
    features = model.answers[name].features
    return Shown(splits[name].images[rows], None if features is None else features[rows])


def _spoiled(gate: Gate, model: Contestant, split: Split) -> dict[str, Spoiled]:
    few = np.linspace(0, len(split.labels) - 1, min(_SPOILED, len(split.labels))).astype(np.int64)
    if not len(few):
        return {}
    whole = part(split, few)._replace(digests=())
    # All of them in one pass, for a model is loaded for each.
    images = torch.from_numpy(np.stack([spoil(image) for spoil in SPOILS.values() for image in whole.images.numpy()]))
    every = whole._replace(images=images, labels=whole.labels.repeat(len(SPOILS)))
    said: Any = model.trainer.answers({}, model.model, every, kept=False)
    stopped = np.array([one.reason is not None for one in gate.look(Shown(images, said.features))])
    logits = said.logits.split(len(few))
    return {name: Spoiled(stopped[at * len(few) :][: len(few)], logits[at]) for at, name in enumerate(SPOILS)}
