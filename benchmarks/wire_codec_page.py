"""Renders docs/wire_codec.md from the stored runs of `benchmarks.wire_codec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.common import ROOT
from benchmarks.wire_codec import CODECS, SETS, STORED
from benchmarks.wire_codec_sizes import SIZES
from fedretina.storage import read_json, write_text
from fedretina_papers.engine.records import Figure, OfRun, Records
from fedretina_papers.engine.table import Column, Line, apart, listing, mean_number, render, seeds
from fedretina_papers.markdown import between
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "wire_codec.md"
_BEGIN, _END = "<!-- begin figures -->", "<!-- end figures -->"
_SETS = {
    "fundus": "Fundus photographs",
    "oct": "OCT scans, clients of skewed classes, a rate that falls along a cosine",
    "oct_constant": "OCT scans, clients of skewed classes, a constant rate",
}
_ROWS = {
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD, `mean_grad`: controls sent",
    "scaffold_option2": "SCAFFOLD, `option2`: controls follow",
}


def write_page() -> None:
    """Write the page's figures anew; its prose is written by hand."""
    write_text(PAGE, between(PAGE.read_text(encoding="utf-8"), _BEGIN, _END, figures()))


def figures() -> str:
    """The tables of all that is stored."""
    runs = list(read_packed(STORED).values()) if STORED.exists() else []
    sizes = read_json(SIZES) if SIZES.exists() else None
    return "\n".join([*(_sizes(sizes) if sizes else []), *(line for kind in SETS for line in _set(kind, runs))]).strip()


def _set(kind: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    own = [run for run in runs if run["set"] == kind]
    if not own:
        return []
    seeds = sorted({run["seed"] for run in own})
    sites = sorted(own[0]["sites"])
    settings = own[0]["settings"]
    rounds = settings["phases"][0]["rounds"]
    lines = [
        f"### {_SETS[kind]}",
        "",
        f"{len(sites)} sites ({', '.join(sites)}), {_span(own, 'train')} training images each, drawn anew with each "
        f"seed, and {_span(own, 'test')} to test on; {rounds} rounds of {settings['training']['epochs']} epoch; "
        f"EfficientNet-Lite0 with the weights of its package at {settings['images']['image_size']} pixels, its first "
        f"{settings['network']['frozen']} stages frozen. Mean over the sites and the seeds; beside it the mean "
        "difference from float32, seed by seed, with its 95 % interval (t).",
        "",
        *_table(own, rounds * settings["training"]["epochs"]),
    ]
    commonest = fmean(fmean(run["commonest"].values()) for run in own)
    return [
        *lines,
        f"Seeds: {', '.join(map(str, seeds))}. The commonest training grade of each site, as the answer to all, has an "
        f"accuracy of {commonest:.3f}.",
        "",
    ]


def _table(own: Sequence[Mapping[str, Any]], passes: int) -> list[str]:
    """A line for each codec of each row, over the seeds that float32 has too."""
    plain = {(run["row"], run["seed"]): _bytes(run) for run in own if run["codec"] == "none"}
    held: dict[str, dict[int, dict[str, Any]]] = {}
    for run in own:
        if before := plain.get((run["row"], run["seed"])):
            one = {"sites": run["sites"], "moved": _bytes(run), "saved": before / _bytes(run)}
            held.setdefault(f"{run['row']} {run['codec']}", {})[run["seed"]] = one
    records = Records(held)
    lines = [
        Line((title, f"`{codec}`"), f"{row} {codec}", f"{row} none" if codec != "none" else "")
        for row, title in _ROWS.items()
        for codec in CODECS
        if f"{row} {codec}" in records
    ]

    def beside(figure: Figure) -> Column:
        return Column("points from float32", figure, difference=True, show=_points, places=1, scale=100)

    columns = [
        Column("seeds", OfRun("moved"), show=seeds),
        Column("training passes", told=lambda line: str(passes)),
        Column("MB a run", OfRun("moved"), show=mean_number, places=1, scale=1e-6),
        Column("of float32", OfRun("saved"), show=lambda values, places: f"1/{fmean(values):.{places}f}", places=1),
        Column("macro AUC", "test_auc", show=mean_number),
        beside("test_auc"),
        Column("accuracy", "test_accuracy", show=mean_number),
        beside("test_accuracy"),
    ]
    return render(records, ["row", "codec"], lines, columns, range(2, 10))


def _points(values: Sequence[float], places: int) -> str:
    return apart(values, places) if values else ""


def _span(own: Sequence[Mapping[str, Any]], split: str) -> str:
    """Fewest and most images of a site: whole patients are drawn."""
    counts = {images[split] for run in own for images in run["images"].values()}
    return f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _bytes(run: Mapping[str, Any]) -> int:
    return int(sum(run["bytes_up"]) + sum(run["bytes_down"]))


_FOLLOW, _SENT = "SCAFFOLD, int4, controls follow", "SCAFFOLD, int4, controls sent"


def _sizes(found: Mapping[str, Any]) -> list[str]:
    rounds, sites = found["rounds"], found["sites"]
    lines = [
        "### What the OCT paper's run would move",
        "",
        f"EfficientNet-B4 with a head of four classes, {sites} sites, {rounds} rounds. Three rounds were run over "
        "phantom sites and encoded as any run's are; the first round's message down is whole, the last one stands for "
        "all others. GB a run are those of the rounds and of what goes down for validation.",
        "",
    ]
    cases = found["cases"]

    def total(case: Mapping[str, Any], ends: int = 1, down: float | None = None) -> float:
        """Of the rounds and so many of the messages behind them: for validation, then the last model."""
        up, down = case["up"][-1], case["down"][-1] if down is None else down
        return float(sites * (rounds * up + case["down"][0] + (rounds - 1) * down + sum(case["end"][:ends])))

    columns: dict[str, Callable[[str], str]] = {
        "": str,
        "MB up, a round and site": lambda name: f"{cases[name]['up'][-1] / 1e6:.2f}",
        "MB down": lambda name: f"{cases[name]['down'][-1] / 1e6:.2f}",
        "GB a run": lambda name: f"{total(cases[name]) / 1e9:.1f}",
        "with the last model": lambda name: f"{total(cases[name], ends=2) / 1e9:.2f}",
    }
    lines += listing(cases, columns)
    if not {_FOLLOW, _SENT} <= cases.keys():
        return lines
    follow, sent = cases[_FOLLOW], cases[_SENT]
    unlike = total(follow, down=sent["down"][-1])
    return [
        *lines,
        "Controls follow where sites train by SGD (`update: option2`, with momentum `option2_fednova`), those that "
        "come down where all sites make equally many steps besides; those that are sent are of sites that train by "
        "Adam. The paper trains by SGD with momentum and then by Adam: of that second phase controls are sent. Where "
        f"sites make unlike numbers of steps, `int4` with controls that follow up alone moves {unlike / 1e9:.1f} GB.",
        "",
    ]
