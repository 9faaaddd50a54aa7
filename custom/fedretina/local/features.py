"""Features of the encoder as a run starts with it, for what is fitted on them instead of trained through it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fedretina.data.site_data import SiteData, Split
from fedretina.local.training import reproducible_torch, torch_device
from fedretina.networks.build import build_network
from fedretina.networks.network import Network
from fedretina.settings.experiment import Experiment

BATCH = 32
"""Images that pass at once. It is fixed, and the last batch is filled up, because the last bit of a sum may depend on
the size of the batch: so an image's features do not depend on how many others its split has."""
_ANY_GRADES = 2


class FrozenEncoder:
    """The encoder as the run starts with it, from its weights file or the seed: in evaluation mode, never trained.

    Equal settings, weights, device and threads (`training`) give equal bits at every site and in every call.

    Args:
        experiment: The run's settings; of its network the encoder, its weights and the normalisation count.
        data: The site's data.
    """

    def __init__(self, experiment: Experiment, data: SiteData) -> None:
        self._experiment = experiment
        self._data = data

    def features(self, split: Split) -> Tensor:
        """Features of the images of a split as they are, without random transforms.

        Args:
            split: Any split of the site's data.

        Returns:
            float32 [n, F] on the CPU, in the split's order; F is the encoder's, before any projection.

        Raises:
            SettingsError: The encoder's weights cannot be loaded, or the device is not there.
        """
        training = self._experiment.training
        device = torch_device(training)
        layout = torch.channels_last if training.channels_last else torch.contiguous_format
        found = torch.empty(len(split.images), self._net.encoder.features)
        with reproducible_torch(training), torch.inference_mode():
            for begin in range(0, len(found), BATCH):
                images = split.images[begin : begin + BATCH].float().div_(255)
                there = _filled(images).to(device=device, memory_format=layout)
                answered = self._net.encoder(self._net.normalised(there))
                found[begin : begin + BATCH] = answered[: len(images)].float().cpu()
        return found

    @cached_property
    def _net(self) -> Network:
        # The encoder has a seed of its own, so neither the grades nor what stands beside it changes its start.
        alone = {"projector": None, "calibrator": False, "contrast": None, "exits": None, "dropout": None}
        experiment = self._experiment
        net = build_network(experiment.network.model_copy(update=alone), _ANY_GRADES, experiment.seed)
        layout = torch.channels_last if experiment.training.channels_last else torch.contiguous_format
        net.to(device=torch_device(experiment.training), memory_format=layout)  # type: ignore[call-overload]
        return net.eval()


def _filled(images: Tensor) -> Tensor:
    """A batch of `BATCH` images, the missing ones black."""
    if len(images) == BATCH:
        return images
    return torch.cat([images, images.new_zeros(BATCH - len(images), *images.shape[1:])])
