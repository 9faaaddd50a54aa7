"""The words and numbers of the reports: what each figure and chart says, in one place for the pages and for docs/.

Numbers have few digits, the same everywhere, and a dash for what is not known. `docs/reading_the_report.md` quotes the
sentences, and a test holds it to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, SupportsFloat

from fedretina.plurals import counted

NONE = "–"
PERCENT = "\u00a0%"  # the sign stays with its number at the end of a line
NOTICE = "Research software, not a medical device: a doctor decides, whatever it says."
SYNTHETIC = "SYNTHETIC IMAGES (phantom hospital): drawn by a program. No figure here says anything about patients."
STAYS = "This page names files and shows images of patients: it stays at this hospital."
UNFOLD = (
    "Only what was unfolded on the screen is printed here: unfold the tables of this part before printing to have them."
)
MISSED_TILE = "missed"
MISSED_UNKNOWN = "cannot be told from the test patients"
READING_STAYS = "This page names patients and what doctors wrote of them: it stays at this hospital."
READING_LIMITS = (
    "Who sees an answer before deciding agrees with it more often. Only decisions with the answer hidden until then "
    "say how good the model is.",
    "Photographs without a decision are not counted. Where only referred patients were read, nobody who was missed can "
    "have been found.",
    "One doctor's grade is no truth: two doctors differ as well.",
)
DISEASES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "referable": ("Referable disease", "a referable grade"),
        "threatening": ("Vision-threatening disease", "a vision-threatening grade"),
    }
)
"""By name: the disease, and the answer that counts as finding it."""
COLUMN_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "camera": "camera",
        "camera_maker": "maker of the camera",
        "sex": "sex",
        "age_band": "age",
        "eye": "eye",
        "quality": "quality of the photograph",
        "first_visit": "first visit",
    }
)
"""Columns of the manifest that tell subgroups, as a page names them."""
VALUE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "": "not known",
        "under_40": "under 40",
        "from_40": "40 to 49",
        "from_50": "50 to 59",
        "from_60": "60 to 69",
        "from_70": "70 and older",
    }
)
"""Values that read better so."""
TOO_FEW = "too few to say"
UNIT_WORDS: Mapping[str, str] = MappingProxyType({"image": "images", "eye": "eyes", "patient": "patients"})
NO_INTERVAL: Mapping[str, str] = MappingProxyType(
    {"ece": "It has no interval: drawing images twice makes any model look less calibrated than it is."}
)
OF_U = ("error_auroc", "aurc")
OTHER_DOUBT = (
    "This is of the u of the method, by which runs are compared. Patients are referred here by another doubt, 1 less "
    "the chance of the answer: tile and charts are of that one."
)
GRAVER = "The further from the diagonal, the graver the mistake."
CHARTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "confusion": (
            "What it answered for each grade",
            "A row holds the images of one true grade and says what the model answered; right answers stand on the "
            "diagonal.",
        ),
        "reliability": (
            "Is it as often right as it says?",
            "On the diagonal, answers are right as often as they claim; points below it mean that the model is too "
            "sure of itself, points above that it is too modest.",
        ),
        "uncertainty": (
            "Where right and wrong answers lie",
            "Right answers should stand at the left (sure) and wrong ones at the right (doubtful); where the two "
            "kinds lie over each other, the uncertainty cannot tell them apart.",
        ),
        "risk_coverage": (
            "What leaving out the doubtful answers gains",
            "Going left, more of the doubtful answers are given to a doctor and only the surest are kept; a useful "
            "uncertainty makes the line fall to the left, a useless one leaves it level.",
        ),
        "validation": (
            "Validation AUC by round",
            "Each point is the AUC on validation images of the model that the server mixed in that round; the dashed "
            "line marks the round whose model was chosen, by the mean over all sites, averaged over some "
            "rounds if the run says so.",
        ),
        "theta": (
            "theta by round",
            "The uncertainty that best parted right from wrong answers during training in that round; a hollow point "
            "was not measured but kept from before.",
        ),
        "weight": (
            "Weight by round",
            "The share that a site's update had in the mixed model of that round; if all counted alike, each of N "
            "sites would have one part in N.",
        ),
        "sites": (
            "Every site by itself",
            "A point is a site's own figure on its own test images, the bar its 95 % interval where the site sent one, "
            "the dashed line the mean over sites.",
        ),
        "theta_sites": (
            "theta by round",
            "The uncertainty that best parted right from wrong answers at a site during training in that round; why a "
            "site could not measure it stays at the site.",
        ),
        "loss": (
            "Training loss by round",
            "It should fall while the site trains; it is measured on the training images and promises nothing for "
            "others.",
        ),
        "contrast": (
            "Contrastive loss by round",
            "How badly a site's network distinguishes the two views of an image from other images, over the rounds "
            "without labels; it starts near the logarithm of how many others there are, and promises nothing about "
            "grades.",
        ),
        "bytes": (
            "Weights moved so far",
            "What all sites together had sent up and got down after each step; 1 MB is a million bytes.",
        ),
    }
)
PICTURES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "surest_right": ("Surest and right", "What the model has learned well."),
        "surest_wrong": (
            "Surest and wrong",
            "The dangerous ones: wrong, with the least doubt. Look whether the true grade is itself in doubt.",
        ),
        "most_doubtful": ("Most doubtful", "The ones that the model itself would hand over first."),
    }
)
THETA_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "youden": "measured",
        "too_few_patients": "not measured: too few validation patients",
        "empty": "not measured: no answers",
        "not_finite": "not measured: outputs were not finite",
        "no_errors": "not measured: every answer was right",
        "all_errors": "not measured: every answer was wrong",
        "too_few_errors": "not measured: too few wrong answers",
        "too_few_right": "not measured: too few right answers",
        "tied": "not measured: all uncertainties equal",
        "uninformative": "not measured: no threshold was better than chance",
    }
)
SITE_LIMITS = (
    "An interval says how much a figure would move with other patients of the same kind. It knows nothing of another "
    "camera, another clinic, another year, or of grades that readers gave wrongly.",
    "theta belongs to the training of the federation: it weighs this site's update. It is no threshold for referring "
    "patients.",
    "The pictures are the extremes of this test split, not its average.",
)
MODEL_LIMITS = (
    "The truth is the grade that this site's readers gave. Where they were in doubt, so is every figure here.",
    "The uncertainty u says how little the model has to go on. It does not notice every strange image: one that is no "
    "retina at all may get a sure answer.",
)
"""What a model's card says of it; for a report without one."""
ROBUST: Mapping[str, str] = MappingProxyType(
    {
        "norm": "length of the update",
        "score": "squared distance to the nearest others",
        "taken": "share of the update that counted",
    }
)
"""Figures of a robust rule, by their names in a round's record."""
SERVER_LIMITS = (
    "Each site grades by its own criteria, so figures of two sites are not measured by one yardstick. Means over "
    "sites are plain means; a large and a small site count alike.",
    "Pooled figures count only whether an answer was right by its own site's criteria, and how sure it was. They hold "
    "the differences between the sites as well: a site with harder images answers less surely.",
    "No image, prediction or patient is known here. Counts below the smallest allowed number were merged or withheld "
    "by the sites, so a cell without a number may hold a few images or none.",
    "An interval says how much a figure would move with other patients of the same kind. It knows nothing of another "
    "camera, another clinic or another year.",
)


