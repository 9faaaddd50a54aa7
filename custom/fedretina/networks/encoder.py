"""An encoder in stages: the part of a network that sites train together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedretina.errors import SettingsError
from fedretina.parts import Register
from fedretina.settings.encoder import encoder_traits

Visit = Callable[[int, Tensor], Tensor]
"""Sees the number and the map of a stage, and says what goes on to the next."""


class Encoder(nn.Module):
    """A chain of two or more stages, then a global average, or what a subclass has in its place.

    Stage 0 is the stem, or the patch embedding. Where the others end is the architecture's: a ResNet and
    EfficientNet-Lite0 halve the side with each, MobileNetV2 and EfficientNet have a stage for each width of their
    blocks, a vision transformer for each quarter of its depth. Early exits read the maps between them.

    Attributes:
        stages: The stages, in order; their parameters are called `stages.0...`, `stages.1...`.
        widths: Channels after each stage.
        features: Length F of the pooled vector, the width of the last stage where that is only averaged.
        frozen: So many stages from the input on are frozen: they are never in training mode and take no gradient.
        frozen_statistics: Whether no BatchNorm is ever in training mode, so that all keep their statistics.

    Args:
        stages: The stages.
        widths: Their channels.

    Raises:
        SettingsError: Fewer than two stages, or not one width per stage.
    """

    def __init__(self, stages: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        if len(stages) < 2 or len(widths) != len(stages):
            raise SettingsError(
                f"An encoder has two stages or more and a width for each, but {len(stages)} stages and "
                f"{len(widths)} widths were given; group its blocks by width."
            )
        self.stages = nn.ModuleList(stages)
        self.widths: tuple[int, ...] = tuple(widths)
        self.features: int = self.widths[-1]
        self.frozen = 0
        self.frozen_statistics = False

    def freeze(self, stages: int, statistics: bool = False) -> None:
        """Freeze so many stages from the input on; all of them with what the encoder has beside them.

        Args:
            stages: How many.
            statistics: Whether the statistics of every BatchNorm are frozen too.

        Raises:
            SettingsError: There are not so many.
        """
        if stages > len(self.stages):
            raise SettingsError(
                f"network.frozen is {stages}, but this encoder has {len(self.stages)} stages: name fewer, or 'all'."
            )
        self.frozen, self.frozen_statistics = stages, statistics
        self._hold_still()

    def frozen_parts(self) -> list[nn.Module]:
        """The modules that are frozen, with all that is in them."""
        return [self] if self.frozen == len(self.stages) else list(self.stages)[: self.frozen]

    def frozen_keys(self) -> frozenset[str]:
        """Keys of the encoder's state that are frozen."""
        whole = self.frozen == len(self.stages)
        begins = tuple(f"stages.{number}." for number in range(self.frozen))
        still = {f"{name}.{leaf}" for name, module in self._still_norms() for leaf, _ in module.named_buffers()}
        return frozenset(key for key in self.state_dict() if whole or key.startswith(begins) or key in still)

    def train(self, mode: bool = True) -> Self:
        """As torch's; frozen stages stay in evaluation mode, so that the statistics of their BatchNorm stand still."""
        super().train(mode)
        self._hold_still()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As torch's; frozen stages take no gradient."""
        super().requires_grad_(requires_grad)
        self._hold_still()
        return self

    def _hold_still(self) -> None:
        for part in self.frozen_parts():
            for module in part.modules():
                module.training = False
            for parameter in part.parameters():
                parameter.requires_grad = False
        for _, module in self._still_norms():
            module.training = False

    def _still_norms(self) -> list[tuple[str, nn.Module]]:
        if not self.frozen_statistics:
            return []
        return [(name, module) for name, module in self.named_modules() if isinstance(module, _BatchNorm)]

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        """Return one map per stage, `[B, widths[i], h_i, w_i]`, of normalised images `[B, 3, H, W]`."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps

    @property
    def steps(self) -> int:
        """Steps from an image to its features: the stages, then the average."""
        return len(self.stages) + 1

    def forward(self, x: Tensor, visit: Visit | None = None, done: int = 0) -> Tensor:
        """Return the pooled features `[B, F]` of normalised images `[B, 3, H, W]`.

        Args:
            x: The images, or what the first steps made of them.
            visit: Sees the number and the map of each stage, and says what goes on to the next.
            done: How many steps are done already.
        """
        return self.span(x, done, self.steps, visit)

    def span(self, x: Tensor, begin: int, end: int, visit: Visit | None = None) -> Tensor:
        """Return what the steps from `begin` to before `end` make of what the steps before them gave."""
        for number in range(begin, min(end, len(self.stages))):
            x = self.stages[number](x) if visit is None else visit(number, self.stages[number](x))
        return self.pool(x) if begin < self.steps == end else x

    def pool(self, last: Tensor) -> Tensor:
        """Return the features `[B, F]` of the last stage's map."""
        return self.average(last)

    def average(self, seen: Tensor) -> Tensor:
        """Return what an early exit reads of a stage's map `[B, C, h, w]`: its mean over all places, `[B, C]`."""
        return seen.mean(dim=(2, 3))

    @property
    def middle(self) -> int | None:
        """The stage from whose map a gate reads what training has changed less than the features (docs/gate.md).

        It is the last frozen stage, or the one in the middle where that comes later; None where all are frozen, since
        the features then are those of the start.
        """
        at = max(self.frozen, (len(self.stages) + 1) // 2) - 1
        return at if at < len(self.stages) - 1 else None

    def current_keys(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state by this encoder's own keys; an earlier version may have named its layers otherwise.

        Keys that no version gave stay as they are. A subclass whose layers had other names overrides it.
        """
        return dict(state)

    def load_exactly(self, state: Mapping[str, Tensor]) -> None:
        """Load a state whose keys are ours, all of it or nothing.

        Older published files have no `num_batches_tracked`; only these keys may be missing, and the counters
        then keep their start. The messages name our own keys only, never a name that was read from the file.

        Args:
            state: Tensors by key of this encoder's `state_dict`.

        Raises:
            SettingsError: A key is missing or left over, a shape differs, or a value is not finite.
        """
        state = self.current_keys(state)
        mine: dict[str, Tensor] = self.state_dict()
        missing = sorted(k for k in mine.keys() - state.keys() if not k.endswith(".num_batches_tracked"))
        extra = len(state.keys() - mine.keys())
        if missing or extra:
            raise SettingsError(
                f"The weights do not fit the encoder: {len(missing)} of its {len(mine)} tensors are missing"
                + (f" (the first is {missing[0]})" if missing else "")
                + f" and {extra} are left over; give the weights of this architecture."
            )
        for key, value in state.items():
            if value.shape != mine[key].shape:
                raise SettingsError(
                    f"The weights do not fit the encoder: {key} has shape {tuple(value.shape)} where "
                    f"{tuple(mine[key].shape)} is needed; give the weights of this architecture."
                )
            if not bool(torch.isfinite(value).all()):
                raise SettingsError(f"The weights hold values of {key} that are not finite; give a sound file.")
        self.load_state_dict({**mine, **state})


encoder: Register[Callable[[], Encoder]] = Register("fedretina.networks")
"""Registers what stands below it as the builder of the encoder with some traits."""


def build_encoder(name: str) -> Encoder:
    """Build an encoder without weights of its own; its start is drawn from torch's generator.

    Args:
        name: What a job calls it.

    Raises:
        SettingsError: There is no such encoder.
    """
    return encoder.of(encoder_traits(name).of({}))()
