"""What it costs that grades of few patients stay out of the sums, as measured on photographs.

The runs are not stored: the four fundus sites in 8 draws of other images than those of the study of small sites (of
240 a site, 300 test images). README and docs/small_sites_study.md take their figures from here, and a test compares
docs/analytic.md. Differences are those of the figures as they are printed, so that a reader who takes one from the
other finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedretina_papers.markdown import listed

DRAWS = 8


class Cost(NamedTuple):
    """Macro AUC at a number of training images a site, mean of the sites and draws.

    Attributes:
        size: The number.
        own: Of the own head.
        both: Of the mean of own and federated head, every grade in the sums.
        both_held: The same where grades of few patients stay out.
        federated: Of the federated head alone, every grade in the sums.
        federated_held: The same where they stay out.
        referable: How much lower `both_held` is than `both` in AUC for referable disease.
        above_held: Draws of `DRAWS` in which `both_held` is above the own head; None where it was not noted.
        above: The same of `both`.
    """

    size: int
    own: float
    both: float
    both_held: float
    federated: float
    federated_held: float
    referable: float
    above_held: int | None = None
    above: int | None = None


COSTS: Sequence[Cost] = (
    Cost(15, 0.623, 0.650, 0.630, 0.649, 0.551, 0.025, 5, 8),
    Cost(30, 0.658, 0.691, 0.683, 0.687, 0.655, 0.002),
    Cost(60, 0.701, 0.729, 0.722, 0.718, 0.701, 0.001, 7),
)


def thousandths(value: float) -> str:
    """A difference as ".020"."""
    return f"{value:.3f}".removeprefix("0")


def losses() -> str:
    """What both figures lose at each number: ".020 / .025 at n = 15 and ..."."""
    return listed(
        [f"{thousandths(one.both - one.both_held)} / {thousandths(one.referable)} at n = {one.size}" for one in COSTS]
    )


def leads() -> str:
    """By how much `both` is above the own head where small grades stay out, in the place of that with every grade."""
    return listed(
        [
            f"by {_lead(one.both_held, one.own, one.above_held)} in the place of {_lead(one.both, one.own, one.above)} "
            f"with {one.size} photographs a site"
            for one in COSTS
            if one.above_held is not None
        ]
    )


def _lead(value: float, own: float, above: int | None) -> str:
    return thousandths(value - own) + ("" if above is None else f" ({above} of {DRAWS} draws)")


def table() -> list[str]:
    """The table of docs/analytic.md."""
    titles = ("`both`, every grade", "`both`, by default", "federated, every grade", "federated, by default")
    return [f"| images a site | own | {' | '.join(titles)} |", f"|{'---|' * 6}"] + [
        f"| {one.size} | {' | '.join(thousandths(value) for value in one[1:6])} |" for one in COSTS
    ]
