"""Renders docs/gate.md from the stored counts of `benchmarks.gate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT
from benchmarks.gate import way
from benchmarks.render import machine_line
from fedretina.rows import ROWS as PRODUCT
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_json, write_text
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "gate.md"
UNUSUAL = RESULTS / "gate_unusual.json"
"""What `benchmarks.gate_unusual` stored."""
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
  many validation images beyond them and together about the share `unusual` of the site's patients, one in five where
  the site says nothing ([your own share](for_hospitals.md#unusual-photographs)). Such a photograph is answered, and a
  doctor looks as well. What of each other camera's ill eyes passed so, and would without, stands in the table. Most of
  a site's own eyes that are unusual are referred for their grade or doubt anyway; what it adds stands there too. The
  share was chosen with test eyes in view, of `analytic` and `feduaa`; the other rows came after, and moved nothing.
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

Rows were run in the plain loop with 400 training images a site: `analytic` (heads from sums on a frozen ImageNet
encoder, 224 pixels), and rows that train three rounds at 96 pixels, on photographs with three frozen stages. "Stopped"
is by the gate; "passed" is neither stopped nor referred for its grade or doubt. With `analytic` only the last three
columns of the first table count what is unusual (`python -m benchmarks.gate_unusual`), and not for scans; with the
others everything does. Strangers to the trained rows were every fifth scan and every fifth picture of skin of the test
splits, every fourteenth eye, and the other pictures without the face. After two and three short rounds
`oct_moco_scaffold` is so weak that it refers every scan: that none passes says nothing of its gate, what is stopped
does. No test image and no stranger had a part in any fit or limit. The gate was designed on held-out training and
validation images, before any test image was looked at, and the middle stage on the training, validation and other
images named above.

"""


def write_page(stored: Path) -> None:
    """Write the page."""
    parts = read_packed(stored)
    held = [parts[name] for name in sorted(parts)]
    lines = [_ABOUT.rstrip(), "", *_ways(held), "", *_promises(held)]
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


def _ways(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which measured row stands for which rows of the product."""
    rows: dict[str, list[str]] = {}
    for name in PRODUCT:
        experiment = Experiment.resolve({"row": name})
        if not experiment.images.signal:
            rows.setdefault(way(experiment), []).append(name)
    measured: dict[str, list[str]] = {}
    for one in dict.fromkeys(each["row"] for each in held):
        measured.setdefault(way(Experiment.resolve({"row": one})), []).append(one)
    return [
        "### Why these rows stand for every row",
        "",
        "Whether an image is stopped depends on its pixels and on what the encoder gives of it, and on nothing else of "
        "a row: head, loss, correction, weights of the sites and doubt act through the encoder's weights alone. So one "
        "row of each way in which an encoder comes to be what it is was measured. What *passes* depends on the row's "
        "own grades and doubt as well, which refer more than the gate does; where the gate alone keeps a promise, "
        "every row of its line does. Sizes of images, encoders and numbers of rounds beside those measured were not "
        "tried, nor recordings, whose looks nobody knows: the card of each model says what its own gate did with "
        "spoiled images.",
        "",
        "| the encoder is | measured | stands for |",
        "|---|---|---|",
        *(f"| {name} | {_codes(measured.get(name, []))} | {_codes(of)} |" for name, of in rows.items()),
    ]


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "not measured"


def _promises(held: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each site and row: what was promised, and what was counted."""
    lines = [
        "### The promises",
        "",
        "At most 2 % of own test images stopped; at least 98 % of another kind, and of the darkened, blurred and half "
        "covered, stopped or referred; under 10 % of ill eyes of each other camera neither stopped nor referred (the "
        "worst camera is shown). **Bold** is a promise that was not kept. *Before* is what passed of the same camera's "
        "eyes without what is unusual; *alone* are own test images, of a draw, referred for nothing else.",
        "",
        "| set | row | site | own stopped | another kind | spoiled | ill eyes of another camera passed | before "
        "| alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    unusual = read_json(UNUSUAL)
    for one in held:
        own, groups = one["look"]["own"], one["groups"]
        kinds = together(groups, KINDS)
        spoilt = together(groups, SPOILT)
        passed, ill, before = worst_camera(one, unusual)
        alone = _own_alone(groups["own"], unusual.get(one["row"], {}).get(one["site"]))
        cells = [
            _cell(own["stopped"], own["images"], own["stopped"] <= 0.02 * own["images"]),
            _cell(kinds[0] - kinds[1], kinds[0], kinds[1] <= 0.02 * kinds[0]),
            _cell(spoilt[0] - spoilt[1], spoilt[0], spoilt[1] <= 0.02 * spoilt[0]),
            _cell(passed, ill, passed < 0.1 * ill),
            "" if before is None else f"{before} of {ill}",
            alone,
        ]
        lines.append(f"| {one['set']} | `{one['row']}` | {one['site']} | {' | '.join(cells)} |")
    return lines


def together(groups: Mapping[str, Mapping[str, int]], names: Sequence[str]) -> tuple[int, int]:
    """Images of some groups, and how many of them passed: neither stopped nor referred."""
    found = [groups[name] for name in names if name in groups]
    return sum(one["images"] for one in found), sum(one["passed"] for one in found)


def worst_camera(one: Mapping[str, Any], unusual: Mapping[str, Any]) -> tuple[int, int, int | None]:
    """Ill eyes of the other camera of which most passed: passed, all, and how many would have without "unusual".

    Args:
        one: A site's record of `benchmarks.gate`.
        unusual: Records of `benchmarks.gate_unusual`, by row and site. Where it has none, nothing is known of that
            reason, and the last is None.
    """
    found = unusual.get(one["row"], {}).get(one["site"])
    if found is not None and one["set"] == "fundus" and "unusual" not in one["groups"]["own"]:
        away = [(each["passed"], each["images"], each["passed_before"]) for each in found["away"].values()]
        return max(away, key=lambda each: (each[0] / each[1], each[2] / each[1]))
    groups = [each for name, each in one["groups"].items() if name.startswith("images of") and each["ill"]]
    worst = max(groups, key=lambda each: (each["ill_passed"] / each["ill"], each.get("ill_unusual", 0)))
    # Counts from before there was "unusual" know nothing of it.
    before = worst["ill_passed"] + worst["ill_unusual"] if "ill_unusual" in worst else None
    return worst["ill_passed"], worst["ill"], before


def _own_alone(own: Mapping[str, int], found: Mapping[str, Any] | None) -> str:
    if "unusual" in own:
        return f"{own['unusual']} of {own['images']}"
    return (
        "" if found is None else f"{found['own']['passed_before'] - found['own']['passed']} of {found['own']['images']}"
    )


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
