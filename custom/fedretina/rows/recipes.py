"""Recipes: settings that any row takes, laid between the row and a job's own settings.

A row is a method; a recipe is how to train it where a site has few images. The rows of the papers stay what they are:
nothing of a recipe holds unless a job names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.errors import SettingsError

Raw = Mapping[str, Any]
"""Nested settings as a row has them, not yet checked."""
Reads = Callable[[str, str], bool]
"""Whether the method that stands on an axis ("objective") reads a setting of that axis ("kl_anneal")."""


class Besides(NamedTuple):
    """What a recipe fixes where row and job, taken together, read it.

    Attributes:
        where: Where that is, in print.
        holds: Whether it is so, asked of the row's settings with the job's over them, and of what its methods read.
        settings: What it fixes there.
    """

    where: str
    holds: Callable[[Raw, Reads], bool]
    settings: Raw


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
        title: What it is for, in print.
        settings: What it fixes, as nested settings of `Experiment`.
        besides: What it fixes in some runs only.
    """

    title: str
    settings: Raw
    besides: tuple[Besides, ...] = ()

    def over(self, settings: Raw, reads: Reads) -> list[Raw]:
        """The settings to lay over a row.

        Args:
            settings: The row's settings with the job's over them.
            reads: What the methods that they choose read.
        """
        return [self.settings, *(more.settings for more in self.besides if more.holds(settings, reads))]


def _head_stays(settings: Raw, reads: Reads) -> bool:
    exchange = settings.get("exchange", {})
    return not isinstance(exchange, Mapping) or exchange.get("personal", "head") in ("head", "everything")


def _has_a_pace(settings: Raw, reads: Reads) -> bool:
    return reads("objective", "kl_anneal")


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "small_sites": Recipe(
            "some dozens to some hundreds of images a site, a pre-trained encoder",
            {
                # Kumar et al., ICLR 2022: first the heads, then all of it slowly.
                "network": {"frozen": 3, "frozen_statistics": True, "head": {"layout": "linear"}},
                "training": {
                    "optimizer": "adam",
                    "learning_rate": 1e-3,
                    # Fewer images than a batch of 32 would be refused, and of 40 the last 8 of each epoch left out.
                    "batch_size": 8,
                    "drop_last": False,
                    "encoder_factor": 0.1,
                    "optimizer_state": "keep",
                    "schedule": "cosine",
                },
                "augment": {"rotate_degrees": 0, "brightness": 0, "contrast": 0, "roll": 0, "gain": 0},
                "theta": {"source": "validation"},
                "choice": {"model": "last"},
            },
            (
                Besides("a head that stays at its site", _head_stays, {"network": {"head": {"start": "ridge"}}}),
                Besides("an evidential objective", _has_a_pace, {"objective": {"kl_anneal": "paper_pace"}}),
            ),
        ),
    }
)


def recipe(name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        SettingsError: No such recipe; the message lists those there are.
    """
    if name not in RECIPES:
        raise SettingsError(f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}.")
    return RECIPES[name]