def by_name(sites: Iterable[str]) -> list[str]:
    """Names in the order in which people look for them: site-2 before site-10, capital letters like small ones."""
    parts = re.compile(r"\d+|\D+")

    def place(name: str) -> tuple[list[tuple[bool, int, str]], str]:
        found = parts.findall(name.lower())
        return [(not one.isdecimal(), int(one) if one.isdecimal() else 0, one) for one in found], name

    return sorted(sites, key=place)


def by_site(values: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to sites, in the order of `by_name`."""
    return {name: values[name] for name in by_name(values)}


def rounded(value: SupportsFloat | None) -> float | None:
    """A figure for a stored record: six decimals, more than anyone reads, and few enough that files stay small."""
    return None if value is None else round(float(value), 6)


def in_percent(share: float) -> str:
    """A share in per cent, without the sign: whole, with one place near the ends, where it matters most.

    The one rule for all pages; `templates/worklist.js` counts by the same. 0 and 100 are exact.
    """
    value = 100 * share
    if 0 < value < 0.05:
        return "below 0.1"
    if 99.95 <= value < 100:
        return "above 99.9"
    near_an_end = 0 < value < 1.95 or 98.05 <= value < 100
    return f"{value:.1f}" if near_an_end else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share as `in_percent` has it, with the sign."""
    return NONE if share is None else in_percent(share) + PERCENT


def number(value: float | None, places: int = 2) -> str:
    """A figure with two decimals; never a minus before zero.

    To nine places first: the last bit of a mean, which depends on numpy's version, decides no tie.
    """
    if value is None:
        return NONE
    text = f"{round(value, 9):.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "\u2212")


def threshold_places(value: float, places: int = 3) -> int:
    """How many decimals a threshold is written with: more where it would else read as 0, which everything reaches."""
    return 1 - math.floor(math.log10(value)) if 0 < value < 10**-places else places


def points(share: float | None) -> str:
    """A difference of shares, in percentage points."""
    return percent(share).replace(PERCENT, " percentage points")


def count(value: float | None) -> str:
    """A whole number with narrow gaps between thousands."""
    return NONE if value is None else f"{value:,.0f}".replace(",", "\u202f")


def some(number: float, one: str, several: str = "") -> str:
    """A number and what it counts, as `counted` has it, the number as `count` has it."""
    return counted(number, one, several, count)


def size(number_of_bytes: float | None) -> str:
    """Bytes with a unit that leaves few digits; 1 MB is a million bytes."""
    if number_of_bytes is None:
        return NONE
    value = float(number_of_bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def shown(value: float | None, style: str) -> str:
    """A figure in its style, "percent" or "number"."""
    return percent(value) if style == "percent" else number(value)


def between(figure: Mapping[str, Any], style: str) -> str | None:
    """The interval of a figure as "0.77 to 0.92"; None where there is none."""
    low, high = figure.get("low"), figure.get("high")
    if low is None or high is None:
        return None
    return f"{shown(low, style).removesuffix(PERCENT)} to {shown(high, style)}"


def with_interval(figure: Mapping[str, Any], style: str) -> str:
    """A figure with its interval: "0.85 (95 % interval 0.77 to 0.92)"."""
    span = between(figure, style)
    value = shown(figure.get("value"), style)
    return value if span is None else f"{value} (95{PERCENT} interval {span})"


def outcomes_sentence(told: Mapping[str, Any] | None) -> str:
    """What a federation's sites found, as counted by `exchange.min_count.told_outcomes`; empty where none sent any."""
    if not told:
        return ""
    sites = told["sites"]
    if "most" in told:
        words = {"gained": "gained by sharing", "lost": "lost by it", "untold": "could not tell a difference"}
        most = words[told["most"]]
        return f"Against the best that each could do alone, at least {sites - 1} of {sites} sites {most}."
    if "gained" in told:
        return (
            f"Against the best that each could do alone, {told['gained']} of {sites} sites gained by sharing, "
            f"{told['lost']} lost, and {told['untold']} could not tell a difference."
        )
    return f"How many sites gained by sharing is not counted: fewer than {told['least']} of them sent a verdict."


class Figure(NamedTuple):
    """A figure's name on the page and what it says.

    Attributes:
        title: Its name.
        says: One sentence.
        style: "percent", or "number" with two decimals.
        better: Whether larger or smaller values are better.
    """

    title: str
    says: str
    style: str
    better: str


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "accuracy": Figure("right grade", "Share of the images that got their true grade.", "percent", "larger"),
        "auc": Figure(
            "AUC over grades",
            "Chance that an image of a grade gets more probability for it than one of another grade; the mean over "
            "the grades present; 0.5 is a coin.",
            "number",
            "larger",
        ),
        "auc_supported": Figure(
            "AUC over grades with support",
            "The same mean over the grades alone of which enough patients are there, with the grade and without it; a "
            "grade of a few patients would move the mean by luck.",
            "number",
            "larger",
        ),
        "kappa": Figure(
            "quadratic kappa",
            "Agreement with the true grades beyond chance, where a mistake of two grades counts four times one of a "
            "single grade; 1 is perfect, 0 is chance.",
            "number",
            "larger",
        ),
        "error_auroc": Figure(
            "finds its own mistakes",
            "Chance that a wrong answer is more uncertain than a right one (AUROC of error detection); 1 is perfect, "
            "0.5 means that the uncertainty says nothing.",
            "number",
            "larger",
        ),
        "ece": Figure(
            "calibration error",
            "Mean gap between how sure the model says it is and how often it is right (ECE, 15 bins).",
            "percent",
            "smaller",
        ),
        "brier": Figure(
            "Brier score",
            "Mean squared gap between the probabilities and the truth, summed over the grades; 0 is perfect, 2 the "
            "worst.",
            "number",
            "smaller",
        ),
        "aurc": Figure(
            "area under risk-coverage",
            "Mean error rate over all ways to keep only the surest answers; 0 is perfect.",
            "number",
            "smaller",
        ),
        "nll": Figure("log loss", "Surprise at the true grade, in nats; 0 is perfect.", "number", "smaller"),
        "auc_logits": Figure(
            "AUC, raw outputs",
            "The same AUC with images ranked by the softmax of the network's raw outputs, as published FedUAA code "
            "does; for comparison with papers.",
            "number",
            "larger",
        ),
        "referable_auc": Figure(
            "AUC for referable disease",
            "Chance that an eye with referable disease gets more probability for it than one without.",
            "number",
            "larger",
        ),
        "referable_sensitivity": Figure(
            "sensitivity",
            "Of the eyes with referable disease, the share whose answered grade is referable (or ungradable).",
            "percent",
            "larger",
        ),
        "referable_specificity": Figure(
            "specificity",
            "Of the eyes without it, the share whose answered grade is not referable (nor ungradable).",
            "percent",
            "larger",
        ),
        "threatening_auc": Figure(
            "AUC for vision-threatening disease",
            "Chance that an eye with vision-threatening disease (the scheme names the grades; macular oedema where it "
            "is graded) gets more probability for those grades than one without.",
            "number",
            "larger",
        ),
        "threatening_sensitivity": Figure(
            "sensitivity, vision-threatening",
            "Of the eyes with vision-threatening disease, the share whose answered grade is one of it (or ungradable).",
            "percent",
            "larger",
        ),
        "threatening_specificity": Figure(
            "specificity, vision-threatening",
            "Of the eyes without it, the share whose answered grade is not one of it (nor ungradable).",
            "percent",
            "larger",
        ),
    }
)
