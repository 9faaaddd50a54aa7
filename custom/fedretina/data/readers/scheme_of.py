"""The grading scheme of a site's own labels: from its settings, else from what the labels are called."""

from __future__ import annotations

import re
from collections.abc import Set

from pydantic import ValidationError

from fedretina.data.readers.survey import ImportSettings
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.settings.scheme_presets import SCHEMES

_UNGRADABLE = "ungradable"
# Names of the ICDR grades as they occur, without case, blanks, hyphens and underscores.
_WORDS = {
    "no_dr": ("nodr", "noapparentdr", "noapparentretinopathy", "normal", "healthy", "0nodr", "nodrsigns"),
    "mild": ("mild", "milddr", "mildnpdr", "1mild"),
    "moderate": ("moderate", "moderatedr", "moderatenpdr", "2moderate"),
    "severe": ("severe", "severedr", "severenpdr", "3severe"),
    "proliferative": ("proliferative", "proliferativedr", "proliferatedr", "pdr", "4proliferative", "4proliferativedr"),
    _UNGRADABLE: ("ungradable", "ungradeable", "reject", "5ungradable"),
}
_GRADE_OF = {word: grade for grade, words in _WORDS.items() for word in words}


def scheme_of(labels: Set[str], settings: ImportSettings, modality: str | None = None) -> GradingScheme | str | None:
    """Find the scheme; None where no image has a label and the settings name no scheme.

    In this order: the preset that is named; the grades that are named; of photographs "0" to "4" (or to "5",
    ungradable), all of them, which are ICDR, and ICDR's names in the usual spellings, the healthy one and another;
    names with a different number in front, in the order of these numbers.

    Args:
        labels: The raw labels that occur; "" is none.
        settings: `scheme`, `grades` and `ungradable` count.
        modality: What the images are, so that no scheme for others is taken or proposed; None where it is not known.

    Raises:
        DataError: A label is not in what the settings name, or the order of the labels is not to be seen.
    """
    labels = labels - {""}
    if settings.scheme is not None:
        return settings.scheme
    if settings.grades:
        return _named(labels, settings)
    if not labels:
        return None
    icdr = _icdr(labels) if modality in (None, SCHEMES["icdr5"].modality) else None
    return icdr or _numbered(labels) or _refuse(labels, modality)


def _named(labels: Set[str], settings: ImportSettings) -> GradingScheme:
    strangers = sorted(labels - set(settings.grades))
    if strangers:
        raise DataError(
            f"labels {strangers} are not among the grades {list(settings.grades)}: name them all, in order."
        )
    try:
        return GradingScheme(
            grades=settings.grades,
            labels={name: name for name in settings.grades},
            ungradable=settings.ungradable,
        )
    except ValidationError as error:
        raise DataError(
            f"the grades cannot be used: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from error


def _icdr(labels: Set[str]) -> GradingScheme | str | None:
    if labels == set("01234"):
        return "icdr5"
    if labels == set("012345"):
        return "icdr5_ungradable"
    means = {label: _GRADE_OF.get(re.sub(r"[\s_\-]", "", label).lower()) for label in labels}
    grades = set(means.values())
    if None in grades or "no_dr" not in grades or len(grades - {_UNGRADABLE}) < 2:
        return None
    base = preset("icdr5_ungradable" if _UNGRADABLE in grades else "icdr5")
    spelt = {label: grade for label, grade in means.items() if grade is not None}
    return base.model_copy(update={"labels": base.labels | dict(sorted(spelt.items()))})


def _numbered(labels: Set[str]) -> GradingScheme | None:
    numbers = {label: re.match(r"(\d+)[\s_\-.]*[^\d\s_\-.]", label) for label in labels}
    order = {int(match.group(1)): label for label, match in numbers.items() if match}
    if len(order) != len(labels) or len(labels) < 2:
        return None
    grades = tuple(order[number] for number in sorted(order))
    return GradingScheme(grades=grades, labels={name: name for name in grades})


def _refuse(labels: Set[str], modality: str | None) -> GradingScheme:
    strangers = sorted(labels - set("012345"))
    if strangers and set("0123") <= labels:
        raise DataError(
            f"the labels {strangers} stand among ICDR's grades, 0 to 4 (5 is ungradable), and are none of them: "
            "correct them, or name all grades in order, the healthy one first (--grades a,b,c)."
        )
    fits = [name for name in SCHEMES if labels <= preset(name).labels.keys()]
    fits.sort(key=lambda name: preset(name).num_classes != len(labels))  # first those that have no other grade
    if not strangers and modality in (None, SCHEMES["icdr5"].modality):  # ICDR, also where a grade does not occur
        modality = SCHEMES["icdr5"].modality
        fits.sort(key=list(SCHEMES).index)
    fits = [name for name in fits if modality in (None, SCHEMES[name].modality)]
    known = f" (these are names of {', '.join(fits)}: add --scheme {fits[0]})" if fits else " (--scheme)"
    raise DataError(
        f"the order of the labels {sorted(labels)} is not to be seen: name a preset{known}, or the grades in order, "
        "the healthy one first (--grades a,b,c)."
    )
