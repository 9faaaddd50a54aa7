"""Renders docs/doubt.md from the stored figures of `benchmarks.doubt`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.common import ROOT
from benchmarks.doubt import SHARES
from benchmarks.render import machine_line
from fedretina.storage import write_text
from fedretina_papers.engine.records import Records
from fedretina_papers.engine.table import Column, Line, render
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "doubt.md"
_SETS = {"fundus": "Fundus photographs", "oct": "OCT scans"}
_OTHERS, _OF = "other sites", "images of "
_KINDS = {
    _OTHERS: "other sites",
    "oct": "OCT scans",
    "eyes": "fundus photographs",
    "ungraded": "diseases that nobody grades",
    "ungradable": "ungradable",
    "darkened to a tenth": "darkened to a tenth",
    "blurred": "blurred",
    "half covered": "half covered",
    "overexposed": "overexposed",
}
"""Strangers in the order of the page; ungradable ones are those that a site calls so, held out of its heads."""
_DOUBTS = {
    "entropy": "entropy of the softmax",
    "least": "1 - max p",
    "disagreement": "disagreement of own and federated head",
    "evidence": "u = K / S of an evidential head on the same features",
    "variance": "predictive variance, all sites' sums",
    "variance_own": "predictive variance, own images",
    "class_distance": "Mahalanobis, nearest class mean",
    "relative": "relative Mahalanobis",
    "distance": "Mahalanobis, mean of all own images",
    "distance_wide": "the same without projection",
    "distance_all": "the same by all sites' sums",
    "nearest": "cosine to the nearest training image",
    "ranked": "ranks of 1 - max p and of the distance, added",
    "gated": "**`softmax_gated`**: 1 - max p, and 1 beyond the gate",
}
_ABOUT = """# Which doubt finds wrong answers, and which finds strangers

Written by `python -m benchmarks.doubt --render` from stored figures. Research software, not a medical device.

The heads are those of the row [`analytic`](analytic.md), the mean of own and federated head, on EfficientNet-Lite0 with
the ImageNet weights of its package at 224 pixels. Of every site *n* training images are drawn by whole patients, and a
quarter as many (10 or more) to validate on; the test images are all that it has, the same in every draw. Each figure is
an AUROC: the chance that a wrong answer, or a stranger, is doubted more than a right answer, or an own test image; .5
says nothing, below it the wrong ones are doubted less. Mean of the sites, and in brackets the standard deviation over
draws. No stranger and no test image has a part in any choice: logits are scaled, and limits taken, on validation alone.

## What follows from it

* No answer knows a stranger. Entropy, 1 - max p and u = K / S lie about chance, often below it, at other sites' eyes,
  OCT scans and spoiled photographs: a model is often surest of what it has never seen. On scans they are a little above
  it, and no more. The distance from the site's own training images knows strangers, from 60 images on.
* The distance does not know wrong answers: there it is at chance. 1 - max p is as good as the entropy and better than
  u = K / S and than the disagreement of the two heads, which lies between at strangers.
* So doubt has two parts, as the estimator `softmax_gated` has them: u is 1 - max p of the calibrated answer, and 1 for
  an image whose distance lies beyond the limit. That costs wrong answers .01 to .02 of AUROC, .04 at 60 scans, since
  the site's own images beyond the limit are doubted too, right or wrong. Adding ranks of the two instead costs several
  times as much, and a sure answer then makes up for a strange image.
* One mean of all own images is as good as a mean for each class, and it keeps no mean of a class of few patients. All
  sites' sums make other cameras less strange, as they should: the site's own images are to be compared with. Predictive
  variance by own images is nearly the same distance. The nearest training image is worse at eyes and better at another
  OCT scanner; it would keep features of single patients in the model.
* The limit lets .95 through, not .98: of the site's own images one to five in a hundred more go to a doctor,
  and of other cameras', ungradable and spoiled ones many more are stopped, as the last tables show. With a few dozen
  validation images .98 is the largest distance seen, which one odd photograph decides.
* The gate has limits of its own. What it stops depends on how wide a site's own images range: where they come from many
  cameras, as at aptos2019 and odir5k, another site's eyes pass. With 15 validation images one own image in 16 is
  stopped, and draws differ. **A disease that nobody grades it hardly ever stops**: the scan is like the site's own.
  There 1 - max p is the better of the two, and no good one. (Seen on scans. The sets of photographs name no other
  disease, so that there it was not measured.)
