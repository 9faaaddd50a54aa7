"""Forms in which others publish the weights of encoders: which file is which, and where each of its tensors belongs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, TypeVar

from torch import Tensor

from fedretina.networks.encoder import Encoder, encoder
from fedretina.settings.encoder import EncoderTraits, encoder_traits

IMAGENET = "ImageNet-1k, 1.3 million photographs of things; no eyes"
TORCHVISION_LICENCE = "BSD-3-Clause by torchvision's code; see what the file came with"
UNKNOWN = "unknown."
"""Prefix of published keys that have no place in the encoder."""


class Fitted(NamedTuple):
    """A published state by an encoder's own keys; nothing is loaded yet.

    Attributes:
        state: What belongs into the encoder, by its keys; what has no place there is under `unknown.`.
        dropped: Published keys that are left out on purpose, such as a classifier's.
        notes: What was done to the tensors, in words.
    """

    state: dict[str, Tensor]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def left_over(self) -> list[str]:
        """Published keys that have no place in the encoder."""
        return sorted(key.removeprefix(UNKNOWN) for key in self.state if key.startswith(UNKNOWN))


class Layout(ABC):
    """A form in which weights are published; a subclass stands beside its encoder, below `@published`.

    Attributes:
        title: Whose it is.
        theirs: What its owner calls the network; None where that is the encoder's name, or nothing asks.
        pretrained_on: What the weights were trained on.
        sets: Names of public sets (readers) among it.
        licence: What their owner says of them.
        marks: Keys that a state of this form has, all of them.
        dropped: Modules, or single tensors, that no encoder needs: classifier, decoder.
    """

    title: ClassVar[str]
    theirs: ClassVar[str | None] = None
    pretrained_on: ClassVar[str]
    sets: ClassVar[frozenset[str]] = frozenset()
    licence: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()
    dropped: ClassVar[tuple[str, ...]] = ()

    def recognises(self, state: Mapping[str, Tensor]) -> bool:
        """Whether a state has this form, as far as its keys tell."""
        return all(mark in state for mark in self.marks)

    @abstractmethod
    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """Our name for each published name of a module or tensor; the longest that fits a key counts."""

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """Change what names alone cannot: give the state by published keys, and say what was done."""
        return Fitted(dict(state))

    def fit(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """Put the tensors under the encoder's own keys; every one is placed, dropped on purpose, or unknown."""
        prepared, homes = self.prepare(encoder, state), self.homes(encoder)
        mine, dropped = {}, list(prepared.dropped)
        for key, value in prepared.state.items():
            parts = key.split(".")
            owners = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
            theirs = next((owner for owner in owners if owner in homes or owner in self.dropped), None)
            if theirs in self.dropped:
                dropped.append(key)
            else:
                mine[f"{UNKNOWN}{key}" if theirs is None else homes[theirs] + key[len(theirs) :]] = value
        return Fitted(mine, tuple(dropped), prepared.notes)

    def load(self, encoder: Encoder, state: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Load a state of this form into an encoder, all of it or nothing.

        Returns:
            What was done to the tensors, in words.

        Raises:
            SettingsError: A key is missing or left over, a shape differs, or a value is not finite.
        """
        fitted = self.fit(encoder, state)
        encoder.load_exactly(fitted.state)
        return fitted.notes


Form = TypeVar("Form", bound=type[Layout])
_LAYOUTS: dict[type[EncoderTraits], list[type[Layout]]] = {}


def published(*traits: type[EncoderTraits]) -> Callable[[Form], Form]:
    """Register the class below as a form in which weights of these encoders are published."""

    def registered(form: Form) -> Form:
        for one in traits:
            held = _LAYOUTS.setdefault(one, [])
            # A module that is imported anew, as by a notebook, replaces its own.
            held[:] = [other for other in held if other.__qualname__ != form.__qualname__] + [form]
        return form

    return registered


def layouts_of(name: str) -> list[Layout]:
    """The forms that fit an encoder, in the order in which they were registered.

    Raises:
        SettingsError: There is no such encoder.
    """
    traits = encoder_traits(name)
    encoder.of(traits.of({}))  # its module has been imported then, and its layouts with it
    return [form() for form in _LAYOUTS.get(traits, [])]


def layout_of(name: str, state: Mapping[str, Tensor]) -> Layout | None:
    """The form that a state for an encoder has; None if no form of its is recognised."""
    return next((layout for layout in layouts_of(name) if layout.recognises(state)), None)
