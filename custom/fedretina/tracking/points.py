"""The numbers that a curve is made of: at the server only what sites let go, at a site its own history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One value on one curve.

    Attributes:
        name: Name of the curve, `figure/whose`.
        step: Number of the step in the run.
        value: The value.
    """

    name: str
    step: int
    value: float


def server_points(records: Sequence[Mapping[str, Any]]) -> list[list[Point]]:
    """Points by step from the records of a run: scalars and weights a site, bytes, and how many took part.

    Args:
        records: Records of the steps that are done, in order.
    """
    return [list(_of_record(number, record)) for number, record in enumerate(records)]


def site_points(history: Mapping[int, Mapping[str, Any]]) -> list[list[Point]]:
    """Points by step from what a site remembers of each; a figure that is no number makes none.

    Args:
        history: Entries by number of the step (`History.numbered`).
    """
    return [
        [Point(name, number, float(value)) for name, value in _flat(history[number]) if not isinstance(value, bool)]
        for number in sorted(history)
    ]


def _of_record(number: int, record: Mapping[str, Any]) -> Iterator[Point]:
    task = record["task"]
    for site, scalars in record["scalars"].items():
        for name, value in scalars.items():
            yield Point(f"{task}/{name}/{site}", number, float(value))
    for site, weight in record.get("weights", {}).items():
        yield Point(f"{task}/weight/{site}", number, float(weight))
    yield Point("run/sites_accepted", number, float(len(record["scalars"])))
    yield Point("run/sites_refused", number, float(len(record["refused"])))
    yield Point("run/bytes_up", number, float(sum(record["bytes_up"].values())))


def _flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value
