"""Renders docs/before_you_trust_it.md, for the doctor: `python -m benchmarks.trust_page`.

What the gate and the promise are worth in one table, from the stored counts of `benchmarks.gate` and
`benchmarks.promise`; their own pages hold all that was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gate, promise
from benchmarks.common import ROOT
from benchmarks.gate_page import KINDS, SPOILT, pooled, together, worst_camera
from fedretina.storage import write_text
from fedretina.uncertainty.grade_sets import WRONG
from fedretina.uncertainty.promise import patients_needed
from fedretina_papers.engine.table import listing
from fedretina_papers.markdown import listed
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "before_you_trust_it.md"
ROW = "analytic"
"""Of the README's first table, and the one that both studies ran."""
MISSED, SURE = 0.05, 0.9
_SETS = {"fundus": "photographs", "oct": "OCT scans"}


class Share(NamedTuple):
    """So many of so many."""

    found: float
    of: float

    @property
    def value(self) -> float:
        """In [0, 1]."""
        return self.found / self.of if self.of else 0.0


class Kept(NamedTuple):
    """What was counted at a hospital; None where it was not measured.

    Attributes:
        name: Of the set.
        kind: Of images.
        own: Own test images that the gate stopped.
        other: Pictures of something else that were answered and not referred.
        spoiled: Own images, spoiled beyond reading, that were answered and not referred.
        cameras: Ill eyes of the worst other hospital that were answered and not referred.
        missed: Ill patients who passed, mean of the draws, where a threshold keeps the promise.
        kept: Draws of validation patients in which no more than promised passed.
        sent: All patients sent to a doctor.
        grades: Patients whose true grade was in the set of grades.
        drawn: Validation patients that the last four stand on.
    """

    name: str
    kind: str
    own: Share
    other: Share
    spoiled: Share
    cameras: Share
    missed: Share | None
    kept: Share | None
    sent: Share | None
    grades: Share | None
    drawn: int | None


def main() -> int:
    """Write the page."""
    write_page(gate.STORED, promise.STORED)
    return 0


def write_page(gates: Path, promises: Path) -> None:
    """Write docs/before_you_trust_it.md from what both studies stored."""
    looked = list(read_packed(gates).values())
    promised = {one["site"]: one for one in read_packed(promises).values()}
    table = [counted(one, promised.get(one["site"])) for one in looked if one["row"] == ROW]
    others = [one for one in looked if one["row"] != ROW and one["set"] in _SETS and not pooled(one["row"])]
    trained = [counted(one, None) for one in others]
    one_place = [counted(one, None) for one in looked if one["set"] in _SETS and pooled(one["row"])]
    write_text(PAGE, render(table, trained, one_place))


def counted(looked: Mapping[str, Any], promised: Mapping[str, Any] | None) -> Kept:
    """What both studies counted at a site.

    Args:
        looked: The site's record of `benchmarks.gate`.
        promised: Its record of `benchmarks.promise`; None where there is none.
    """
    groups, own = looked["groups"], looked["look"]["own"]
    worst = Share(*worst_camera(looked)[:2])
    other, spoiled = (Share(*reversed(together(groups, names))) for names in (KINDS, SPOILT))
    found = (looked["site"], looked["set"], Share(own["stopped"], own["images"]), other, spoiled, worst)
    most = None if promised is None else _most_drawn(promised["drawn"])
    if promised is None or most is None:
        return Kept(*found, None, None, None, None, None)
    held = next(one["held"] for one in promised["sets"] if one["patients"] == most["patients"])
    kept = Share(most["kept"], most["given"])
    shares = (Share(100 * most["mean_missed"], 100), kept, Share(100 * most["mean_load"], 100), Share(100 * held, 100))
    return Kept(*found, *shares, most["patients"])


