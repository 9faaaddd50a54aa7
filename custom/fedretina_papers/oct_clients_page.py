"""The page of scans at several numbers of clients: a table for each federation and share of the labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.report.text import number
from fedretina.storage import read_json
from fedretina_papers.alone_or_shared import LEAD, TITLES, Row, helped, lacking, line, moved
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import OfRun, Records
from fedretina_papers.engine.table import Column, mean_count, mean_signed, paired, render, seeds
from fedretina_papers.label_plan import row_name
from fedretina_papers.markdown import NOT_RUN, several
from fedretina_papers.oct_clients import FOLDER, MAJORITY, POOLED, STUDY

_FIGURES = ("auc", "balanced_accuracy", "accuracy")
_PRIMARY = f"test.{_FIGURES[0]}"


class Table(NamedTuple):
    """What stands under one federation and share of the labels.

    Attributes:
        title: Of the share.
        missing: Rows that lack runs, in words; empty where none does.
        means: Figures and costs.
        tests: Each row less the first one that a client can have alone and that trains.
        helped: Which shared rows beat every row alone.
    """

    title: str
    missing: str
    means: list[str]
    tests: list[str]
    helped: list[str]


def write_clients_page(out: Path, page: Path) -> None:
    """Render the page; the same bytes for the same records.

    Args:
        out: The study's folder.
        page: Markdown file to write.

    Raises:
        StateError: A record is missing or damaged.
    """
    folders = sorted(out.glob(f"{FOLDER}*/{STUDY}"), key=lambda file: int(file.parent.name.removeprefix(FOLDER)))
    studies = [(read_json(file), read_json(file.with_name(POOLED))) for file in folders]
    write_page(
        "oct_clients.md.j2",
        page,
        federations={
            study["clients"]: {
                "sites": _sites(study),
                "drawn": [name for name, site in study["sites"].items() if site["synthetic"]],
                "pretraining": _pretraining(study),
                "tables": [_table(study, pooled, tag) for tag in study["shares"]],
            }
            for study, pooled in studies
        },
        primary=TITLES[_FIGURES[0]],
    )


def rows_of(study: Mapping[str, Any], tag: str) -> list[Row]:
    """The rows under a share of the labels, controls first."""
    found = [Row(row_name(MAJORITY, tag), "majority: the commonest class of the client's labels", False)]
    found += [Row(one["names"][tag], f"{one['method']}; {one['start']}", one["shared"]) for one in study["rows"]]
    return sorted(found, key=lambda row: row.shared)


def records_of(study: Mapping[str, Any], pooled: Mapping[str, Any]) -> Records:
    """What was run; bytes of a row that was pre-trained count those of its pre-training."""
    before = {
        name: study["pretraining"]
        for one in study["rows"]
        for name in one["names"].values()
        if one["pretrained"] and study["pretraining"]
    }
    runs: dict[str, dict[int, Any]] = {}
    for row, seeds_of in pooled.items():
        first = before.get(row, [{"rounds": 0, "bytes": 0}])[0]
        runs[row] = {
            int(seed): {**one, "blind": first["rounds"], "bytes": one["bytes"] + first["bytes"]}
            for seed, one in seeds_of.items()
        }
    return Records(runs)


def _table(study: Mapping[str, Any], pooled: Mapping[str, Any], tag: str) -> Table:
    rows, records = rows_of(study, tag), records_of(study, pooled)
    columns = [
        Column("draws", _PRIMARY, show=seeds),
        *(Column(TITLES[one], f"test.{one}", better="highest") for one in _FIGURES),
        Column("passes with labels", OfRun("passes"), show=mean_count),
        Column("passes without", OfRun("blind"), show=mean_count),
        Column("bytes up and down, all clients", OfRun("bytes"), show=moved),
    ]
    against = next((row.name for row in rows if not row.shared and not row.name.startswith(MAJORITY)), rows[0].name)
    gaps = [Column("difference to the probe", _PRIMARY, show=mean_signed, difference=True), *paired(_PRIMARY)]
    lines = [line(row) for row in rows]
    return Table(
        title=f"{100 * study['shares'][tag]:g} % of the labels",
        missing=lacking(rows, records, _PRIMARY, len(study["seeds"])),
        means=render(records, LEAD, lines, columns),
        tests=render(records, LEAD, [line(row, against) for row in rows if row.name != against], gaps),
        helped=helped(rows, records, _PRIMARY),
    )


def _sites(study: Mapping[str, Any]) -> list[str]:
    return [
        f"- **{name}**: {site['train']} training images ("
        + ", ".join(f"{count} {grade}" for grade, count in zip(site["grades"], site["train_by_grade"], strict=True))
        + f"), {site['test']} test images."
        for name, site in sorted(study["sites"].items())
    ]


def _pretraining(study: Mapping[str, Any]) -> str:
    if not study["pretraining"]:
        return f"Pre-training: {NOT_RUN}."
    first = study["pretraining"][0]
    ends = [number(first["contrast_loss"][at], 3) for at in (0, -1)]
    return (
        f"Pre-training: {several(first['rounds'], 'round')} of one pass, contrastive loss {ends[0]} to {ends[1]}, "
        f"encoder {first['sha256'][:12]}."
    )
