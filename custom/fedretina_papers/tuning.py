"""How a row is tuned: one number after the other, over values that go on where the best of them stands at an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedretina.settings.plan import merged


class Tuned(BaseModel):
    """A number that is tuned.

    Attributes:
        setting: Where it stands in `Experiment`, keys joined by dots, such as "training.learning_rate".
        values: Tried first, ascending and above 0. Where the best is the first or the last, the grid grows by a value
            on that side, `factor` beyond it, `grows` times at most.
        factor: Between neighbours.
        grows: As said.
        most: Where the grid ends whatever is best, such as the largest that the setting takes; None for nowhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    setting: str = Field(pattern=r"^[a-z_]+(\.[a-z_]+)*$")
    values: tuple[float, ...] = Field(min_length=3)
    factor: float = Field(default=3.0, gt=1)
    grows: int = Field(default=3, ge=0, le=10)
    most: float | None = None

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        if list(self.values) != sorted(set(self.values)) or self.values[0] <= 0:
            raise ValueError(f"values of {self.setting} are {list(self.values)}: list each once, ascending, above 0.")
        return self

    def settings(self, value: float) -> dict[str, Any]:
        """The settings that choose a value."""
        found: Any = value
        for key in reversed(self.setting.split(".")):
            found = {key: found}
        chosen: dict[str, Any] = found
        return chosen

    def best(self, worth: Mapping[float, float | None]) -> float | None:
        """The best value, the first that was tried of equals; None where none has a worth.

        Args:
            worth: What each value that was tried is worth, in their order; more is better, None for one that cannot
                be used, such as one with which training diverged.
        """
        known = {value: one for value, one in worth.items() if one is not None}
        return max(known, key=lambda value: known[value]) if known else None

    def at_end(self, worth: Mapping[float, float | None]) -> bool:
        """Whether the best value is the lowest or the highest of those that were tried."""
        return self.best(worth) in (min(worth), max(worth))

    def further(self, worth: Mapping[float, float | None]) -> list[float]:
        """Values to try next: the grid's own, then one beyond the end at which the best stands; none when it is done.

        Args:
            worth: As in `best`; empty before the first.
        """
        if not worth:
            return list(self.values)
        best = self.best(worth)
        if best is None or not self.at_end(worth) or len(worth) - len(self.values) >= self.grows:
            return []
        value = best / self.factor if best == min(worth) else best * self.factor
        return [value] if self.most is None or value <= self.most else []

    def farthest(self) -> list[float]:
        """The lowest and the highest value that may ever be tried."""
        low, high = self.values[0] / self.factor**self.grows, self.values[-1] * self.factor**self.grows
        return [low, high if self.most is None else max(self.values[-1], min(high, self.most))]


class Search:
    """The search for a row's numbers: asks what settings are worth until all numbers are chosen.

    Attributes:
        change: The settings that are chosen so far.
        tried: By number its setting, what each value was worth, the best, and whether that stands at an end.
    """

    def __init__(self, numbers: Sequence[Tuned]) -> None:
        self.change: dict[str, Any] = {}
        self.tried: list[dict[str, Any]] = []
        self._left = list(numbers)
        self._worth: dict[float, float | None] = {}

    @property
    def asks(self) -> list[dict[str, Any]]:
        """Settings that are to be tried next; none where every number is chosen."""
        if not self._left:
            return []
        return [merged(self.change, self._left[0].settings(value)) for value in self._left[0].further(self._worth)]

    def learn(self, worth: Sequence[float | None]) -> None:
        """Take in what the settings of `asks` are worth, in their order; None for those that cannot be used.

        Where none can, nothing is chosen: the row keeps its own value.
        """
        number = self._left[0]
        self._worth |= dict(zip(number.further(self._worth), worth, strict=True))
        if number.further(self._worth):
            return
        best = number.best(self._worth)
        if best is not None:
            self.change = merged(self.change, number.settings(best))
        figures = {f"{value:g}": None if one is None else round(one, 5) for value, one in sorted(self._worth.items())}
        self.tried.append(
            {"setting": number.setting, "tried": figures, "chosen": best, "edge": number.at_end(self._worth)}
        )
        self._left, self._worth = self._left[1:], {}

    @property
    def record(self) -> dict[str, Any]:
        """What is stored of it."""
        return {"chosen": self.change, "tried": self.tried}


def tuned_words(one: Mapping[str, Any]) -> str:
    """A number of a stored search: the chosen value, whether it is the end of what was tried, and what was tried."""
    ordered = sorted(one["tried"].items(), key=lambda item: float(item[0]))
    tried = ", ".join(f"{value}: {'–' if figure is None else f'{figure:.3f}'}" for value, figure in ordered)
    ends = " (the end of what was tried)" if one["edge"] else ""
    chosen = "the row's own, since none could be used" if one["chosen"] is None else f"{one['chosen']:g}"
    return f"`{one['setting']}` {chosen}{ends}; tried {tried}"
