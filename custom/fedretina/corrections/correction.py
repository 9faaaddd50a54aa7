"""The interface between the round and whatever holds drift back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fedretina.errors import RefusedError, SettingsError
from fedretina.exchange.partition import CONTROL
from fedretina.exchange.payload import Tensors
from fedretina.parts import Register
from fedretina.settings.choice import Choice
from fedretina.settings.correction import CorrectionSettings, NoCorrectionSettings
from fedretina.settings.training import OptimiserSettings

MEMORY = "memory:"
"""Prefix of what the server half keeps beside a model and never sends."""

Rates = Mapping[str, float]
"""Learning rate of this step by key of the parameter."""


class Spooled(Protocol):
    """What a server half needs of the spool."""

    def weighted_mean(self, weights: Mapping[str, float], like: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
        """Mix the sites' tensors of the keys of `like`, to its types: sum_i w_i x_i."""
        ...


class RoundContext(NamedTuple):
    """What a correction stands on in one round at one site. All tensors are on the device of the network.

    Attributes:
        net: The network, loaded with the aggregate and the site's personal part.
        parameters: The parameters that travel, by key: a correction never touches a personal one.
        received: The aggregate w_t, by key, for all that travels.
        control: What the server sent beside it, by key of the parameter; empty unless the correction travels.
        memory: What the site's own half kept from its last accepted round, by name; empty at first.
        share: p_i, the site's training images over the mean of all sites; 1 where it is not known or not asked for.
    """

    net: nn.Module
    parameters: Mapping[str, nn.Parameter]
    received: Tensors
    control: Tensors
    memory: Tensors
    share: float


class Outcome(NamedTuple):
    """What a round leaves behind.

    Attributes:
        control: What goes up beside the update, by key of the parameter.
        memory: What the site keeps, by name; it counts only once the server accepted the update.
        figures: Plain numbers for the site's own record.
        ways: By key of the parameter, how far unit gradients would have carried it (S eta), where what goes up follows
            from the way that it went: a codec then sends the way in the place of the control.
    """

    control: Tensors
    memory: Tensors
    figures: Mapping[str, float]
    ways: Mapping[str, float] = MappingProxyType({})


class LocalRound:
    """The site half during one round; this base corrects nothing."""

    def penalty(self, images: Tensor) -> Tensor | None:
        """A term that is added to the loss of a batch, after its forward pass; images [B, 3, S, S]."""
        return None

    def adjust(self, rates: Rates) -> None:
        """Change the gradients in place, after the backward pass and before the optimiser's step."""

    def stepped(self, rates: Rates) -> None:
        """Change the weights in place, after the optimiser's step."""

    def finish(self) -> Outcome:
        """End the round and say what goes up and what stays."""
        return Outcome({}, {}, {})

    def close(self) -> None:
        """Let go of what was hooked into the network, also after a fault."""


class ServerRound(NamedTuple):
    """What a server half sees of a round.

    Attributes:
        received: What was sent: the last aggregate with the server's control and memory, by prefixed key.
        mixed: The weighted mean of the sites' tensors, by key.
        spool: The accepted updates.
        sites: Names of the accepted sites, sorted (S).
        enrolled: Number of sites that take part in the run (N), those that are away now among them.
        parameters: Keys of the parameters that travel.
        joined: How many of them were not in the run yet when `received` was made.
    """

    received: Tensors
    mixed: Tensors
    spool: Spooled
    sites: Sequence[str]
    enrolled: int
    parameters: Sequence[str]
    joined: int = 0

    def over_all(self, mean: Tensor) -> Tensor:
        """A mean over all sites of the round before, over those of this round: of who joined it holds zeros."""
        return mean * ((self.enrolled - self.joined) / self.enrolled) if self.joined else mean

    def kept(self, name: str, key: str) -> Tensor:
        """The server's own memory of a parameter, zeros at first."""
        found = self.received.get(f"{MEMORY}{name}:{key}")
        return torch.zeros_like(self.received[key]) if found is None else found

    def uniform(self, keys: Sequence[str]) -> dict[str, Tensor]:
        """The plain mean over the accepted sites of what they sent under these keys."""
        weights = dict.fromkeys(self.sites, 1 / len(self.sites))
        return self.spool.weighted_mean(weights, {key: self.dtype(key) for key in keys})

    def dtype(self, key: str) -> torch.dtype:
        """Type of a travelling tensor; a control has its parameter's."""
        return self.received[key.removeprefix(CONTROL)].dtype


class Correction:
    """A choice on the correction axis; this base is "none".

    Attributes:
        follows: Whether what a site sends up follows from its weights (`Outcome.ways`).
        comes_back: Whether, where the sites count alike, all have answered and their ways are equal, what goes down
            follows from the aggregate in the same manner.
    """

    follows = False
    comes_back = False

    def __init__(self, settings: Any = None) -> None:
        pass

    @classmethod
    def of(cls, settings: Any, optimiser: OptimiserSettings) -> Self:
        """Build it from its own settings and those of the optimiser in use, with which it goes."""
        return cls(settings)

    def begin(self, context: RoundContext) -> LocalRound:
        """Begin a round at a site."""
        return LocalRound()

    def control_of(self, start: Tensor, end: Tensor, way: float, control: Tensor | None) -> Tensor:
        """What goes up of a parameter beside it, from the way that it went.

        Args:
            start: The parameter as the round began.
            end: As it ended.
            way: S eta, above 0.
            control: What came down beside it; None for what goes down next, which is counted from 0.

        Raises:
            RefusedError: It does not follow from that.
        """
        raise RefusedError("controls of this run's correction do not follow from its weights.")

    def server(self, round_: ServerRound) -> Tensors:
        """End a round at the server.

        Returns:
            The next aggregate by key, with `control:` and `memory:` keys for what the server half keeps; the
            former go down with the next round, the latter stay.
        """
        return round_.mixed


def _does_what_its_settings_say(settings: type[Choice], part: type[Correction]) -> None:
    # Checks of a run, such as that no robust rule stands beside a server half, know the settings alone.
    has = part.server is not Correction.server
    if has and not getattr(settings, "has_server_half", False):
        raise SettingsError(
            f"{part.__name__} has a server half, but its settings do not say so: set has_server_half of "
            f"{settings.__name__} to True, or no check of a run knows of it."
        )


correction: Register[type[Correction]] = Register("fedretina.corrections", _does_what_its_settings_say)
"""Registers the class below it as the correction of some settings."""

correction(NoCorrectionSettings)(Correction)


def build_correction(settings: CorrectionSettings, optimiser: OptimiserSettings) -> Correction:
    """Build the correction that the settings name; it has no state of its own.

    Args:
        settings: The choice.
        optimiser: The optimiser in use, which SCAFFOLD must know.

    Raises:
        SettingsError: The correction is wrong with that optimiser.
    """
    part = correction.of(settings)
    why = settings.unfit(optimiser)
    if why is not None:
        raise SettingsError(why)
    return part.of(settings, optimiser)
