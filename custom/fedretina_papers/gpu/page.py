"""The page of a card's use: what was measured, and what has not run, from the stored records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from fedretina.report.text import number
from fedretina.storage import read_json
from fedretina_papers.engine.page import write_page
from fedretina_papers.gpu.measure import Record
from fedretina_papers.gpu.plan import GpuPlan, Work
from fedretina_papers.gpu.run import RESULTS
from fedretina_papers.input_speed import TARGET
from fedretina_papers.markdown import table
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
        speed=_speed(alone, found),
        bits=_bits(alone, found),
        together=_together(beside, found) if beside else None,
        size=plan.experiment_of(plan.works()[0]).images.shape[-1],
        plan=plan,
        first=plan.works()[0],
        torch=sorted({str(record["versions"]["torch"]) for record in found.values()}),
    )


def _speed(works: Sequence[Work], found: Mapping[Work, Record]) -> list[str]:
    """Real and synthetic input, and the share of the card's arithmetic."""
    head = ["network, precision, kernels", "real, images/s", "synthetic", "real / synthetic", "TFLOP/s", "MFU"]
    rows = []
    for work in works:
        record = found.get(work)
        if record is None:
            rows.append([_named(work), _WAITS, "", "", "", ""])
            continue
        real = median(record["real"])
        rows.append(
            [
                _named(work),
                number(real, 0),
                number(median(record["synthetic"]), 0),
                number(record["ratio"], 2),
                number(real * record["flops_an_image"] / 1e12, 2),
                f"{100 * record['mfu']:.1f} %",
            ]
        )
    return table(head, rows)


def _bits(works: Sequence[Work], found: Mapping[Work, Record]) -> list[str]:
    """What settings cost: whether an epoch repeats, and how far it leads from the first settings' one."""
    head = ["network, precision, kernels", "speed against the first", "the same bits twice", "distance from the first"]
    rows = []
    for work in works:
        record = found.get(work)
        plain = next((found.get(one) for one in works if one.network == work.network), None)
        if record is None:
            rows.append([_named(work), _WAITS, "", ""])
            continue
        times = None if plain is None else median(record["real"]) / median(plain["real"])
        same = "yes" if record["same_bits"] else "no"
        rows.append([_named(work), number(times, 2), same, number(record["distance"], 4)])
    return table(head, rows)


def _together(works: Sequence[Work], found: Mapping[Work, Record]) -> list[str]:
    """Sites on one card: what all of them train together."""
    head = ["network", "sites", "images/s of all", "against one", "most memory of a site, MB"]
    rows = []
    for work in works:
        record = found.get(work)
        if record is None:
            rows.append([work.network, str(work.sites), _WAITS, "", ""])
            continue
        one = found.get(work._replace(sites=1))
        times = None if one is None else record["images_s"] / one["images_s"]
        memory = number(record["memory_bytes"] / 1e6, 0) if record["memory_bytes"] else number(None, 0)
        rows.append([work.network, str(work.sites), number(record["images_s"], 0), number(times, 2), memory])
    return table(head, rows)


def _named(work: Work) -> str:
    return f"{work.network}, {work.precision}, {work.kernels}"
