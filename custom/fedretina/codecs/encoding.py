"""What of a message travels encoded, and what each end keeps for it.

Both ways a parameter travels as what changed since the last message, plus what the rounding of earlier ones lost (error
feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019; both ways: Tang et al., DoubleSqueeze, ICML
2019). Up: the site's weights less those that came down. Down: the next aggregate less the one that the sites hold; so
the server's model is what a site has after decoding, to the bit, and what that lost is kept beside it. A site that does
not hold the last one gets the model whole. Controls go up as changes already; where they follow from the weights, the
way that those went travels in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedretina.codecs.codec import build_codec
from fedretina.codecs.frames import opened, require_form, sealed
from fedretina.corrections.correction import build_correction
from fedretina.errors import RefusedError
from fedretina.exchange.partition import CONTROL, KEY, Partition, size_of
from fedretina.exchange.payload import Tensors
from fedretina.settings.codec import EncodingSettings
from fedretina.settings.experiment import Experiment

Ways = Mapping[str, float]
"""By parameter, S eta of a round, where its control follows from that and the weights (`Outcome.ways`)."""

_WAY = 4  # bytes of a way, which stands in the place of a control


class Base(NamedTuple):
    """What an encoded message counts from; both ends have it, to the bit.

    Attributes:
        held: By key, what the other end has already; of a key that is not there, zeros.
        control: By key, the controls that what follows from the weights is counted from.
    """

    held: Tensors
    control: Tensors = MappingProxyType({})

    @classmethod
    def up(cls, received: Tensors) -> Base:
        """Of a site's answer: what came down with its order; controls go up as changes already."""
        controls = {key: tensor for key, tensor in received.items() if key.startswith(CONTROL)}
        return cls({key: tensor for key, tensor in received.items() if key not in controls}, controls)


class Encoded(NamedTuple):
    """A message, encoded.

    Attributes:
        frames: What of it travels encoded, by key.
        held: What the other end has once it has decoded it, to the bit; all of the message, encoded or not.
        errors: What the frames lost, by key, for the next time.
    """

    frames: dict[str, Tensor]
    held: dict[str, Tensor]
    errors: dict[str, Tensor]


class Opened(NamedTuple):
    """A message, decoded.

    Attributes:
        tensors: By key.
        ways: See `Ways`; of the parameters whose controls did not travel.
    """

    tensors: dict[str, Tensor]
    ways: dict[str, float]


