"""When a row may be said to help: where it beats every row alone, by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedretina.report.text import NONE
from fedretina_papers.markdown import listed
from fedretina_papers.statistics.multiple_tests import holm
from fedretina_papers.statistics.paired_seeds import SeedTest

CLEAR = 0.05


class Against(NamedTuple):
    """A federated row against the row alone that it beats least.

    Attributes:
        figure: By which.
        control: Name of that row.
        test: Over draws or seeds, and patients, together.
        seen: Smallest true difference that so many draws with such a spread show in four of five studies, as the first
            of the table's tests in Holm's order, which has the hardest level.
        p: That it beats every row alone: the largest p of all of them, 1 where it does not lead.
        adjusted: The same after Holm's adjustment over all federated rows, and over the figures that were given
            together: a block's primary ones, each for itself on the papers' pages.
    """

    figure: str
    control: str
    test: SeedTest
    seen: float | None
    p: float | None
    adjusted: float | None

    @property
    def helps(self) -> bool:
        """Whether the row beats every row alone."""
        return self.adjusted is not None and self.adjusted < CLEAR


def hardest(figure: str, tests: Mapping[str, tuple[SeedTest, float | None]]) -> Against:
    """A row against the row alone that it beats least, with the p that it beats them all.

    Args:
        figure: By which.
        tests: By row alone the test of the row less that row, in the direction that is better, and the smallest
            difference that could be seen; one or more.
    """
    name = min(tests, key=lambda one: -np.inf if (mean := tests[one][0].mean) is None else mean)
    whole = [1.0 if one.mean is not None and one.mean <= 0 else one.p for one, _ in tests.values()]
    known = [p for p in whole if p is not None]
    test, seen = tests[name]
    # Behind one of them is behind, whatever of the others is not known.
    told = max(known) if known and (len(known) == len(whole) or max(known) == 1) else None
    return Against(figure, name, test, seen, told, None)


def adjusted(found: Mapping[str, Sequence[Against]]) -> dict[str, list[Against]]:
    """The same with Holm's adjustment over all rows and figures."""
    flat = iter(holm([one.p for each in found.values() for one in each]))
    return {name: [one._replace(adjusted=next(flat)) for one in each] for name, each in found.items()}


def helps_words(by: Mapping[str, float | None], of: str) -> str:
    """By which figures a row is said to help; that there are too few draws where none could be tested.

    Args:
        by: By the figure's title the adjusted p that the row beats every row alone; empty for a row that is none of
            those that are asked.
        of: What the tests are paired by, "draws" or "seeds".
    """
    if not by:
        return NONE
    if all(p is None for p in by.values()):
        return f"too few {of}"
    clear = [title for title, p in by.items() if p is not None and p < CLEAR]
    return f"yes, by {listed(clear)}" if clear else "no"
