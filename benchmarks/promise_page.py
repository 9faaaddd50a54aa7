"""Renders docs/promise.md from the stored counts of `benchmarks.promise`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import ROOT
from benchmarks.promise import PATIENTS, PROMISES
from benchmarks.render import machine_line
from fedretina.evaluation.referral_curve import PRIOR
from fedretina.storage import write_text
from fedretina.uncertainty.promise import patients_needed
from fedretina_papers.engine.table import listing
from fedretina_papers.packed import read_packed

PAGE = ROOT / "docs" / "promise.md"
_SETS = {"fundus": "Fundus photographs", "oct": "OCT scans"}
_RULES = {
    "own": "own patients",
    "pooled": "all sites' patients together",
    "drawn": "own, drawn to the others",
    "alone": "own, nothing else refers",
}
_MISSED = (0.01, 0.02, 0.05, 0.1, 0.2)
_SEEN = 20  # draws with a threshold, for a share of them to say anything


def write_page(stored: Path) -> None:
    """Write docs/promise.md."""
    write_text(PAGE, render(list(read_packed(stored).values())))


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """The page, Markdown with a final newline."""
    needed: dict[str, Callable[[float], str]] = {
        "may pass at most": lambda sure: f"ill validation patients that it takes, {100 * sure:g} % sure",
        **{f"{100 * missed:g} %": partial(_needed, missed) for missed in _MISSED},
    }
    lines = [
        "# A referral with a guarantee",
        "",
        "Written by `python -m benchmarks.promise --render` from stored counts. Research software, not a medical "
        "device.",
        "",
        "A site may set how many of its patients with referable disease may pass without being referred, and how sure "
        "that must be, in its own site file or kit; it never leaves the site:",
        "",
        "```yaml",
        "data:",
        "  promise:",
        "    missed: 0.05  # at most 5 % of the ill patients",
        "    sure: 0.9     # in nine of ten draws of validation patients",
        "```",
        "",
        "At the end of a run the validation patients give the threshold: beside grade, doubt and gate, a photograph is "
        "then referred when its chance of referable disease reaches it. It is the highest at which the exact binomial "
        "upper bound of the share that passes keeps the promise. Card, report and work list say what was promised, on "
        "how many patients it stands, and how the test patients fared; where the ill patients of validation are too "
        "few, they say how many it takes, and nothing is promised:",
        "",
        *listing((0.8, 0.9, 0.95), needed, right=()),
        'Beside its grade the model names a set of neighbouring grades ("mild to moderate") that holds the true one; '
        "on average over hospitals all sets of a patient do for 90 % of patients or more, and at one hospital it may "
        "be fewer. On OCT, whose classes have no order, it is a set of the likeliest.",
        "",
        *_without_a_promise(records),
        "## What was measured",
        "",
        "Row `analytic` with every training image, frozen ImageNet encoder at 224 pixels. Of the patients of "
        "validation and test, so many were drawn as validation patients. No head was learned from either; those of "
        "validation had set the scale of its scores, also where they are not drawn. The patients drawn set the "
        'threshold of doubt and the promise, which was then held against all patients who were not drawn. "Kept" is '
        "the share of the draws in which at most the promised share of those ill patients passed: 90 % is what is "
        'claimed, of endless patients; a few dozen that are left can break it by chance alone. "Nothing" are draws '
        "with too few ill patients to promise anything.",
        "",
        "Three thresholds: from the site's own patients, which is the product's; from all sites' patients together; "
        f"and from the site's own counts with a prior of {PRIOR:.0f} ill patients whose curve is the other sites' (the "
        "largest threshold whose posterior leaves a tenth for more than may pass; each other patient stands at the "
        "exact chance, where the product has bins). The last rows are a "
        "control: nothing refers but the chance of disease, with the threshold from the site's own patients.",
        "",
        "## What follows",
        "",
        "* A site's own patients keep the promise at every site, the worst included, within what so many draws can "
        "tell. Where nothing else refers it holds in about nine of ten draws, as claimed; with the other reasons in "
        "more.",
        "* The patients of all sites together do not: a site whose model finds less than the others' passes more than "
        "its promise, and its own counts, drawn to the others', stay between the two. A federation's curve says "
        "nothing certain of a site. That is why the product promises on the site's own alone, and tells a small site "
        "that it has too few, whether it draws its threshold towards the others' or has none.",
        "* No drawing towards the others promises as much on fewer patients, whatever the curve. Where patients pass "
        "in the order of their chance, all thresholds are looked at for nothing, so an order or a first guess from the "
        "federation saves no patient; only the count binds. At a site where just more than the promised 5 % pass, none "
        f"of n ill patients of validation passes in 0.95^n of the draws: {100 * 0.95**15:.0f} % with 15, "
        f"{100 * 0.95**30:.0f} % with 30, {100 * 0.95**45:.1f} % with 45. Whoever promises on fewer than 45 "
        "breaks the promise there in more than one draw of ten, and no data of other sites tells which site that is. "
        "The tests show it on phantoms.",
        "* Two uses that would promise are left, and neither is built. The lower of both thresholds keeps the promise, "
        "and sends more patients for nothing that the site asked. And a promise over *sites* instead of patients (that "
        "nine of ten sites miss no more) needs nine other sites at the least, and does not hold at the worst.",
        "* The price is told by the last column but one: with these models a promise of 5 % sends six of ten of "
        "aptos2019's patients to a doctor, two of three of kermany's, and nine of ten or more elsewhere. Where nothing "
        "but the chance of disease refers, as many are sent or up to a fifth fewer: a better model, not another "
        "threshold, would send fewer.",
        "",
        *_follows(records),
    ]
    for kind, title in _SETS.items():
        held = [one for one in records if one["set"] == kind]
        if held:
            lines += [f"### {title}", ""]
            for asked in PROMISES:
                lines += _table(held, asked.missed, asked.sure)
            lines += _sets(held)
    return "\n".join([*lines, machine_line(records[-1]["machine"])]) + "\n"


def _needed(missed: float, sure: float) -> str:
    return str(patients_needed(missed, sure))


def _without_a_promise(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a site with too few patients may have in the place of a promise, and how often that kept what was asked."""
    kept = given_alone(records)
    if not kept:  # as in a study of a few patients
        return []
    lines = [
        "## With too few patients of its own",
        "",
        "A site may ask for a threshold all the same. It is then drawn towards the other hospitals' patients, and "
        "nothing is promised with it:",
        "",
        "```yaml",
        "data:",
        "  promise: {missed: 0.05, sure: 0.9, drawn: true}",
        "policy:",
        "  referral_curve: true  # at the other sites: counts of their ill validation patients may leave",
        "```",
        "",
        "The job asks for the counts (`referral_curve: true` in its experiment file), once, before the end; the chosen "
        "model goes down once more for it. A site whose policy lets it answers with how many of its ill validation "
        "patients have which chance of disease, in fixed bins that are merged until each holds nobody or "
        "`data.min_count` patients. The server adds up those of all other sites, and with `finalise` each site gets "
        "that sum, if at least two others are in it. A merged bin stands at its lower end, so that a threshold is "
        "never higher for what the bins hide; a server or sites that lie can at most take the threshold away, or have "
        "everybody referred. The site's own ill patients and the others', who count for "
        f"{PRIOR:.0f} "
        "at most, give the threshold. Card, report, work list and `fedretina predict` say that it is no promise, "
        "how many ill patients of its own stand behind it and how many are needed, and how much of it comes from "
        "other hospitals' patients; an exported model's page says it without numbers, which would tell how many "
        "patients the site has. The counts are exact and readable to the server, like all counts: no noise, no "
        "encryption. A site with enough patients keeps its own threshold and its promise, and the verdict's other "
        "models have none drawn: the curve is of the federation's.",
        "",
        "How often no more passed than asked, of the draws in which the site's own patients promised nothing, where "
        f"there were {_SEEN} or more such draws:",
        "",
    ]
    columns: dict[str, Callable[[Given], str]] = {
        "site": lambda one: one.site,
        "patients drawn": lambda one: str(one.patients),
        "may pass at most": lambda one: _percent(one.missed),
        "draws": lambda one: str(one.draws),
        "kept": lambda one: f"{100 * one.kept:.1f} %",
        "ill who passed, mean": lambda one: _percent(one.passed),
        "referred of all, mean": lambda one: _percent(one.load),
    }
    lines += listing(kept, columns, right=())
    least, most = min(one.kept for one in kept), max(one.kept for one in kept)
    lines += [
        f"So in {100 * least:.1f} to {100 * most:.1f} % of the draws, where {_percent(PROMISES[0].sure)} were asked. "
        "It is no promise for all that: nothing says that another site's patients are like these sites', and with the "
        "others' exact chances in the place of bins it was less at the worst ([below](#what-follows)). It only adds to "
        "what other reasons refer. The scans are of two sites, where the product asks for counts of two others.",
        "",
    ]
    return lines


