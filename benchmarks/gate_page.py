"""Renders docs/gate.md from the stored counts of `benchmarks.gate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.render import machine_line
from fedretina.storage import write_text
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "gate.md"
_SETS = {"fundus": "Fundus photographs", "oct": "OCT scans"}
SPOILT = ("darkened to a tenth", "blurred", "half covered")
KINDS = ("scans", "eyes", "skin", "pictures")
_WORDS = {
    "scans": "OCT scans",
    "eyes": "fundus photographs",
    "skin": "photographs of skin",
    "pictures": "a flower, a temple, a face, black, white, noise, one colour, a ramp, one pixel",
}
_ORDER = (
    *SPOILT,
    "overexposed",
    "mirrored",
    "red and blue exchanged",
    "called ungradable by the site",
    *KINDS,
)
_ABOUT = """# The gate before the answer

Written by `python -m benchmarks.gate --render` from stored counts. Research software, not a medical device.

A model answers whatever it is given, and no head's own doubt knows a stranger ([which doubt finds
what](doubt.md)). So a gate stands before every answer, with the model of every row. It is fitted at the end of a run,
at the site, on the site's own images, and lies beside the model as `gate.safetensors`; no run sends it, and it leaves
by [`fedretina export`](export.md) alone. An image is measured three ways:

* **its features**: the Mahalanobis distance of what enters the model's own head from the site's training images, at
  most 512 of them. The model computes these anyway, so the gate needs no second network;
* **its looks**: the same distance over some fifty numbers of light, colour, contrast, detail at four scales and layout.
  They need no network, about 3 ms of one core at 224 pixels and 1 ms at 64, and tell other cameras better than features
  do;
* **light, detail, sharpness and cover**, each towards its bad end.

Each is told in steps of the site's own images, the largest counts, and there is one limit. It is the order statistic of
the *validation patients* (the worst image of each) that at most 2 % of new ones pass with a confidence of 90 %; fewer
than 114 patients cannot bear that, and it is then the largest, or a normal distribution's tolerance limit where that
lies above. Beside it stand the rules of `fedretina data check` that hold at any site; a rule that a site's own images
break is none for that site. Images that a site itself calls ungradable have no part in any of it.

| what is found | what `predict` says | grade shown |
|---|---|---|
| no colour where photographs are expected, colour where scans are | refused: *another kind of image* | no |
| black, blank, too dark, overexposed, without detail, blurred, covered, colours exchanged | *ungradable* | no |
| unlike the site's own in features or looks | *unlike this site's photographs* | yes, with the mark |

Each is referred, with a sentence on what was seen. A model folder whose card names a gate answers nothing without it;
an older one, which names none, answers as before, and the list says that nothing looked.

`gate.gate.Gate` is all that anything which answers needs: `look` for images as the network gets them, `refuses` for a
picture as stored. `Predictor.predict` calls it for files, `Predictor.answer` for images at hand.

## What follows

* Own eyes pass at every site, and scans and eyes that are darkened, blurred or half covered do not (one blurred eye in
  1,800 passed), with the frozen encoder at 224 pixels and with those that trained for three rounds at 96. Beside the
  frozen encoder no picture of skin passes either; features that three rounds have trained tell skin less well, and at
  odir5k, whose own photographs differ most, one in five passes, and one of nine other pictures.
* Which rows were measured on real images stands in the tables; every row makes its gate in the same way.
* **Another camera is stopped only where a site's own photographs are alike.** aptos2019 and odir5k hold photographs of
  many cameras: at each of them more than a third of another site's ill eyes pass with one row or both, which breaks the
  promise of a tenth. Nothing that was measured tells those eyes from the site's own. A model's grades are no good
  there, and no gate of this kind makes up for that: grade some images of a new camera before it is used.
* Photographs that are a little too bright, and mirrored ones, pass like others. At eyepacs, whose colours were
  equalised by who published the copy, exchanged colours pass too, and so do nine in ten of the photographs that it
  calls ungradable, which are like those that it trained on: the model's own grade and its doubt refer them.
* What the gate costs: with 160 drawn training images of 64 pixels about one CPU second at a run's end; in `predict` the
  3 ms above for each image, and no second pass through a network.
* The gate is as wide as the site's own validation images: one odd photograph among 82 (idrid) widens it. With fewer
  than some thirty validation patients more than 2 % of own images may be stopped, or fewer strangers.

## What was measured

