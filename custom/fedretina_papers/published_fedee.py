"""The figures that the FedEE paper prints, and which of our rows they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fedretina.yaml_file import parse_yaml

METHODS = ("Backbone", "MCDrop", "Deep Ens.", "FedEE")
KEYS = ("accuracy", "misdetection", "selective")
"""What Tables 3, 5, 10, 11 and 13 tell of a row: accuracy, misdiagnosis detection, selective prediction at 40 %."""


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


@cache
def published_fedee() -> FedeePaper:
    """Read the printed figures, which come with the package."""
    text = files("fedretina_papers").joinpath("published_fedee.yaml").read_text(encoding="utf-8")
    printed = parse_yaml(text, "published_fedee.yaml")
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
        errors={name: tuple(" ".join(one.split()) for one in said) for name, said in printed["errors"].items()},
    )


def _strategies(printed: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Printed]]]:
    return {name: {who: _three(row) for who, row in methods.items()} for name, methods in printed.items()}


def _three(row: list[float]) -> dict[str, Printed]:
    return {key: Printed(row[2 * at], row[2 * at + 1]) for at, key in enumerate(KEYS)}
