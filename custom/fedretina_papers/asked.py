"""What a model said about a site's images before anyone reads it: logits with the truth, kept at this machine."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.data.site_data import SiteData, Split
from fedretina.errors import StateError
from fedretina.exchange.payload import Tensors
from fedretina.local.trainer import LocalTrainer
from fedretina.seeds import derive_seed
from fedretina.settings.experiment import Experiment
from fedretina.storage import write_bytes
from fedretina.uncertainty.estimators import Prediction, auc_scores, build_estimator, members


class Read(NamedTuple):
    """How logits are read.

    Attributes:
        estimator: Name of an estimator.
        auc_input: What the AUC ranks.
        tau: Temperature of a warmed belief.
    """

    estimator: str
    auc_input: str
    tau: float

    def predict(self, logits: Tensor) -> Prediction:
        """The estimator's answer; none to no images."""
        if not logits.shape[0]:
            return Prediction(np.zeros((0, logits.shape[-1])), np.zeros(0), self.estimator, (0.0, 1.0))
        return build_estimator(self.estimator).predict(logits)

    def scores(self, logits: Tensor) -> NDArray[np.float64]:
        """Class scores from which the AUC is computed."""
        return auc_scores(logits, self.auc_input, self.tau, build_estimator(self.estimator))


class Outside(NamedTuple):
    """What a site's model said about images that are not the site's own.

    Attributes:
        logits: float32 [N, M, K].
        labels: Class of `diseases` [N]; -1 where none is told.
        diseases: Their own classes.
        synthetic: Whether there are phantoms among them.
        other_site: Whether they are the test images of another site of the plan.
    """

    logits: Tensor
    labels: NDArray[np.int64]
    diseases: tuple[str, ...]
    synthetic: bool
    other_site: bool


class OutsideImages(NamedTuple):
    """Images to ask a site's model about; see `Outside`."""

    split: Split
    diseases: tuple[str, ...]
    synthetic: bool
    other_site: bool


class Asked(NamedTuple):
    """What a model said about a site's images, and the truth.

    Attributes:
        logits: Of the test images, float32 [N, M, K], the final head last.
        labels: int64 [N].
        patients: Patient of each image [N], hashed.
        val_logits: Of the validation images [V, M, K]; V may be 0.
        val_labels: int64 [V].
        referable: Classes that a doctor must see.
        ungradable: Class of images that nobody could grade; -1 for none.
        outside: By set of images.
    """

    logits: Tensor
    labels: NDArray[np.int64]
    patients: tuple[str, ...]
    val_logits: Tensor
    val_labels: NDArray[np.int64]
    referable: tuple[int, ...]
    ungradable: int
    outside: Mapping[str, Outside]


def ask(experiment: Experiment, model: Tensors, data: SiteData, outside: Mapping[str, OutsideImages]) -> Asked:
    """Let a site's model answer its test and validation images, and images from outside.

    Args:
        experiment: The run's settings.
        model: All tensors of the site's model.
        data: The site.
        outside: Out-of-distribution images, by set.
    """
    trainer = LocalTrainer(experiment, data)

    def logits(split: Split) -> Tensor:
        if not len(split.labels):
            return torch.zeros(0, 1, data.scheme.num_classes)
        return members(trainer.answers({}, model, split).logits).float()

    test, val = data.split("test"), data.split("val")
    return Asked(
        logits=logits(test),
        labels=np.asarray(test.labels.numpy(), dtype=np.int64),
        patients=tuple(f"{derive_seed(data.name, who):016x}" for who in test.patients),
        val_logits=logits(val),
        val_labels=np.asarray(val.labels.numpy(), dtype=np.int64),
        referable=data.scheme.referable_classes,
        ungradable=-1 if data.scheme.ungradable_class is None else data.scheme.ungradable_class,
        outside={
            name: Outside(
                logits(one.split),
                np.asarray(one.split.labels.numpy(), dtype=np.int64),
                one.diseases,
                one.synthetic,
                one.other_site,
            )
            for name, one in outside.items()
        },
    )


def keep(asked: Asked, read: Read, path: Path) -> None:
    """Store what was said and how it is read (npz); it tells images apart, so it stays where it is.

    Raises:
        StateError: The file cannot be written.
    """
    answer, val = read.predict(asked.logits), read.predict(asked.val_logits)
    arrays: dict[str, Any] = {
        "probabilities": answer.probabilities,
        "uncertainty": answer.uncertainty,
        "labels": asked.labels,
        "patients": np.array(asked.patients),
        "scores": read.scores(asked.logits),
        "referable": np.array(asked.referable, dtype=np.int64),
        "ungradable": asked.ungradable,
        "val_probabilities": val.probabilities,
        "val_uncertainty": val.uncertainty,
        "val_labels": asked.val_labels,
        "logits": asked.logits.numpy(),
        "val_logits": asked.val_logits.numpy(),
        "outside": np.array(list(asked.outside), dtype=np.str_),
    }
    for at, one in enumerate(asked.outside.values()):
        arrays |= {
            f"outside_{at}_logits": one.logits.numpy(),
            f"outside_{at}_labels": one.labels,
            f"outside_{at}_diseases": np.array(one.diseases, dtype=np.str_),
            f"outside_{at}_kind": np.array([one.synthetic, one.other_site]),
        }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def read_asked(path: Path) -> Asked:
    """Read what `keep` stored.

    Raises:
        StateError: The file is missing or damaged, or of a version that kept no logits.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        if "logits" not in arrays:
            raise StateError(
                f"{path} holds answers without their logits, which cannot be read anew: delete this file and the "
                "result beside it, and run the row again; its model is there still."
            )
        outside = {}
        for at, name in enumerate(arrays["outside"].tolist()):
            synthetic, other_site = arrays[f"outside_{at}_kind"].tolist()
            outside[str(name)] = Outside(
                torch.from_numpy(arrays[f"outside_{at}_logits"]),
                arrays[f"outside_{at}_labels"].astype(np.int64),
                tuple(str(one) for one in arrays[f"outside_{at}_diseases"]),
                bool(synthetic),
                bool(other_site),
            )
        return Asked(
            logits=torch.from_numpy(arrays["logits"]),
            labels=arrays["labels"].astype(np.int64),
            patients=tuple(str(one) for one in arrays["patients"]),
            val_logits=torch.from_numpy(arrays["val_logits"]),
            val_labels=arrays["val_labels"].astype(np.int64),
            referable=tuple(int(one) for one in arrays["referable"]),
            ungradable=int(arrays["ungradable"]),
            outside=outside,
        )
    except FileNotFoundError as error:
        raise StateError(
            f"{path} is missing: bring the answers from the machine that ran the row, or run it again."
        ) from error
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise StateError(
            f"{path} cannot be read ({error}): delete it with its result and run this seed again."
        ) from error