def _most_drawn(drawn: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    given = [
        one for one in drawn if (one["rule"], one["missed"], one["sure"]) == ("own", MISSED, SURE) and one["given"]
    ]
    return max(given, key=lambda one: one["patients"], default=None)


def render(sites: Sequence[Kept], trained: Sequence[Kept] = (), one_place: Sequence[Kept] = ()) -> str:
    """The page, Markdown with a final newline.

    Args:
        sites: What was counted of the row of the table.
        trained: What was counted of each model whose encoder the sites trained; a row has one at each site.
        one_place: The same of models trained on the images of all sites in one place, which no hospital gets.
    """
    strange = [site for site in sites if site.cameras.value >= 0.1]
    strange = strange or [max(sites, key=lambda site: site.cameras.value)]
    sent = sorted(site.sent.value for site in sites if site.sent is not None)
    return "\n".join(
        [
            "# Before you trust it",
            "",
            "For the doctor who is to work with a model's answers. Research software, not a medical device: a doctor "
            "decides, whatever it says. Written by `python -m benchmarks.trust_page` from stored counts.",
            "",
            "A model alone gives a grade to whatever it is shown, a photograph of skin too. Here three things stand "
            "between a photograph and its answer:",
            "",
            "1. **It looks first.** A picture of something else is refused. One that cannot be read (too dark, "
            'blurred, half covered) is called *ungradable*. One that is unlike your own photographs is marked *"unlike '
            'this site\'s photographs"*, and one among the least usual of your own *"unusual for this site"*. All of '
            "them go to a doctor, each with its reason.",
            "2. **It says when it is not sure.** A patient with a grade that calls for a doctor, or with a doubtful "
            "answer, is referred.",
            "3. **It keeps a promise, if you ask for one.** You say how many of your ill patients may pass unseen, "
            f"for instance {100 * MISSED:.0f} of 100. Patients of yours that were set aside then decide how careful "
            "it must be. No head was learned from them, but they also set how sure its answers sound and which of them "
            "count as doubtful.",
            "",
            "## How that was kept",
            "",
            "Each line is a public set of real images, as if it were a hospital. None of the images counted here was "
            "learned from. The last line is the worst of each column.",
            "",
            *_table(sites),
            "What the columns count, and what was promised (**bold** is a promise that was not kept):",
            "",
            "* *own held back*: own photographs that the first look stopped, though nothing was wrong with them. "
            "Promised: at most 2 of 100.",
            "* *another kind unnoticed*: OCT scans or photographs, skin, flowers, blank pictures, that were answered "
            "and sent to nobody. Promised: at most 2 of 100.",
            "* *spoiled unnoticed*: own photographs, darkened, blurred or half covered until nobody could read them, "
            "that were answered and sent to nobody. Promised: at most 2 of 100.",
            "* *other cameras: ill who passed*: ill eyes from that other hospital which fared worst here, neither "
            "marked nor sent to a doctor. Promised: fewer than 10 of 100.",
            f"* *ill who passed*: own ill patients who were sent to nobody, with a promise of {100 * MISSED:.0f} of "
            "100; the mean of all trials.",
            "* *promise kept*: in how many trials no more of them passed than promised. A trial draws other patients "
            f"to set the model by, and looks at all the rest. Promised: {100 * SURE:.0f} of 100.",
            "* *sent to a doctor*: of all patients, with that promise. Nothing is promised here, and it is the price: "
            "where nearly all are sent, the model saves no work.",
            '* *grades*: patients whose true grade was among those that the answer named ("mild to moderate"). '
            f"Promised: {100 * (1 - WRONG):.0f} of 100, on average. The mean of all trials, which by chance may lie "
            "some tenths below what it comes to over more of them.",
            "",
            "## What it does not do",
            "",
            *_cameras(strange),
            *_others(trained, one_place),
            "* **A promise does not make the model better.** It is paid for with patients sent to a doctor: "
            f"{100 * sent[0]:.0f} to {100 * sent[-1]:.0f} of 100 at these hospitals. A better model sends fewer."
            if sent
            else "* **A promise does not make the model better.** It is paid for with patients sent to a doctor.",
            f"* **It promises nothing on few patients.** For {100 * MISSED:.0f} of 100 it takes "
            f"{patients_needed(MISSED, SURE)} ill patients among those that you keep for validation, for 10 of 100 "
            f"{patients_needed(0.1, SURE)}. With fewer your report says so, and how many are missing. "
            "You may then have a [threshold from other hospitals' "
            "patients](promise.md#with-too-few-patients-of-its-own), with no promise.",
            "* **It does not see what your own photographs hide.** What is odd in all of yours is usual to it.",
            "* **It cannot be sure that it has come to another clinic.** The [work "
            "list](reading_the_report.md#reading-with-the-work-list) counts, and says on top when its patients or "
            "photographs are unlike those of the test. Lists may differ in what nobody counts.",
            "* **Seeing its answer changes yours.** Read some lists with the answers hidden until you have decided, "
            "and compare: the work list does both.",
            "* **These figures are not yours.** Your own stand in your [report](reading_the_report.md), counted on "
            "your own test patients. Read them there before the first patient.",
            "",
            "For engineers: [the gate](gate.md), [the promise](promise.md), [which doubt finds what](doubt.md).",
            "",
        ]
    )


_LOOKED: tuple[tuple[str, Callable[[Kept], Share], Callable[[float], bool]], ...] = (
    ("own held back", lambda site: site.own, lambda share: share > 0.02),
    ("another kind unnoticed", lambda site: site.other, lambda share: share > 0.02),
    ("spoiled unnoticed", lambda site: site.spoiled, lambda share: share > 0.02),
    ("other cameras: ill who passed", lambda site: site.cameras, lambda share: share >= 0.1),
)
"""What the first look is to keep: in words, of whom, and when it is broken."""


def _table(sites: Sequence[Kept]) -> list[str]:
    columns: tuple[tuple[str, Callable[[Kept], Share | None], Callable[[float], bool]], ...] = (
        *_LOOKED,
        ("ill who passed", lambda site: site.missed, lambda share: share > MISSED),
        ("promise kept", lambda site: site.kept, lambda share: share < SURE),
        ("sent to a doctor", lambda site: site.sent, lambda share: False),
        ("grades", lambda site: site.grades, lambda share: share < 1 - WRONG),
    )

    def cell(site: Kept | None, column: int) -> str:
        _, of, broken = columns[column]
        if site is not None:
            return _cell(of(site), broken)
        found = sorted((share for share in map(of, sites) if share is not None), key=lambda share: share.value)
        least = bool(found) and broken(0.0)  # where less is worse
        return _cell((found[0] if least else found[-1]) if found else None, broken)

    told = {name: partial(cell, column=at) for at, (name, _, _) in enumerate(columns)}
    lead = {"hospital": lambda site: "**the worst**" if site is None else f"{site.name}, {_SETS[site.kind]}"}
    return listing([*sites, None], {**lead, **told}, right=())


def _cell(share: Share | None, broken: Callable[[float], bool]) -> str:
    if share is None:
        return "not measured"
    text = f"{_number(share.found)} of {_number(share.of)}"
    return f"**{text}**" if broken(share.value) else text


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _cameras(strange: Sequence[Kept]) -> list[str]:
    told = " and ".join(f"{_cell(one.cameras, lambda share: False)} at {one.name}" for one in strange)
    return [
        "* **It does not know every other camera.** Where a hospital's own photographs are of many kinds, an eye of "
        f"another camera looks like one of its own: ill ones passed: {told}. Have some photographs of a new "
        "camera graded by a doctor before the model sees its patients.",
    ]


def _others(trained: Sequence[Kept], one_place: Sequence[Kept]) -> list[str]:
    """The worst of what the gate is to keep, over models whose encoder the sites trained, and who is left out."""
    if not trained:
        return []
    told, broke = [], []
    for name, of, broken in _LOOKED:
        worst = max(trained, key=lambda site: of(site).value)
        at: dict[str, list[str]] = {}
        for one in one_place:  # sites of one scheme have one such model, and the same worst
            if broken(of(one).value):
                at.setdefault(_cell(of(one), broken), []).append(one.name)
        broke += [f"{name} {cell} ({listed(names)})" for cell, names in at.items()]
        where = f" ({worst.name})" if of(worst).found else ""
        told.append(f"{name} {_cell(of(worst), broken)}{where}")
    return [
        "* **A model that the hospitals train looks with other eyes.** The table is of one whose picture-reading part "
        f"stayed as it was made. Of {len(trained)} {'model' if len(trained) == 1 else 'models'} that hospitals "
        "like these trained for a short while, the worst found at "
        f"any hospital: {'; '.join(told)}.{_left_out(len(one_place), broke)}",
    ]


def _left_out(models: int, broke: Sequence[str]) -> str:
    if not models:
        return ""
    found = f"broke a promise: {'; '.join(broke)}" if broke else "broke no promise"
    return (
        f" Left out are {models} that were trained on images in one place, since no hospital gets such a model; they "
        f"{found} ([the gate](gate.md))."
    )


if __name__ == "__main__":
    raise SystemExit(main())
