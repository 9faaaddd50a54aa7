"""Figures within a block's prose, filled in from its stored runs: the sentences stay true when it runs anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, StrictUndefined

from fedretina.report.text import number
from fedretina_papers.blocks.plan import BlockPlan, Size
from fedretina_papers.blocks.tables import (
    Pair,
    Runs,
    comparisons,
    mean_of,
    paired_tests,
    paired_with_reference,
)
from fedretina_papers.markdown import chance, listed, signed
from fedretina_papers.statistics.beats_every import CLEAR, Against

_NOT_RUN = "(not run in all draws yet)"


class Said:
    """What a paragraph of prose may ask of a case: one figure of each size, in the order of the sizes.

    A paragraph says `{{ gap("moco_sums", "sums") }}`; `mean`, `told`, `lead` and `beats` are the others. A figure that
    is not named is the block's first.

    Args:
        sizes: By size the plan of its rows and their runs; those alone at which all rows have run in all draws.
    """

    def __init__(self, sizes: Mapping[Size, tuple[BlockPlan, Runs]]) -> None:
        self._sizes = sizes
        self._paired: dict[Size, dict[tuple[str, str, str], Pair]] = {}
        self._alone: dict[Size, Mapping[str, Sequence[Against]]] = {}

    def fill(self, paragraph: str) -> str:
        """The paragraph with its figures; one that asks for none comes back as it is.

        Raises:
            jinja2.UndefinedError: It asks for what is not here.
        """
        if "{{" not in paragraph:
            return paragraph
        if not self._sizes:
            return _NOT_RUN
        asked = {"mean": self.mean, "gap": self.gap, "told": self.told, "lead": self.lead, "beats": self.beats}
        made = Environment(undefined=StrictUndefined, autoescape=False).from_string(paragraph)  # Markdown of our own
        return made.render(asked)

    def mean(self, row: str, figure: str = "") -> str:
        """A row's mean over hospitals and draws: "0.742, 0.762 and 0.779"."""
        return listed([number(mean_of(runs[row], figure or plan.figures[0]), 3) for plan, runs in self._sizes.values()])

    def gap(self, row: str, other: str, figure: str = "") -> str:
        """A row less another, in the direction that is better: "+0.024, −0.003 and +0.010"."""
        return listed([signed(one.test.mean) for one in self._pairs(row, other, figure)])

    def told(self, row: str, other: str, figure: str = "") -> str:
        """At which sizes that difference is told from chance, by the p of the table that tests the two rows.

        "seen with 60 and 120 (p 0.032 and 0.027)", or "nowhere seen (p 0.053 or more)".
        """
        return self._seen([one.adjusted for one in self._pairs(row, other, figure)])

    def lead(self, row: str, figure: str = "") -> str:
        """How far a row together is above the row alone that it beats least: "+0.021, +0.024 and +0.020"."""
        return listed([signed(one.test.mean) for one in self._against(row, figure)])

    def beats(self, row: str, figure: str = "") -> str:
        """At which sizes a row together beats every row alone, in the words of `told`."""
        return self._seen([one.adjusted for one in self._against(row, figure)])

    def _against(self, row: str, figure: str) -> list[Against]:
        found = []
        for size, (plan, runs) in self._sizes.items():
            if size not in self._alone:
                self._alone[size] = comparisons(plan, runs)
            found.append(next(one for one in self._alone[size][row] if one.figure == (figure or plan.figures[0])))
        return found

    def _pairs(self, row: str, other: str, figure: str) -> list[Pair]:
        """Of every size the test in the table that has the two rows, adjusted over that table."""
        found = []
        for size, (plan, runs) in self._sizes.items():
            if size not in self._paired:
                tables = (paired_with_reference(plan, runs), plan.pairs)
                tests = [one for pairs in tables for one in paired_tests(plan, runs, pairs)]
                self._paired[size] = {(*one.rows, one.figure): one for one in tests}
            found.append(self._paired[size][row, other, figure or plan.figures[0]])
        return found

    def _seen(self, adjusted: Sequence[float | None]) -> str:
        known = {size: 1.0 if p is None else p for size, p in zip(self._sizes, adjusted, strict=True)}
        seen = {size: p for size, p in known.items() if p < CLEAR}
        if not seen:
            least = min(known.values())
            return f"nowhere seen (p {'1' if least == 1 else f'{chance(least)} or more'})"
        return f"seen with {listed([str(size) for size in seen])} (p {listed([chance(p) for p in seen.values()])})"
