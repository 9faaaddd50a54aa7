"""The page of a card's use: what was measured, and what has not run, from the stored records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedretina.report.text import number
from fedretina.storage import read_json
from fedretina_papers.engine.page import write_page
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, mean_number, render
from fedretina_papers.gpu.measure import Record
from fedretina_papers.gpu.plan import GpuPlan, Work
from fedretina_papers.gpu.run import RESULTS
from fedretina_papers.input_speed import TARGET
from fedretina_papers.plan import preset

_WAITS = "has not run"
_NO_CARD = "no GPU"


def write_gpu_page(out: Path, page: Path) -> None:
    """Render the page; the same bytes for the same records.

    Args:
        out: The benchmark's folder; one that holds nothing gives the page of a plan that has not run.
        page: Markdown file to write.

    Raises:
        StateError: A record is damaged, or the file cannot be written.
    """
    held = out / "plan.json"
    plan = GpuPlan.read(read_json(held) if held.exists() else preset("gpu"))
    files = {work: out / RESULTS / f"{work.name}.json" for work in plan.works()}
    found = {work: read_json(file) for work, file in files.items() if file.exists()}
    alone = [work for work in plan.works() if not work.sites]
    beside = [work for work in plan.works() if work.sites]
    records = _records(plan.works(), found)
    ratios = [record["ratio"] for work, record in found.items() if not work.sites]
    write_page(
        "gpu.md.j2",
        page,
        done=len(found),
        of=len(files),
        cards=sorted({record["machine"]["gpu"] or _NO_CARD for record in found.values()}),
        graphics=any(record["machine"]["gpu"] for record in found.values()),
        lowest=number(min(ratios), 2) if ratios else None,
        met=bool(ratios) and min(ratios) >= TARGET,
        target=TARGET,
        speed=render(records, _LEAD, _lines(alone), _SPEED),
        bits=render(records, _LEAD, _lines(alone), _BITS),
        together=render(
            records,
            ("network", "sites"),
            [Line((work.network, str(work.sites)), work.name) for work in beside],
            _TOGETHER,
        )
        if beside
        else None,
        size=plan.experiment_of(plan.works()[0]).images.shape[-1],
        plan=plan,
        first=plan.works()[0],
        torch=sorted({str(record["versions"]["torch"]) for record in found.values()}),
    )


def _records(works: Sequence[Work], found: Mapping[Work, Record]) -> Records:
    """Every measurement as a row: its medians, and how it stands against the first of its network, or one site."""
    first = {work.network: found.get(work) for work in reversed(works) if not work.sites}
    held: dict[str, dict[int, dict[str, Any]]] = {}
    for work, record in found.items():
        if work.sites:
            one = found.get(work._replace(sites=1))
            own = {"times": None if one is None else record["images_s"] / one["images_s"]}
            own["memory_bytes"] = record["memory_bytes"] or None
        else:
            real, plain = median(record["real"]), first[work.network]
            own = {"real": real, "synthetic": median(record["synthetic"])}
            own["tflops"] = real * record["flops_an_image"] / 1e12
            own["times"] = None if plain is None else real / median(plain["real"])
        held[work.name] = {1: {**record, **own}}
    return Records(held)


def _column(title: str, figure: str, places: int, scale: float = 1, unrun: str = "") -> Column:
    return Column(title, figure, show=mean_number, places=places, scale=scale, unrun=unrun)


def _lines(works: Sequence[Work]) -> list[Line]:
    return [Line((f"{work.network}, {work.precision}, {work.kernels}",), work.name) for work in works]


_LEAD = ("network, precision, kernels",)
_SPEED = (
    _column("real, images/s", "real", 0, unrun=_WAITS),
    _column("synthetic", "synthetic", 0),
    _column("real / synthetic", "ratio", 2),
    _column("TFLOP/s", "tflops", 2),
    Column("MFU", "mfu", show=lambda values, _: f"{100 * values[0]:.1f} %", unrun=""),
)
"""Real and synthetic input, and the share of the card's arithmetic."""
_BITS = (
    _column("speed against the first", "times", 2, unrun=_WAITS),
    Column("the same bits twice", "same_bits", show=lambda values, _: "yes" if values[0] else "no", unrun=""),
    _column("distance from the first", "distance", 4),
)
"""What settings cost: whether an epoch repeats, and how far it leads from the first settings' one."""
_TOGETHER = (
    _column("images/s of all", "images_s", 0, unrun=_WAITS),
    _column("against one", "times", 2),
    _column("most memory of a site, MB", "memory_bytes", 0, 1e-6),
)
"""Sites on one card: what all of them train together."""