Rows were run in the plain loop with 400 training images a site: `analytic` (heads from sums on a frozen ImageNet
encoder, 224 pixels), and rows that train three rounds at 96 pixels. "Stopped" is by the gate; "passed" is neither
stopped nor referred for its grade or doubt. No test image and no stranger had a part in any fit or limit. The gate was
designed on held-out training and validation images, before any test image was looked at.

"""


def write_page(stored: Path) -> None:
    """Write the page."""
    parts = read_packed(stored)
    held = [parts[name] for name in sorted(parts)]
    lines = [_ABOUT.rstrip(), "", *_promises(held)]
    for kind, title in _SETS.items():
        rows = list(dict.fromkeys(one["row"] for one in held if one["set"] == kind))
        for row in rows:
            lines += [
                "",
                f"### {title}, `{row}`",
                "",
                *_table([o for o in held if (o["set"], o["row"]) == (kind, row)]),
            ]
    write_text(PAGE, "\n".join([*lines, "", machine_line(held[-1]["machine"])]) + "\n")


def _promises(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each site and row: what was promised, and what was counted."""
    lines = [
        "### The promises",
        "",
        "At most 2 % of own test images stopped; at least 98 % of another kind, and of the darkened, blurred and half "
        "covered, stopped or referred; under 10 % of ill eyes of each other camera neither stopped nor referred (the "
        "worst camera is shown). **Bold** is a promise that was not kept.",
        "",
        "| set | row | site | own stopped | another kind | spoiled | ill eyes of another camera passed |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in held:
        own, groups = one["look"]["own"], one["groups"]
        kinds = together(groups, KINDS)
        spoilt = together(groups, SPOILT)
        away = [found for name, found in groups.items() if name.startswith("images of") and found["ill"]]
        worst = max(away, key=lambda found: found["ill_passed"] / found["ill"])
        cells = [
            _cell(own["stopped"], own["images"], own["stopped"] <= 0.02 * own["images"]),
            _cell(kinds[0] - kinds[1], kinds[0], kinds[1] <= 0.02 * kinds[0]),
            _cell(spoilt[0] - spoilt[1], spoilt[0], spoilt[1] <= 0.02 * spoilt[0]),
            _cell(worst["ill_passed"], worst["ill"], worst["ill_passed"] < 0.1 * worst["ill"]),
        ]
        lines.append(f"| {one['set']} | `{one['row']}` | {one['site']} | {' | '.join(cells)} |")
    return lines


def together(groups: Mapping[str, Mapping[str, int]], names: Sequence[str]) -> tuple[int, int]:
    """Images of some groups, and how many of them passed: neither stopped nor referred."""
    found = [groups[name] for name in names if name in groups]
    return sum(one["images"] for one in found), sum(one["passed"] for one in found)


def _cell(count: int, of: int, kept: bool) -> str:
    text = f"{count} of {of}"
    return text if kept else f"**{text}**"


def _table(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """Share stopped, and in brackets share passed, of every group at each site."""
    sites = [one["site"] for one in held]
    names = list(dict.fromkeys(name for one in held for name in one["groups"]))
    cameras = sorted(name for name in names if name.startswith("images of"))
    ordered = ["own", *cameras, *(name for name in _ORDER if name in names)]
    lines = [
        "Share stopped (share passed) of what was drawn for each line, 60 to 300 images; the promises are of all:",
        "",
        f"| images | {' | '.join(sites)} |",
        f"|---|{'---|' * len(sites)}",
        f"| validation patients | {' | '.join(str(one['patients']) for one in held)} |",
    ]
    for name in ordered:
        cells = []
        for one in held:
            found = one["groups"].get(name)
            cells.append("" if found is None else _shares(found))
        words = _WORDS.get(name, "own test images (a draw)" if name == "own" else name)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    lines += [
        "",
        "Validation images spoiled at the end of the run, stopped by the gate / doubtful by the model itself:",
        "",
    ]
    kinds = list(held[0]["look"]["spoiled"])
    lines += [f"| spoiled | {' | '.join(sites)} |", f"|---|{'---|' * len(sites)}"]
    for kind in kinds:
        cells = []
        for one in held:
            found = one["look"]["spoiled"][kind]
            cells.append(f"{found['stopped'] / found['images']:.2f} / {found['doubtful'] / found['images']:.2f}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _shares(found: Mapping[str, int]) -> str:
    images = found["images"]
    return f"{found['stopped'] / images:.2f} ({found['passed'] / images:.2f})" if images else ""
