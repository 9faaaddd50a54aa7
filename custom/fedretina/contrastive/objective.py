"""The interface between the round and a contrastive objective, and what begins a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedretina.errors import SettingsError, TrainingError
from fedretina.exchange.payload import Tensors
from fedretina.losses.objective import Clock
from fedretina.networks.contrast import ContrastHead
from fedretina.networks.network import Network
from fedretina.parts import Register
from fedretina.settings.contrastive import ContrastiveSettings


class Views(NamedTuple):
    """Two augmented views of each image of a batch.

    Attributes:
        first: float [B, 3, S, S] in [0, 1], on the device of the network (x1).
        second: The same images, drawn anew (x2).
        images: int64 [B], number of each image in the site's training split.
        patients: int64 [B], number of its patient.
    """

    first: Tensor
    second: Tensor
    images: Tensor
    patients: Tensor


@dataclass(frozen=True)
class ContrastiveContext:
    """What a contrastive objective stands on in one round at one site.

    Attributes:
        net: The network, loaded with the aggregate and the site's personal part, in training mode.
        memory: What the site kept from its last accepted round, by name, on any device; empty at first.
        count: Training images of the site (n_i).
        batch_size: Images per step (B).
        seed: What the draws of this round are for, such as (seed, site, phase, round).
        first_views: Gives augmented views, float [M, 3, S, S], of images by their numbers; a queue is filled with them.
        patients: int64 [n_i], number of each image's patient.
        device: Where the network is.
        keys: What came down of the key network, by key of the tensor in the network that it follows; empty unless the
            server averages key networks.
    """

    net: Network
    memory: Tensors
    count: int
    batch_size: int
    seed: tuple[int | str, ...]
    first_views: Callable[[NDArray[np.int64]], Tensor]
    patients: Tensor
    device: torch.device
    keys: Tensors = field(default_factory=dict)

    @property
    def head(self) -> ContrastHead:
        """The contrastive head of the network.

        Raises:
            SettingsError: There is none.
        """
        if self.net.contrast is None:
            raise SettingsError("contrastive training needs a projector: set network.contrast.")
        return self.net.contrast


class ContrastiveRound(ABC):
    """A contrastive objective during one round at one site.

    Nothing is drawn from torch's generators and the memory that came in is left as it was, so a round that begins
    twice from the same memory gives the same bits.
    """

    @abstractmethod
    def loss(self, views: Views, clock: Clock) -> Tensor:
        """Score a batch, and move the key network and the queue where there are such.

        Call it once a step, and step the optimiser after it.

        Args:
            views: The batch.
            clock: Where training stands in its phase.

        Returns:
            The mean loss (a scalar with gradient, float32). A batch of one patient has no negatives: its loss and
            gradient are 0.
        """

    def leaving(self) -> Tensors:
        """What of the key network goes up, by the same keys as it came down; on its device."""
        return {}

    def finish(self) -> Tensors:
        """End the round and say what stays at the site, by name, on the CPU; it is never sent."""
        return {}


contrastive: Register[Callable[[ContrastiveContext, Any], ContrastiveRound]] = Register("fedretina.contrastive")
"""Registers the class below it as the contrastive objective of some settings; it is built for each round."""


def unit(embeddings: Tensor) -> Tensor:
    """Scale each row to length 1 (norm in the OCT paper, Eq. 4).

    Args:
        embeddings: [B, D], of any floating type.

    Returns:
        [B, D], float32 (float64 stays float64); a row of zeros stays one.
    """
    return F.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)


def similarities(one: Tensor, other: Tensor) -> Tensor:
    """Scalar products of all rows, in the type of the rows even under autocast.

    In bfloat16 two similarities that differ by less than 0.004 are one; over a temperature of 0.1 that is 4 % of the
    odds.

    Args:
        one: [A, D].
        other: [B, D].

    Returns:
        [A, B].
    """
    with torch.autocast(one.device.type, enabled=False):
        return one @ other.T


def kept_apart(similarity: Tensor, temperature: float, same: Tensor) -> Tensor:
    """Divide by the temperature and take what is no negative out of the sum: its logit is minus infinity."""
    return (similarity / temperature).masked_fill(same, -torch.inf)


def alike(
    images: Tensor, patients: Tensor, other_images: Tensor, other_patients: Tensor, mask_patients: bool = True
) -> Tensor:
    """Tell which pairs are no negatives: the same image, and the same patient if that is asked for.

    Two eyes or two neighbouring slices of a patient are near duplicates, and an older key of an image is the image
    itself. Told apart from each other they would teach the encoder patients and ages of keys, not disease. The OCT
    paper says nothing of either; the official MoCo code masks nothing, with a queue that one epoch does not fill.

    Args:
        images: int64 [A], numbers in the site's split.
        patients: int64 [A].
        other_images: int64 [B].
        other_patients: int64 [B].
        mask_patients: Whether another image of the same patient is no negative either.

    Returns:
        bool [A, B].
    """
    same = images[:, None] == other_images[None, :]
    return same | (patients[:, None] == other_patients[None, :]) if mask_patients else same


def begin_contrastive(settings: ContrastiveSettings, context: ContrastiveContext) -> ContrastiveRound:
    """Begin a round of an objective at a site, before a correction hooks into the network.

    A site whose images are all of one patient is refused, not trained at a loss of 0: it would send the aggregate back
    as its own work and hold the others up.

    Args:
        settings: Of the objective.
        context: Network, memory and data of the round.

    Raises:
        SettingsError: The network has no contrastive head of this method.
        TrainingError: The site has fewer images than a batch, or one patient only.
    """
    if (context.head.predictor is not None) != settings.predicts:
        raise SettingsError(
            f"contrastive training by {settings.method} needs its own head: set network.contrast.layout to it."
        )
    if settings.mask_patients and int(context.patients.min()) == int(context.patients.max()):
        raise TrainingError(
            "all training images of the site are of one patient, so none is a negative of another: let the site add "
            "patients, or set contrastive.mask_patients to false."
        )
    return contrastive.of(settings)(context, settings)
