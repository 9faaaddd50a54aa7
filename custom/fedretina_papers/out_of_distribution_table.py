"""The tables of images that no site's grades are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedretina.report.text import count
from fedretina_papers.engine.records import BY_SIZE, Records
from fedretina_papers.engine.table import Column, Line, render, taken
from fedretina_papers.markdown import NOT_RUN, listed, sentence_case, several
from fedretina_papers.stored import Benchmark, Record

_DISEASE, _KIND = "unseen disease", "images of another kind"


def out_of_distribution(
    benchmark: Benchmark, records: Records, label: Callable[[str], str] | None = None
) -> dict[str, Any]:
    """Whether each row's uncertainty tells images of ungraded diseases from a site's own test images.

    Args:
        benchmark: Stored runs; those without the measurement say so.
        records: Their records.
        label: What a row is called; its title by default.

    Returns:
        What the page's section shows: its `title`, and by set of images what they are (`sets`) with their table.
    """
    found = {name: _any(benchmark, name) for name in benchmark.plan.get("strangers") or ()}
    # A set without classes of its own is no disease: another modality, or what got into a folder by mistake.
    kinds = {_DISEASE if first["diseases"] else _KIND for first in found.values() if first is not None} or {_DISEASE}
    named = label or benchmark.title
    sets = {}
    for name, first in found.items():
        if first is None:
            sets[f"**{name}**: {NOT_RUN}."] = [""]
            continue
        at = f"strangers.{name}"
        columns = [
            *(Column(title, f"{at}.{title.lower()}") for title in ("AUROC", "AUPR", "FPR95")),
            Column("AUROC by size", f"{at}.auroc", BY_SIZE),
            Column("AUROC, worst site", f"{at}.auroc", "lowest"),
            *(Column(f"AUROC, {disease}", f"{at}.diseases.{disease}.auroc") for disease in first["diseases"]),
        ]
        lines = []
        for row in benchmark.plan["rows"]:
            asked = any(column.values(records, Line((), row)) for column in columns)
            lines.append(Line((named(row),), row if asked else ""))
        sizes = [f"{disease} {count(one['outside'])}" for disease, one in first["diseases"].items()]
        told = f" ({listed(sizes)})" if sizes else ""
        drawn = ", phantoms" if first["synthetic"] else ""
        words = (
            f"**{name}**: {several(first['outside'], 'image')}{told}{drawn}, none of which trained anything; inside "
            "are each site's own test images. Plain mean of the sites, over seeds."
        )
        sets[words] = render(records, ["row"], lines, [*columns, *taken(records)])
    return {"title": sentence_case(" and ".join(sorted(kinds, reverse=True))), "sets": sets}


def _any(benchmark: Benchmark, name: str) -> Record | None:
    for seeds in benchmark.runs.values():
        for run in seeds.values():
            for site in run["sites"].values():
                found: Record | None = site.get("strangers", {}).get(name)
                if found is not None:
                    return found
    return None
