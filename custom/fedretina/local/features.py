"""What frozen stages make of a site's images, from its disk where it is kept there; a frozen encoder's features."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.analytic.distance import gate_layer
from fedretina.data.augment import oriented
from fedretina.data.feature_cache import FeatureCache, Rows
from fedretina.data.site_data import SiteData, Split
from fedretina.exchange.payload import Tensors, tensors_digest
from fedretina.networks.build import build_network
from fedretina.networks.network import Network
from fedretina.seeds import reproducible_torch, torch_device
from fedretina.settings.experiment import Experiment
from fedretina.version import __version__

_log = logging.getLogger(__name__)
_ANY_GRADES = 2
_TOGETHER = 64  # images that are in memory as numbers at once


class SplitOutputs:
    """What the frozen stages make of a split's images: read, or computed when it is asked for, with the same bits.

    Args:
        outputs: Whose they are.
        split: The images.
        kept: All rows that the cache holds, and where in them the row of each image is, by its orientation; None where
            they are not kept.
    """

    def __init__(
        self, outputs: FrozenOutputs, split: Split, kept: tuple[Rows, dict[int, NDArray[np.int64]]] | None
    ) -> None:
        self._outputs = outputs
        self._split = split
        self._kept = kept

    def __call__(self, samples: NDArray[np.int64], orientation: NDArray[np.int64] | None = None) -> Tensor:
        """Outputs of some images.

        Args:
            samples: int64 [B], numbers of images in the split.
            orientation: int64 [B], how each lies (`data.augment.oriented`); None for all as they are.

        Returns:
            float16 [B, L] on the CPU; see `Network.frozen_outputs`.
        """
        lie = np.zeros(len(samples), np.int64) if orientation is None else orientation
        if self._kept is None:
            return self._outputs.compute(self._split, samples, lie)
        rows, places = self._kept
        at = [places[int(one)][sample] for sample, one in zip(samples, lie, strict=True)]
        return torch.from_numpy(np.array(rows[at]))


class FrozenOutputs:
    """Runs the frozen stages of a network over a site's images, once for each where they are kept.

    Equal settings, weights, device and threads (`training`) give equal bits, kept or not, in a batch of any size.

    Args:
        net: A network with frozen stages, where it computes.
        experiment: The run's settings.
        data: The site's data; it says where outputs are kept, if anywhere.
    """

    def __init__(self, net: Network, experiment: Experiment, data: SiteData) -> None:
        self._net = net
        self._training = experiment.training
        device = torch_device(experiment.training)
        self._layout = torch.channels_last if experiment.training.channels_last else torch.contiguous_format
        with reproducible_torch(experiment.training):
            black = torch.zeros(1, *experiment.images.shape, device=device)
            self.width = net.frozen_width(black.to(memory_format=self._layout))
        self._cache: FeatureCache | None = None
        if data.features is not None and experiment.network.frozen_cache != "off":
            self._cache = FeatureCache(data.features, self._key(experiment, device), self.width)

    def _key(self, experiment: Experiment, device: torch.device) -> dict[str, object]:
        net = self._net
        state = net.state_dict()  # asked once: each call walks all modules
        # A processor knows one way of forming products, and one of choosing kernels.
        tf32, kernels = self._training.precision == "tf32", self._training.kernels
        card = {} if device.type == "cpu" else {"tf32": tf32, "kernels": kernels}
        return {
            **card,
            "encoder": experiment.network.encoder,
            "steps": net.frozen,
            "exits": list(() if net.exits is None else net.exits.after),
            "weights": tensors_digest({key: state[key] for key in sorted(net.frozen_keys())}),
            "normalisation": net.normalisation,
            "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
            "threads": self._training.threads,
            "channels_last": self._training.channels_last,
            # Whose code computes: equal weights give other bits where another version of it goes through them.
            "torch": torch.__version__,
            "timm": metadata.version("timm"),
            "fedretina": __version__,
        }

    def of(self, split: Split, orientations: Sequence[int] = (0,)) -> SplitOutputs:
        """Outputs of a split's images in some orientations; those that are kept nowhere yet are computed now.

        Args:
            split: Of the site's data.
            orientations: How the images may lie.
        """
        if self._cache is None or not len(split.images):
            return SplitOutputs(self, split, None)
        count = len(split.images)
        wanted = [(digest, one) for one in orientations for digest in split.pixel_digests()]

        def compute(places: Sequence[int]) -> Rows:
            at = np.array(places)
            lie = np.array(orientations, np.int64)[at // count]
            found: Rows = self.compute(split, at % count, lie).numpy()
            return found

        found = self._cache.rows(wanted, compute)
        if found is None:
            return SplitOutputs(self, split, None)
        rows, places = found
        by_orientation = np.array(places, np.int64).reshape(len(orientations), count)
        return SplitOutputs(self, split, (rows, dict(zip(orientations, by_orientation, strict=True))))

    def compute(self, split: Split, samples: NDArray[np.int64], orientation: NDArray[np.int64]) -> Tensor:
        """Run the frozen stages; see `SplitOutputs`."""
        device, found = torch_device(self._training), torch.empty(len(samples), self.width, dtype=torch.float16)
        with reproducible_torch(self._training):
            for begin in range(0, len(samples), _TOGETHER):
                part = slice(begin, begin + _TOGETHER)
                images = oriented(split.images[samples[part]], orientation[part]).float().div_(255)
                there = images.to(device=device, memory_format=self._layout)
                found[part] = self._net.frozen_outputs(there).cpu()
        return found


class FrozenEncoder:
    """An encoder in evaluation mode that is never trained: as the run starts with it, from weights file or seed.

    Args:
        experiment: The run's settings; of its network the encoder, its weights and the normalisation count.
        data: The site's data.
        state: What is put over the start, by the network's keys: an encoder that the run has pre-trained; keys of other
            parts are not read.
    """

    def __init__(self, experiment: Experiment, data: SiteData, state: Tensors = MappingProxyType({})) -> None:
        self._experiment = experiment
        self._data = data
        self._state = {key: tensor for key, tensor in state.items() if key.startswith("encoder.")}

    def features(self, split: Split) -> Tensor:
        """Features of the images of a split as they are, without random transforms.

        They are rounded to float16, so that those read from the disk cache have the bits of those computed.

        Args:
            split: Any split of the site's data.

        Returns:
            float32 [n, F] on the CPU, in the split's order; F is the encoder's, before any projection.

        Raises:
            SettingsError: The encoder's weights cannot be loaded, or the device is not there.
        """
        return self._outputs.of(split)(np.arange(len(split.images))).float()

    @cached_property
    def _outputs(self) -> FrozenOutputs:
        # The encoder has a seed of its own, so neither the grades nor what stands beside it changes its start.
        alone = {"projector": None, "calibrator": False, "contrast": None, "exits": None, "dropout": None}
        experiment, training = self._experiment, self._experiment.training
        settings = experiment.network.model_copy(update={**alone, "frozen": "all"})
        net = build_network(settings, _ANY_GRADES, experiment.seed)
        net.load_state_dict({**net.state_dict(), **self._state})
        layout = torch.channels_last if training.channels_last else torch.contiguous_format
        net.to(device=torch_device(training), memory_format=layout)  # type: ignore[call-overload]
        return FrozenOutputs(net, experiment, self._data)


def fitted_gate(encoder: FrozenEncoder, data: SiteData, within: float | None) -> dict[str, Tensor]:
    """What tells images that are unlike the site's own, by its keys in a network's state (`networks.gate`).

    It is of the site's training images, its limit of the validation images; it stays with the model at the site.

    Args:
        encoder: Gives the features that the gate stands on.
        data: The site's data.
        within: As `EvaluationSettings.gate`; None gives nothing.

    Raises:
        DataError: A feature is not finite.
    """
    if within is None:
        return {}
    found = gate_layer(encoder.features(data.split("train")), encoder.features(data.split("val")), within)
    if not found.measures:
        _log.warning("%s: the features of its images do not tell how far another lies from them", data.name)
    return {"gate.weight": found.weight, "gate.bias": found.bias}
