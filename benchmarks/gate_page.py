"""Renders docs/gate.md from the stored counts of `benchmarks.gate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import ROOT
from benchmarks.gate import way
from benchmarks.render import machine_line
from fedretina.rows import ROWS
from fedretina.settings.experiment import Experiment
from fedretina.storage import write_text
from fedretina_papers.engine.table import listing
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "gate.md"
_SETS = {"fundus": "Fundus photographs", "oct": "OCT scans", "dermoscopy": "Pictures of skin"}
SPOILT = ("darkened to a tenth", "blurred", "half covered")
KINDS = ("scans", "eyes", "skin", "pictures")
_WORDS = {
    "scans": "OCT scans",
    "eyes": "fundus photographs",
    "skin": "photographs of skin",
    "pictures": "a flower, a temple, black, white, noise, one colour, a ramp, one pixel",
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
  most 512 of them. The model computes these anyway, so the gate needs no second network. Where the encoder trains, the
  same distance in what its middle stage gives (the last frozen one, where that lies deeper): training shapes the last
  features for the grades, and leaves the middle nearly as it was;
* **its looks**: the same distance over some fifty numbers of light, colour, contrast, detail at four scales and layout.
  They need no network, about 3 ms of one core at 224 pixels and 1 ms at 64, and tell other cameras better than features
  do;
* **light, detail, sharpness and cover**, each towards its bad end.

Each is told in steps of the site's own images, the largest counts, and there is one limit. It is the order statistic of
the *validation patients* (the worst image of each) that at most 2 % of new ones pass with a confidence of 90 %; fewer
than 114 patients cannot bear that, and it is then the largest, or a normal distribution's tolerance limit where that
lies above. Beside it stand the rules of `fedretina data check` that hold at any site; a rule that a site's own images
break is none for that site. Images that a site itself calls ungradable have no part in any of it.
They do count where a [whole list](reading_the_report.md#reading-with-the-work-list) is held against the test patients:
a list has such photographs too.

| what is found | what `predict` says | grade shown |
|---|---|---|
| no colour where photographs are expected, colour where scans are | refused: *another kind of image* | no |
| black, blank, too dark, overexposed, without detail, blurred, covered, colours exchanged | *ungradable* | no |
| unlike the site's own in features, middle or looks | *unlike this site's photographs* | yes, with the mark |
| within it, but among the least usual of the site's own | *unusual for this site* | yes, and it counts |

Each is referred, with a sentence on what was seen. A model folder whose card names a gate answers nothing without it;
an older one, which names none, answers as before, and the list says that nothing looked.

`gate.gate.Gate` is all that anything which answers needs: `look` for images as the network gets them, `refuses` for a
picture as stored. `Predictor.predict` calls it for files, `Predictor.answer` for images at hand.

## What follows

* Own eyes pass at every site, and scans, skin, other pictures and eyes that are darkened, blurred or half covered do
  not: the first table has each promise at each site.
* **The middle stage was added for a fault that these tables had shown.** Beside features that three rounds of `feduaa`
  had trained, 23 of 122 pictures of skin and one other picture passed at odir5k, whose own photographs differ most. On
  200 other pictures of skin (of the training split; the tables count those of the test split), at that site and 96
  pixels, looks alone stopped 5, and what any stage of the untrained encoder gives, the last included, 199 or 200: what
  knew skin had been trained away. No limit was moved.
* **Another camera is stopped only where a site's own photographs are alike.** aptos2019 and odir5k hold photographs of
  many cameras: no distance out of fifteen that were tried stopped nine in ten of other cameras' ill eyes there and left
  98 % of the site's own alone.
* **So a doctor looks at what is unusual as well.** Looks, features and middle have a second limit each, which leave as
  many validation images beyond them and together about the share `unusual` of the site's patients, one in four where
  the site says nothing ([your own share](for_hospitals.md#unusual-photographs)). Such a photograph is answered, and a
  doctor looks as well. What of each other camera's ill eyes passed so, and would without, stands in the table. Most of
  a site's own eyes that are unusual are referred for their grade or doubt anyway; what it adds stands there too. The
  share was one in five until every row was measured: then `moon_projected` let pass 42 of 345 ill eyes of odir5k at
  aptos2019, and 24 with one in four, for 2 more of 100 own photographs that a doctor sees for nothing else. So the
  share was chosen with test eyes in view, and the figures below are no proof for a camera that nobody has seen.
* Distances and limits are of the encoder and not of the head, so with a frozen encoder every row has the same. What
  passes besides depends on the row's own grades and doubt. A model's grades are no good for other cameras, and an eye
  of one that is just like the site's own still passes: grade some images of a new camera before it is used.
* Photographs that are a little too bright, and mirrored ones, pass like others. At eyepacs, whose colours were
  equalised by who published the copy, exchanged colours pass too, and so do nine in ten of the photographs that it
  calls ungradable, which are like those that it trained on: the model's own grade and its doubt refer them.
* What the gate costs: with 160 drawn training images of 64 pixels about one CPU second at a run's end; in `predict` the
  3 ms above for each image, and no second pass through a network.
* The gate is as wide as the site's own validation images: one odd photograph among 82 (idrid) widens it. With fewer
  than some thirty validation patients more than 2 % of own images may be stopped, or fewer strangers.

## What was measured

Every row of pictures, in the plain loop, with at most 400 training images a site. `analytic` (heads from sums on a
frozen ImageNet encoder) ran at 224 pixels; rows that train ran three rounds of one epoch at 96 pixels, after two of
pre-training where they have it, on photographs by the [recipe for small sites](small_sites.md), with three frozen
stages. "Stopped" is by the gate; "passed" is neither stopped nor referred for its grade, doubt or unusual look.
Strangers were every fifth scan and every fifth picture of skin of the test splits, every fourteenth eye, and eight
other pictures. After so few rounds some rows are so weak that they refer nearly everything: that none passes then says
nothing of their gate; what is stopped does. A row that pools the images of sites with the same grades was asked at
each of these sites. Pictures of skin were split by lesion. No test image and no stranger had a part in any fit or
limit. The gate was designed on held-out training and validation images, before any test image was looked at, and the
middle stage on the training, validation and other images named above. Other sizes of images, encoders and numbers of
rounds were not tried, nor recordings, whose looks nobody knows: the card of each model says what its own gate did with
spoiled images.

"""


