"""What a file of weights is: whose form, which encoder, what of it is missing or left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedretina.networks.build import build_on_meta
from fedretina.networks.encoder import Encoder
from fedretina.networks.encoder_file import without_prefix
from fedretina.networks.layout import UNKNOWN, Fitted, layouts_of
from fedretina.networks.weights import WeightsFile, read_weights
from fedretina.settings.encoder import EncoderTraits, Normalisation, encoder_traits
from fedretina.settings.network import NetworkSettings

EXPORTED = "an encoder that a run exported"
_COUNTER = ".num_batches_tracked"


class EncoderCheck(NamedTuple):
    """What a file of weights is, as the encoder that it fits best.

    Attributes:
        sha256: Of its bytes.
        wrapper: Under which word of a checkpoint the weights are; None where the file holds nothing else.
        encoder: Name of the encoder; None where no form is recognised.
        layout: Whose form it is.
        side: Side in pixels of the images that the weights are made for; None where nothing tells it, as with an
            encoder that a run exported.
        positions: Side in pixels of the images that the weights hold positions for, which are resampled for others;
            None where they hold none.
        patch: Of which the side of an image must be a multiple.
        normalisation: Of the images that the weights were trained with.
        pretrained_on: What they were trained on.
        sets: Names of public sets (readers) among it.
        licence: What their owner says of them.
        missing: The encoder's own keys that the file lacks.
        left_over: Keys of the file that have no place.
        other_shape: The encoder's own keys whose tensors have another shape in the file.
        not_finite: The encoder's own keys whose tensors hold values that are no numbers.
        dropped: Keys of the file that no encoder needs, such as a classifier's.
        notes: What loading does to the tensors, in words.
    """

    sha256: str
    wrapper: str | None
    encoder: str | None = None
    layout: str = ""
    side: int | None = None
    positions: int | None = None
    patch: int = 1
    normalisation: Normalisation = "half"
    pretrained_on: str = ""
    sets: tuple[str, ...] = ()
    licence: str = ""
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    other_shape: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> int:
        """How many tensors keep the file from being loaded."""
        return sum(map(len, (self.missing, self.left_over, self.other_shape, self.not_finite)))

    @property
    def whole(self) -> bool:
        """Whether a run can start from it."""
        return self.encoder is not None and not self.faults


def check_weights(
    file: Path, name: str | None = None, tell: Callable[[int, int], None] = lambda done, of: None
) -> EncoderCheck:
    """Find out what a file of weights is; nothing but the file is read.

    Args:
        file: The file.
        name: The encoder that it is meant for; None looks at all.
        tell: Called with how many encoders the file was held against, and how many there are: with none of them while
            the file is read.

    Raises:
        SettingsError: The file cannot be read or unpacked, or there is no such encoder.
    """
    if name is not None:
        encoder_traits(name)
    names = [name] if name else EncoderTraits.choices()
    tell(0, len(names))
    read = read_weights(file)
    if read.header is not None:
        tell(len(names), len(names))
        return _exported(read, name)
    found: list[EncoderCheck] = []
    for number, each in enumerate(names, 1):
        found += _as(each, read)
        tell(number, len(names))
    # Fewest faults first, then without resampled positions, then in the order of the encoders.
    best = min(found, key=lambda one: (one.faults, any("resampled" in note for note in one.notes)), default=None)
    return best or EncoderCheck(read.sha256, read.wrapper, left_over=tuple(sorted(read.state)))


def _as(name: str, read: WeightsFile) -> Iterator[EncoderCheck]:
    traits = encoder_traits(name)
    for layout in layouts_of(name):
        if not layout.recognises(read.state):
            continue
        encoder = build_on_meta(NetworkSettings(encoder=name)).encoder
        fitted = layout.fit(encoder, read.state)
        yield _compared(encoder, fitted)._replace(
            sha256=read.sha256,
            wrapper=read.wrapper,
            encoder=name,
            layout=layout.title,
            side=traits.side,
            positions=_positions(traits),
            patch=traits.patch,
            normalisation=traits.normalisation or "half",
            pretrained_on=layout.pretrained_on,
            sets=tuple(sorted(layout.sets)),
            licence=layout.licence,
            dropped=fitted.dropped,
            notes=fitted.notes,
        )


def _exported(read: WeightsFile, name: str | None) -> EncoderCheck:
    header = read.header
    assert header is not None
    start = header.start
    encoder, traits = build_on_meta(NetworkSettings(encoder=header.encoder)).encoder, encoder_traits(header.encoder)
    other = [] if name in (None, header.encoder) else [f"it is no {name}"]
    compared = _compared(encoder, Fitted(encoder.current_keys(without_prefix(read.state))))
    return compared._replace(
        sha256=read.sha256,
        wrapper=None,
        encoder=None if other else header.encoder,
        layout=EXPORTED,
        positions=_positions(traits),
        patch=traits.patch,
        normalisation=header.normalisation,
        pretrained_on=header.provenance + (f"; before that run: {start['pretrained_on']}" if start else ""),
        sets=tuple(start["sets"] if start else ()),
        licence="that of the run's owner, and of what the run itself began with"
        + (f": {start['licence']}" if start else ""),
        notes=tuple(other),
    )


def _positions(traits: type[EncoderTraits]) -> int | None:
    return traits.side if traits.positions else None


def _compared(encoder: Encoder, fitted: Fitted) -> EncoderCheck:
    mine: Mapping[str, Tensor] = encoder.state_dict()
    state = fitted.state
    missing = [key for key in mine if key not in state and not key.endswith(_COUNTER)]
    both = [key for key in mine if key in state]
    strange = {*fitted.left_over, *(key for key in state if key not in mine and not key.startswith(UNKNOWN))}
    return EncoderCheck(
        sha256="",
        wrapper=None,
        missing=tuple(missing),
        left_over=tuple(sorted(strange)),
        other_shape=tuple(
            f"{key}: {tuple(state[key].shape)}, needed {tuple(mine[key].shape)}"
            for key in both
            if state[key].shape != mine[key].shape
        ),
        not_finite=tuple(key for key in both if not bool(torch.isfinite(state[key]).all())),
    )
