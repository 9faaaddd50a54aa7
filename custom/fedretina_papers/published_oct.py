"""The figures that the OCT paper prints, and what they should have been by its own terms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fedretina.yaml_file import parse_yaml


class OctTable(NamedTuple):
    """One table of the paper.

    Attributes:
        title: Of the section that shows it.
        rows: Name of ours (a row or variant of the plan, a class in Table 4) to the name in print, in its order.
        printed: Figures as printed, by name in print and column. Shares stand in per cent, AUCs in 0 to 1, bytes in
            millions (`megabytes`) and thousand millions (`gigabytes`), parameters in millions, multiply-adds in
            thousand millions (`flops`).
        errors: What is known to be wrong with them, a sentence each.
    """

    title: str
    rows: Mapping[str, str]
    printed: Mapping[str, Mapping[str, float]]
    errors: tuple[str, ...]

    def figure(self, name: str, column: str) -> float | None:
        """What is printed for a name of ours; None where nothing is."""
        return self.printed.get(self.rows.get(name, ""), {}).get(column)


class OctPaper(NamedTuple):
    """What is known of the paper.

    Attributes:
        paper: Its short reference.
        proposed: Name of ours for the method that it proposes.
        tables: "table3" to "table9".
    """

    paper: str
    proposed: str
    tables: Mapping[str, OctTable]


class Recomputed(NamedTuple):
    """A row of Table 6 by the paper's own terms, in GB of 1e9 bytes.

    Attributes:
        uploads: Size of the model x rounds x uploads, the paper's own formula.
        with_controls: With SCAFFOLD's control variates, where they travel.
        both_ways: That, up and down.
    """

    uploads: float
    with_controls: float
    both_ways: float


def recomputed(printed: Mapping[str, float]) -> Recomputed:
    """Work out a row of Table 6 from its first three columns."""
    uploads = printed["megabytes"] * printed["rounds"] * printed["uploads"] / 1000
    carried = uploads * (2 if printed["controls"] else 1)
    return Recomputed(uploads, carried, 2 * carried)


@cache
def published_oct() -> OctPaper:
    """Read the printed figures, which come with the package."""
    text = files("fedretina_papers").joinpath("published_oct.yaml").read_text(encoding="utf-8")
    content = parse_yaml(text, "published_oct.yaml")
    return OctPaper(
        paper=content["paper"],
        proposed=content["proposed"],
        tables={
            name: OctTable(
                table["title"], table["rows"], table["printed"], tuple(" ".join(one.split()) for one in table["errors"])
            )
            for name, table in content["tables"].items()
        },
    )