def write_page(stored: Path) -> None:
    """Write the page."""
    parts = read_packed(stored)
    held = [parts[name] for name in sorted(parts)]
    lines = [_ABOUT.rstrip(), "", *_promises(held), *_broken(held)]
    for (kind, row), of in _by_row(held).items():
        if row in _shown(kind, held):
            lines += [f"### {_SETS[kind]}, `{row}`", "", *_table(of)]
    write_text(PAGE, "\n".join([*lines, machine_line(held[-1]["machine"])]) + "\n")


def _by_row(held: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Records by set and row, in the product's order of rows."""
    order = {row: at for at, row in enumerate(ROWS)}
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in sorted(held, key=lambda one: (list(_SETS).index(one["set"]), order[one["row"]], one["site"])):
        found.setdefault((one["set"], one["row"]), []).append(one)
    return found


def _shown(kind: str, held: Sequence[Mapping[str, Any]]) -> set[str]:
    """The first row of a set for each way in which an encoder comes to be what it is: shown in full."""
    rows: dict[str, str] = {}
    for of, row in _by_row(held):
        if of == kind:
            rows.setdefault(way(Experiment.resolve({"row": row})), row)
    return set(rows.values())


class _Promise(NamedTuple):
    """What of a site's record keeps a promise, and whether it is kept."""

    name: str
    of: Callable[[Mapping[str, Any]], tuple[int, int]]
    kept: Callable[[int, int], bool]


def _went(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[int, int]]:
    return lambda one: tuple(reversed(together(one["groups"], names)))  # type: ignore[return-value]


_PROMISES = (
    _Promise(
        "own stopped",
        lambda one: (one["look"]["own"]["stopped"], one["look"]["own"]["images"]),
        lambda count, of: count <= 0.02 * of,
    ),
    _Promise("another kind passed", _went(KINDS), lambda count, of: count <= 0.02 * of),
    _Promise("spoiled passed", _went(SPOILT), lambda count, of: count <= 0.02 * of),
    _Promise("ill of another camera passed", lambda one: worst_camera(one)[:2], lambda count, of: count < 0.1 * of),
    _Promise("without *unusual*", lambda one: (worst_camera(one)[2], worst_camera(one)[1]), lambda count, of: True),
    _Promise(
        "*unusual* alone",
        lambda one: (one["groups"]["own"]["unusual"], one["groups"]["own"]["images"]),
        lambda count, of: True,
    ),
)


def _promises(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each row: what was promised, and what was counted where it was kept least."""
    lines = [
        "### The promises",
        "",
        "At most 2 % of own test images stopped; of another kind, and of the darkened, blurred and half covered, at "
        "least 98 % stopped or referred; under 10 % of ill eyes of each other camera neither stopped nor referred. "
        "Each cell is of the site with the largest share, and, of cameras, of the one whose eyes passed most there. "
        "**Bold** is a promise that was not kept. *Without unusual* is what would have passed of the same camera's ill "
        "eyes; *unusual alone* are own test images, of a draw, referred for nothing else.",
        "",
    ]
    rows = _by_row(held)

    def worst(key: tuple[str, str], promise: _Promise) -> str:
        found = [(*promise.of(one), one["site"]) for one in rows[key]]
        count, of, site = max(found, key=lambda each: (each[0] / max(each[1], 1), each[1]))
        text = f"{count} of {of}" + (f" ({site})" if count else "")
        return text if promise.kept(count, of) else f"**{text}**"

    columns: dict[str, Callable[[tuple[str, str]], str]] = {
        "set": lambda key: key[0],
        "row": lambda key: f"`{key[1]}`{' (pooled)' if pooled(key[1]) else ''}",
        **{promise.name: partial(worst, promise=promise) for promise in _PROMISES},
    }
    return [*lines, *listing(rows, columns, right=())]


def pooled(row: str) -> bool:
    """Whether a row puts the sites' images together, in the plain loop alone: no site ever has its model."""
    return Experiment.resolve({"row": row}).pooled


def _broken(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """How often each promise was broken, by set, of all models that a site can have."""
    lines = ["Models with which a promise was broken, without those of pooled images, which no site ever has:", ""]
    for kind, title in _SETS.items():
        models = [one for one in held if one["set"] == kind and not pooled(one["row"])]
        if models:
            told = [
                f"{promise.name} {sum(not promise.kept(*promise.of(one)) for one in models)}"
                for promise in _PROMISES[:4]
            ]
            rows, sites = (len({one[name] for one in models}) for name in ("row", "site"))
            lines.append(f"* {title}, {len(models)} models ({rows} rows, {sites} sites): {', '.join(told)}.")
    return [*lines, "", "Below, the first row of each way in which an encoder comes to be what it is, in full.", ""]


def together(groups: Mapping[str, Mapping[str, int]], names: Sequence[str]) -> tuple[int, int]:
    """Images of some groups, and how many of them passed: neither stopped nor referred."""
    found = [groups[name] for name in names if name in groups]
    return sum(one["images"] for one in found), sum(one["passed"] for one in found)


def worst_camera(one: Mapping[str, Any]) -> tuple[int, int, int]:
    """Ill eyes of the other camera of which most passed: passed, all, and how many would have without "unusual"."""
    groups = [each for name, each in one["groups"].items() if name.startswith("ill of") and each["ill"]]
    worst = max(groups, key=lambda each: (each["ill_passed"] / each["ill"], each["ill_unusual"]))
    return worst["ill_passed"], worst["ill"], worst["ill_passed"] + worst["ill_unusual"]


def _table(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """Share stopped, and in brackets share passed, of every group at each site."""
    sites = [one["site"] for one in held]
    names = list(dict.fromkeys(name for one in held for name in one["groups"]))
    cameras = sorted(name for name in names if name.startswith("images of"))
    ordered = ["own", *cameras, *(name for name in _ORDER if name in names)]
    words = {"": "validation patients", "own": "own test images (a draw)", **_WORDS}
    of = {one["site"]: one for one in held}
    looked = {site: partial(_looked, of[site]) for site in sites}
    spoiled = {site: partial(_spoiled, of[site]) for site in sites}
    return [
        "Share stopped (share passed) of what was drawn for each line, 60 to 300 images; the promises are of all:",
        "",
        *listing(["", *ordered], {"images": lambda name: words.get(name, name), **looked}, right=()),
        "Validation images spoiled at the end of the run, stopped by the gate / doubtful by the model itself:",
        "",
        *listing(held[0]["look"]["spoiled"], {"spoiled": str, **spoiled}, right=()),
    ]


def _looked(site: Mapping[str, Any], group: str) -> str:
    if not group:
        return str(site["patients"])
    found = site["groups"].get(group, {"images": 0})
    images = found["images"]
    return f"{found['stopped'] / images:.2f} ({found['passed'] / images:.2f})" if images else ""


def _spoiled(site: Mapping[str, Any], kind: str) -> str:
    found = site["look"]["spoiled"][kind]
    return f"{found['stopped'] / found['images']:.2f} / {found['doubtful'] / found['images']:.2f}"