class Given(NamedTuple):
    """How a threshold fared that was given without a promise.

    Attributes:
        site: Where.
        patients: How many were drawn.
        missed: What may pass.
        draws: Those in which own patients promised nothing.
        kept: The share of these in which no more passed.
        passed: The share of the ill who did, mean.
        load: The share of all that was referred, mean.
    """

    site: str
    patients: int
    missed: float
    draws: int
    kept: float
    passed: float
    load: float


def given_alone(records: Sequence[Mapping[str, Any]]) -> list[Given]:
    """How the product's thresholds fared where own patients promised nothing, in enough draws to say so."""
    return [
        Given(
            *(site["site"], one["patients"], one["missed"], one["given"]),
            *(one["kept"] / one["given"], one["mean_missed"], one["mean_load"]),
        )
        for site in records
        for one in site["drawn"]
        if one["rule"] == "given" and one["given"] >= _SEEN
    ]


def _follows(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The worst of each rule over sites, promises and numbers of patients."""
    drawn = {rule: [(site, one) for site in records for one in site["drawn"] if one["rule"] == rule] for rule in _RULES}

    def worst(rule: str) -> tuple[float, str]:
        found = [
            (one["kept"] / one["given"], f"{site['site']}, {one['patients']} patients, {100 * one['missed']:.0f} %")
            for site, one in drawn[rule]
            if one["given"] >= _SEEN
        ]
        return min(found, default=(float("nan"), "-"))

    def silent(rule: str) -> float:
        given, draws = (sum(one[name] for _, one in drawn[rule]) for name in ("given", "draws"))
        return float(1 - given / max(1, draws))

    columns: dict[str, Callable[[str], str]] = {
        "threshold from": lambda rule: _RULES[rule],
        "worst kept": lambda rule: _percent(worst(rule)[0]),
        "where": lambda rule: worst(rule)[1],
        "draws without a promise, all together": lambda rule: _percent(silent(rule)),
    }
    return [
        f"The worst is looked for where {_SEEN} draws or more had a threshold; fewer say too little.",
        "",
        *listing(_RULES, columns, right=()),
    ]


def _table(held: Sequence[Mapping[str, Any]], missed: float, sure: float) -> list[str]:
    found = [
        {**site, **one, "of": site["patients"]}
        for site in held
        for one in site["drawn"]
        if one["missed"] == missed and one["rule"] in _RULES
    ]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "site": lambda one: str(one["site"]),
        "ill of all patients": lambda one: f"{one['ill']} of {one['of']}",
        "patients drawn": lambda one: str(one["patients"]),
        "threshold from": lambda one: _RULES[one["rule"]],
        "kept": lambda one: _percent(one["kept"] / one["given"]) if one["given"] else "-",
        "ill who passed, mean": lambda one: _percent(one["mean_missed"]) if one["given"] else "-",
        "referred of all, mean": lambda one: _percent(one["mean_load"]) if one["given"] else "-",
        "nothing": lambda one: _percent(1 - one["given"] / one["draws"]),
    }
    title = f"At most {_percent(missed)} of the ill may pass, {_percent(sure)} sure:"
    return [title, "", *listing(found, columns, right=())]


def _sets(held: Sequence[Mapping[str, Any]]) -> list[str]:

    def cell(site: Mapping[str, Any], count: int) -> str:
        of = (one for one in site["sets"] if one["patients"] == count)
        return "".join(f"{_percent(one['held'])}, {one['size']:.1f} grades" for one in of)

    drawn = {f"{count} patients drawn": partial(cell, count=count) for count in PATIENTS}
    return [
        "Sets of grades; patients all of whose sets held the true grade, of those not drawn (90 % is promised on "
        "average), and grades in a set:",
        "",
        *listing(held, {"site": lambda site: str(site["site"]), **drawn}, right=()),
    ]


def _percent(share: float) -> str:
    """With tenths near 0 and 1, and where whole per cent would make 90, which is promised, of a little less."""
    tenths = 0 < share < 0.1 or (0.895 <= share < 1 and share != 0.9)
    return f"{100 * share:.{int(tenths)}f} %"