"""
Runs = list[dict[str, Any]]
_ALL = 100_000  # a size beyond it asks for all training images


def write_page(stored: Path, page: Path = PAGE) -> None:
    """Write the page."""
    runs: Runs = list(read_packed(stored).values())
    parts = [_ABOUT]
    for name in (name for name in _SETS if any(run["set"] == name for run in runs)):
        parts += _of_set(name, [run for run in runs if run["set"] == name])
    parts.append(machine_line(runs[-1]["machine"]))
    write_text(page, "\n".join(parts) + "\n")


def _of_set(name: str, runs: Runs) -> list[str]:
    sites = sorted(runs[0]["sites"])
    tested = ", ".join(f"{site} {runs[0]['sites'][site]['images']['test']}" for site in sites)
    found = [f"## {_SETS[name]}", "", f"Test images: {tested}.", ""]
    there = {kind for site in runs[0]["sites"].values() for kind in _strangers(site)}
    kinds = [kind for kind in _KINDS if kind in there]
    held: dict[str, dict[int, dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run["size"]):
        held.setdefault(str(run["size"]), {})[run["draw"]] = {
            "sites": {n: _site(one) for n, one in run["sites"].items()}
        }
    records = Records(held, sites)
    for size, drawn in held.items():
        draws = f"{len(drawn)} {'draws' if len(drawn) > 1 else 'draw'}"
        accuracy = _spread(records.values(size, "accuracy"))
        shown = f"{size} training images a site" if int(size) <= _ALL else "All training images"
        found += [f"### {shown} ({draws}, accuracy {accuracy})", ""]
        found += _doubts(records, size, kinds)
    found += ["### What the gate stops", ""]
    found += [
        "Share of images beyond the limit, mean of draws, where the limit lets through .98 / .95 / .90 of images like "
        "those of validation. Few validation images tell no share so near to 1: the limits are then one and the same.",
        "",
    ]
    others = [f"images of {site}" for site in sites]
    strangers = [*others, *(kind for kind in kinds if kind != _OTHERS)]
    return found + [line for size in held for line in _gates(records, size, strangers)]


def _site(site: Mapping[str, Any]) -> dict[str, Any]:
    return {**site, "strangers": {**site["strangers"], **_strangers(site)}}


def _strangers(site: Mapping[str, Any]) -> dict[str, Any]:
    """A site's strangers by kind; the images of other sites are one kind, by the mean of these."""
    found = {name: one for name, one in site["strangers"].items() if not name.startswith(_OF)}
    others = [one["auroc"] for name, one in site["strangers"].items() if name.startswith(_OF)]
    known = {doubt: [one[doubt] for one in others if one[doubt] is not None] for doubt in _DOUBTS}
    means = {doubt: fmean(values) for doubt, values in known.items() if values}
    return found | ({_OTHERS: {"auroc": means}} if others else {})


def _doubts(records: Records, size: str, kinds: Sequence[str]) -> list[str]:
    """Mean of sites and draws, and the deviation over draws of the sites' mean."""
    figures = {"wrong answers": "wrong.{}", **{_KINDS[kind]: f"strangers.{kind}.auroc.{{}}" for kind in kinds}}
    columns = [Column(title, figure, show=_spread, unrun="") for title, figure in figures.items()]
    lines = [Line((title,), size, figure=doubt) for doubt, title in _DOUBTS.items()]
    return render(records, ["doubt"], lines, columns, right=())


def _spread(values: Sequence[float], _places: int = 3) -> str:
    if not values:
        return ""
    return _plain(fmean(values)) + (f" ({_plain(stdev(values))})" if len(values) > 1 else "")


def _plain(value: float, places: int = 3) -> str:
    return f"{value:.{places}f}".removeprefix("0")


def _gates(records: Records, size: str, kinds: Sequence[str]) -> list[str]:
    """What the gate stops at each site, own images and strangers."""

    def cell(line: Line, site: str) -> str:
        if not line.figure:
            return f"{fmean(records.values(size, 'images.val', site)):.0f}"
        shares = [records.values(size, f"{line.figure}.{share}", site) for share in SHARES]
        return " / ".join(_plain(fmean(share), 2) for share in shares if share)

    lines = [Line(("validation images",), size), Line(("own test images",), size, figure="stopped.distance")]
    lines += [Line((_KINDS.get(kind, kind),), size, figure=f"strangers.{kind}.stopped.distance") for kind in kinds]
    columns = [Column(site, told=partial(cell, site=site)) for site in records.order]
    return render(records, [f"{_size(size)}, images at"], lines, columns, right=())


def _size(size: str) -> str:
    return "all training images" if int(size) > _ALL else f"{size} training images"
