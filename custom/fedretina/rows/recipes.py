"""Recipes: settings that any row takes, laid between the row and a job's own words.

A row is a method; a recipe is how to train it where a site has few images. The rows of the papers stay what they are:
nothing of a recipe holds unless a job names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.errors import SettingsError

Words = Mapping[str, Any]
"""Nested settings, as a row has them."""


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
        title: What it is for, in print.
        settings: What it fixes, as nested settings of `Experiment`.
        only_where: Settings that it fixes besides where the row and the job, taken together, read them.
    """

    title: str
    settings: Words
    only_where: tuple[tuple[Callable[[Words], bool], Words], ...] = ()

    def over(self, words: Words) -> list[Words]:
        """The settings to lay over a row.

        Args:
            words: The row's settings with the job's over them.
        """
        return [self.settings, *(more for holds, more in self.only_where if holds(words))]


def _evidential(words: Words) -> bool:
    objective = words.get("objective", {"name": "tweu"})  # the default of `Experiment`
    return (objective if isinstance(objective, str) else objective.get("name")) in ("tweu", "evidential")


def _head_stays(words: Words) -> bool:
    exchange = words.get("exchange", {})
    return not isinstance(exchange, Mapping) or exchange.get("personal", "head") in ("head", "everything")


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "small_sites": Recipe(
            "some dozens to some hundreds of images a site, a pre-trained encoder",
            {
                # Kumar et al., ICLR 2022: first the heads, then all of it slowly.
                "network": {"frozen": 3, "head": {"layout": "linear"}},
                "training": {
                    "optimizer": "adam",
                    "learning_rate": 3e-4,
                    "encoder_factor": 0.1,
                    "optimizer_state": "keep",
                    "schedule": "cosine",
                },
                "augment": {"rotate_degrees": 0, "brightness": 0, "contrast": 0, "roll": 0, "gain": 0},
                "theta": {"source": "validation"},
                "choice": {"model": "last"},
            },
            (
                (_head_stays, {"network": {"head": {"start": "ridge"}}}),
                (_evidential, {"objective": {"kl_anneal": "paper_pace"}}),
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