class Encoding:
    """Encodes and decodes the messages of one run; it holds no state of a round.

    Attributes:
        keys: What travels encoded: parameters, their controls, and the key network's parameters, of enough numbers.
        kept: What a site keeps of what came down, to decode the next message with.

    Args:
        settings: The codec's.
        experiment: The run's settings.
        parts: What travels of its network.
    """

    def __init__(self, settings: EncodingSettings, experiment: Experiment, parts: Partition) -> None:
        self._codec = build_codec(settings)
        self._correction = build_correction(experiment.correction, experiment.training)
        self._parts = parts
        following = [key for key in parts.keys if key.removeprefix(KEY) in parts.parameters]
        self.keys = frozenset(
            key
            for key in (*parts.parameters, *parts.controls, *following)
            if parts.dtypes[key] == torch.float32
            and parts.sizes[key][0] >= settings.smallest
            and key not in parts.sealed
        )
        self.kept = self.keys | frozenset(parts.parameters if self._correction.comes_back else ())

    def encode(self, tensors: Tensors, base: Base, errors: Tensors, ways: Ways) -> Encoded:
        """Encode a message.

        Args:
            tensors: What the other end is to have.
            base: What it counts from.
            errors: What the last message to the same end lost.
            ways: Of the parameters whose controls need not travel.

        Raises:
            RefusedError: A tensor holds a value that is not finite.
        """
        frames, held, lost = {}, dict(tensors), {}
        following = {f"{CONTROL}{key}": key for key in ways} if self._correction.follows else {}
        for key in sorted((self.keys & set(tensors)) - set(following)):
            from_ = self._held(key, base)
            change = tensors[key] - from_
            if key in errors:
                change = change + errors[key]
            if not math.isfinite(size_of(change)):
                raise RefusedError(f"tensor {key!r} holds a value that is not finite, so it cannot be encoded.")
            body = self._codec.encode(change.reshape(-1))
            back = self._codec.decode(body, change.numel()).reshape(change.shape)
            frames[key], held[key], lost[key] = sealed(body, from_), from_ + back, change - back
        for name, key in sorted(following.items()):
            if name in tensors:
                frames[name] = torch.tensor([ways[key]], dtype=torch.float32).view(torch.uint8)
                held[name] = self._followed(key, held, base, float(frames[name].view(torch.float32)))
        return Encoded(frames, held, lost)

    def decode(self, message: Tensors, base: Base) -> Opened:
        """Decode a message.

        Args:
            message: As it came, the form of each tensor looked at (`require`).
            base: What it counts from, at this end.

        Raises:
            RefusedError: A frame stands on another model, or no codec gave it.
        """
        found, ways = dict(message), {}
        following = {name: name.removeprefix(CONTROL) for name in sorted(message) if _is_way(name, message[name])}
        for key in sorted((self.keys & set(message)) - set(following)):
            if message[key].dtype == torch.uint8:
                from_ = self._held(key, base)
                try:
                    change = self._codec.decode(
                        opened(message[key], from_, self._codec.size(from_.numel())), from_.numel()
                    )
                except RefusedError as error:
                    raise RefusedError(f"tensor {key!r} cannot be decoded: {error}.") from error
                found[key] = from_ + change.reshape(from_.shape)
        for name, key in following.items():
            if key not in base.held or key not in found:
                raise RefusedError(f"tensor {name!r} follows from tensor {key!r}, which this end does not have.")
            ways[key] = float(message[name].clone().view(torch.float32))
            found[name] = self._followed(key, found, base, ways[key])
        return Opened(found, ways)

    def require(self, key: str, tensor: Tensor, whole: bool) -> bool:
        """Look at the form of a tensor that came, without decoding it.

        Args:
            key: Its key.
            tensor: The tensor.
            whole: Whether it may also come as it is.

        Returns:
            Whether it is encoded; else it is to be looked at as any tensor is.

        Raises:
            RefusedError: It is encoded, and cannot be a frame of that tensor; or it is not, and must be.
        """
        if self._correction.follows and _is_way(key, tensor):
            way = float(tensor.clone().view(torch.float32))
            if not (math.isfinite(way) and way >= 0):
                raise RefusedError(f"tensor {key!r} says that its weights went a way of {way:g}, expected 0 or more.")
            return True
        if key not in self.keys or (whole and tensor.dtype != torch.uint8):
            return False
        try:
            require_form(tensor, self._codec.size(self._parts.sizes[key][0]))
        except RefusedError as error:
            raise RefusedError(f"tensor {key!r} cannot be decoded: {error}.") from error
        return True

    def common_ways(self, ways: Mapping[str, Ways], weights: Mapping[str, float], enrolled: int) -> Ways:
        """The ways by which a site may find the next controls out of the next aggregate; none where it cannot.

        Args:
            ways: By site that was accepted, its ways.
            weights: The sites' weights in the aggregate.
            enrolled: Number of sites of the run.
        """
        sites = sorted(weights)
        if not self._correction.comes_back or len(sites) < enrolled or len(set(weights.values())) > 1:
            return {}
        first = ways.get(sites[0], {})
        return {key: way for key, way in first.items() if way > 0 and {ways[site].get(key) for site in sites} == {way}}

    def _held(self, key: str, base: Base) -> Tensor:
        found = base.held.get(key)
        return torch.zeros(self._parts.shapes[key]) if found is None else found

    def _followed(self, key: str, ended: Tensors, base: Base, way: float) -> Tensor:
        if way == 0:  # it had no gradient in this round
            return torch.zeros(self._parts.shapes[key])
        control = base.control.get(f"{CONTROL}{key}")
        return self._correction.control_of(base.held[key], ended[key], way, control)


def _is_way(key: str, tensor: Tensor) -> bool:
    return key.startswith(CONTROL) and tensor.dtype == torch.uint8 and tuple(tensor.shape) == (_WAY,)


def encoding_of(experiment: Experiment, parts: Partition) -> Encoding | None:
    """How a run's messages are encoded; None where they travel as they are.

    Raises:
        SettingsError: No codec is registered for the run's settings.
    """
    settings = experiment.exchange.codec
    return Encoding(settings, experiment, parts) if isinstance(settings, EncodingSettings) else None
