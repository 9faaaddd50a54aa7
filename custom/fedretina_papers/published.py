"""The figures that the paper prints, and which of our rows and sites they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fedretina.yaml_file import parse_yaml

AVERAGE = "Average"


class PublishedTable(NamedTuple):
    """One table of the paper.

    Attributes:
        rows: Row of ours to its name in print, in the paper's order.
        printed: Figures as printed, by name in print and site; `AVERAGE` is the paper's own mean over its sites.
        errors: What is known to be wrong with them, a sentence each.
        steps: What each part adds, in words, to the row of ours without it and the one with it.
    """

    rows: Mapping[str, str]
    printed: Mapping[str, Mapping[str, float]]
    errors: tuple[str, ...]
    steps: Mapping[str, tuple[str, str]]

    def figure(self, row: str, site: str) -> float | None:
        """What is printed for a row of ours at a site of the paper; None where nothing is."""
        return self.printed.get(self.rows.get(row, ""), {}).get(site)


class Published(NamedTuple):
    """What is known of the paper.

    Attributes:
        paper: Its short reference.
        proposed: The method that it proposes, as printed.
        seeds: Seeds behind its figures.
        sites: Its sites.
        known_as: Site of the paper to names under which ours may hold the same public set.
        tables: "table1" (macro AUC), "table2" (ablation) and "table4" (p values).
    """

    paper: str
    proposed: str
    seeds: int
    sites: tuple[str, ...]
    known_as: Mapping[str, tuple[str, ...]]
    tables: Mapping[str, PublishedTable]

    def site(self, ours: str) -> str | None:
        """The paper's site with the same public set as ours; None for another."""
        return next((site for site, names in self.known_as.items() if ours.lower() in names), None)


@cache
def published() -> Published:
    """Read the printed figures, which come with the package."""
    text = files("fedretina_papers").joinpath("published.yaml").read_text(encoding="utf-8")
    content = parse_yaml(text, "published.yaml")
    return Published(
        paper=content["paper"],
        proposed=content["proposed"],
        seeds=content["seeds"],
        sites=tuple(content["sites"]),
        known_as={site: tuple(names) for site, names in content["known_as"].items()},
        tables={
            name: PublishedTable(
                table["rows"],
                table["printed"],
                tuple(content["errors"].get(name, ())),
                {step: (pair[0], pair[1]) for step, pair in table.get("steps", {}).items()},
            )
            for name, table in content["tables"].items()
        },
    )
