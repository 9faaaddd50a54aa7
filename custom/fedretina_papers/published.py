"""The figures that the papers print, and which of our rows and sites they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fedretina.yaml_file import parse_yaml

AVERAGE = "Average"
METHODS = ("Backbone", "MCDrop", "Deep Ens.", "FedEE")
KEYS = ("accuracy", "misdetection", "selective")
"""What FedEE tells of a row in Tables 3, 5, 10, 11 and 13: accuracy, misdiagnosis detection, selective prediction."""


class PublishedTable(NamedTuple):
    """One table of a paper.

    Attributes:
        rows: Name of ours (a row or variant of the plan, a class in the OCT paper's Table 4) to its name in print, in
            the paper's order.
        printed: Figures as printed, by name in print and column. FedUAA's columns are sites, and `AVERAGE` is its own
            mean over them. In the OCT paper's, shares stand in per cent, AUCs in 0 to 1, bytes in millions
            (`megabytes`) and thousand millions (`gigabytes`), parameters in millions, multiply-adds in thousand
            millions (`flops`).
        errors: What is known to be wrong with them, a sentence each.
        title: Of the section that shows it, where it has one.
        steps: What each part adds, in words, to the row of ours without it and the one with it.
    """

    rows: Mapping[str, str]
    printed: Mapping[str, Mapping[str, float]]
    errors: tuple[str, ...]
    title: str
    steps: Mapping[str, tuple[str, str]]

    def figure(self, row: str, column: str) -> float | None:
        """What is printed for a name of ours in a column; None where nothing is."""
        return self.printed.get(self.rows.get(row, ""), {}).get(column)


class Published(NamedTuple):
    """What is known of a paper whose tables are rows and columns.

    Attributes:
        paper: Its short reference.
        proposed: The method that it proposes: FedUAA as printed, the OCT paper's by our name.
        seeds: Seeds behind its figures; 0 where it tells none.
        sites: Its sites, where columns are sites.
        known_as: Site of the paper to names under which ours may hold the same public set.
        tables: Those of FedUAA are "table1" (macro AUC), "table2" (ablation) and "table4" (p values), those of the OCT
            paper "table3" to "table9".
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


class Printed(NamedTuple):
    """A figure as printed.

    Attributes:
        mean: Over the paper's runs.
        std: Their standard deviation.
    """

    mean: float
    std: float


class FedeePaper(NamedTuple):
    """What is known of the paper.

    Attributes:
        paper: Its short reference.
        rows: Name of our row by strategy and method, as printed.
        titles: Its data sets, by their key.
        table10: Figures by data set, strategy, method and one of `KEYS`, weighted by the sites' sizes.
        table13: The same of PhysioNet-2016 as plain means, by strategy, method and key.
        table11: The method without personal exits on PAMAP2, by key.
        table4: Millions of parameters and thousand millions of operations, by data set and method; `model` is the
            network.
        tuning: Tables 7 to 9 by key, batch size and learning rate, on PAMAP2.
        table12: Power (W), clock (s) a round, training and communication a round (Wh), total (Wh) and CO2e (g), by data
            set and method.
        errors: What is known to be wrong with a table, a sentence each.
    """

    paper: str
    rows: Mapping[str, Mapping[str, str]]
    titles: Mapping[str, str]
    table10: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Printed]]]]
    table13: Mapping[str, Mapping[str, Mapping[str, Printed]]]
    table11: Mapping[str, Printed]
    table4: Mapping[str, Mapping[str, Any]]
    tuning: Mapping[str, Mapping[int, Mapping[float, Printed]]]
    table12: Mapping[str, Mapping[str, tuple[float, ...]]]
    errors: Mapping[str, tuple[str, ...]]


def published() -> Published:
    """What FedUAA prints."""
    return _tables("published")


def published_oct() -> Published:
    """What the OCT paper prints."""
    return _tables("published_oct")


@cache
def published_fedee() -> FedeePaper:
    """What FedEE prints."""
    printed = _read("published_fedee")
    return FedeePaper(
        paper=printed["paper"],
        rows=printed["rows"],
        titles=printed["titles"],
        table10={name: _strategies(one) for name, one in printed["table10"].items()},
        table13=_strategies(printed["table13"]),
        table11=_three(printed["table11"]["Global EE"]),
        table4=printed["table4"],
        tuning={
            key: {
                int(batch): {float(rate): Printed(*both) for rate, both in rates.items()}
                for batch, rates in printed[f"table{number}"].items()
            }
            for key, number in zip(KEYS, (7, 8, 9), strict=True)
        },
        table12={name: {who: tuple(row) for who, row in one.items()} for name, one in printed["table12"].items()},
        errors={name: _sentences(said) for name, said in printed["errors"].items()},
    )


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
def _tables(name: str) -> Published:
    content = _read(name)
    wrong = content.get("errors", {})
    return Published(
        paper=content["paper"],
        proposed=content["proposed"],
        seeds=content.get("seeds", 0),
        sites=tuple(content.get("sites", ())),
        known_as={site: tuple(names) for site, names in content.get("known_as", {}).items()},
        tables={
            which: PublishedTable(
                table["rows"],
                table["printed"],
                _sentences([*wrong.get(which, ()), *table.get("errors", ())]),
                table.get("title", ""),
                {step: (pair[0], pair[1]) for step, pair in table.get("steps", {}).items()},
            )
            for which, table in content["tables"].items()
        },
    )


def _read(name: str) -> dict[str, Any]:
    """Printed figures, which come with the package."""
    text = files("fedretina_papers").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, f"{name}.yaml")


def _sentences(said: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(one.split()) for one in said)


def _strategies(printed: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Printed]]]:
    return {name: {who: _three(row) for who, row in methods.items()} for name, methods in printed.items()}


def _three(row: list[float]) -> dict[str, Printed]:
    return {key: Printed(row[2 * at], row[2 * at + 1]) for at, key in enumerate(KEYS)}
