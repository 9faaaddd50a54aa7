"""Renders docs/wire_codec.md from the stored runs of `benchmarks.wire_codec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks.common import ROOT
from benchmarks.wire_codec import CODECS, ROWS, SETS, STORED
from benchmarks.wire_codec_sizes import SIZES
from fedretina.storage import read_json, write_text
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
        "| row | codec | seeds | training passes | MB a run | of float32 | macro AUC | points from float32 | accuracy "
        "| points from float32 |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in ROWS:
        plain = {run["seed"]: run for run in own if (run["row"], run["codec"]) == (row, "none")}
        for codec in CODECS:
            found = {run["seed"]: run for run in own if (run["row"], run["codec"]) == (row, codec)}
            both = sorted(set(found) & set(plain))
            if not both:
                continue
            moved, before = (fmean(_bytes(held[seed]) for seed in both) for held in (found, plain))
            cells = [_ROWS[row], f"`{codec}`", f"{len(both)}", f"{rounds * settings['training']['epochs']}"]
            cells += [f"{moved / 1e6:.1f}", f"1/{before / moved:.1f}"]
            for figure in ("test_auc", "test_accuracy"):
                ours, theirs = ([_mean(held[seed], figure) for seed in both] for held in (found, plain))
                cells += [f"{fmean(ours):.3f}", "" if codec == "none" else _apart(ours, theirs)]
            lines.append(f"| {' | '.join(cells)} |")
    commonest = fmean(fmean(run["commonest"].values()) for run in own)
    return [
        *lines,
        "",
        f"Seeds: {', '.join(map(str, seeds))}. The commonest training grade of each site, as the answer to all, has an "
        f"accuracy of {commonest:.3f}.",
        "",
    ]


def _span(own: Sequence[Mapping[str, Any]], split: str) -> str:
    """Fewest and most images of a site: whole patients are drawn."""
    counts = {images[split] for run in own for images in run["images"].values()}
    return f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _bytes(run: Mapping[str, Any]) -> int:
    return int(sum(run["bytes_up"]) + sum(run["bytes_down"]))


def _mean(run: Mapping[str, Any], figure: str) -> float:
    return fmean(own[figure] for own in run["sites"].values() if own[figure] is not None)


_FOLLOW, _SENT = "SCAFFOLD, int4, controls follow", "SCAFFOLD, int4, controls sent"
_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""97.5 % points of Student's t by number of seeds."""


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> str:
    away = [100 * (one - other) for one, other in zip(ours, theirs, strict=True)]
    if len(away) not in _T:
        return f"{fmean(away):+.1f}"
    half = _T[len(away)] * stdev(away) / len(away) ** 0.5
    return f"{fmean(away):+.1f} ({fmean(away) - half:+.1f} to {fmean(away) + half:+.1f})"


def _sizes(found: Mapping[str, Any]) -> list[str]:
    rounds, sites = found["rounds"], found["sites"]
    lines = [
        "### What the OCT paper's run would move",
        "",
        f"EfficientNet-B4 with a head of four classes, {sites} sites, {rounds} rounds. Three rounds were run over "
        "phantom sites and encoded as any run's are; the first round's message down is whole, the last one stands for "
        "all others. GB a run are those of the rounds and of what goes down for validation.",
        "",
        "| | MB up, a round and site | MB down | GB a run | with the last model |",
        "|---|---:|---:|---:|---:|",
    ]
    cases = found["cases"]

    def total(up: float, down: float, case: Mapping[str, Any], ends: int = 1) -> float:
        """Of the rounds and so many of the messages behind them: for validation, then the last model."""
        return float(sites * (rounds * up + case["down"][0] + (rounds - 1) * down + sum(case["end"][:ends])))

    for name, case in cases.items():
        up, down = case["up"][-1], case["down"][-1]
        both = [total(up, down, case, ends) for ends in (1, 2)]
        lines.append(f"| {name} | {up / 1e6:.2f} | {down / 1e6:.2f} | {both[0] / 1e9:.1f} | {both[1] / 1e9:.2f} |")
    if not {_FOLLOW, _SENT} <= cases.keys():
        return [*lines, ""]
    follow, sent = cases[_FOLLOW], cases[_SENT]
    unlike = total(follow["up"][-1], sent["down"][-1], follow)
    return [
        *lines,
        "",
        "Controls follow where sites train by SGD (`update: option2`, with momentum `option2_fednova`), those that "
        "come down where all sites make equally many steps besides; those that are sent are of sites that train by "
        "Adam. The paper trains by SGD with momentum and then by Adam: of that second phase controls are sent. Where "
        f"sites make unlike numbers of steps, `int4` with controls that follow up alone moves {unlike / 1e9:.1f} GB.",
        "",
    ]
