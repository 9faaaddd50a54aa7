"""Grading schemes by name: ONE list of the scales and classes of published sets.

A new one is an entry here; a package of somebody else's adds its own by `add_scheme`.

Names of options are taken from this list, so the module imports nothing that help would have to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.errors import SettingsError


class SchemePreset(NamedTuple):
    """A grading scheme as it is published.

    Attributes:
        modality: What it grades.
        source: Whose it is, for the documentation.
        grades: Names of the grades in order, the healthy one first where there is one.
        labels: Raw labels, and the grade that each means. Their order is part of what fingerprints of data hold.
        referable: The grades that a doctor must see.
        ungradable: The grade of images that nobody can grade; None where there is none.
        covers: Name of a grade to the classes of a federation that it stands for.
        vision_threatening: The grades with which sight is at stake.
    """

    modality: str
    source: str
    grades: tuple[str, ...]
    labels: Mapping[str, str]
    referable: tuple[str, ...] = ()
    ungradable: str | None = None
    covers: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    vision_threatening: tuple[str, ...] = ()


_ICDR = ("no_dr", "mild", "moderate", "severe", "proliferative")
_ICDR6 = (*_ICDR, "ungradable")
_STAGES = ("normal", "stage_1", "stage_2", "stage_3")
_AMD = {"amd": ("drusen", "cnv")}  # both of its forms
# PAMAP2's own numbers.
_ACTIVITIES = {
    "1": "lying",
    "2": "sitting",
    "3": "standing",
    "4": "walking",
    "12": "ascending_stairs",
    "13": "descending_stairs",
    "16": "vacuum_cleaning",
    "17": "ironing",
}


def _numbers(grades: tuple[str, ...]) -> dict[str, str]:
    """Raw labels that are numbers from 0, in the order of the grades."""
    return {str(number): grade for number, grade in enumerate(grades)}


def _names(grades: tuple[str, ...], capitals: bool = False) -> dict[str, str]:
    """Raw labels that are the grades' own names, in capital letters as well where asked."""
    return {name: grade for grade in grades for name in ((grade, grade.upper()) if capitals else (grade,))}


def _diseases(
    modality: str, source: str, grades: str, labels: Mapping[str, str] = MappingProxyType({}), **more: Any
) -> SchemePreset:
    """Classes without a degree, under their numbers and names; all but the first are referable if nothing is said."""
    names = tuple(grades.split())
    raw = _numbers(names) | _names(names, capitals=True) | dict(labels)
    return SchemePreset(modality, source, names, raw, **({"referable": names[1:]} | more))


_SCHEMES: dict[str, SchemePreset] = {
    # Fundus. Referable is moderate and worse (stage 2 and worse), vision-threatening severe and worse (stage 3), as in
    # Gulshan et al., JAMA 2016; macular oedema, which counts for both there, is no grade of these scales.
    "icdr5": SchemePreset(
        "fundus",
        "International Clinical Diabetic Retinopathy scale, Wilkinson et al. 2003",
        _ICDR,
        _numbers(_ICDR) | _names(_ICDR),
        _ICDR[2:],
        vision_threatening=_ICDR[3:],
    ),
    "icdr5_ungradable": SchemePreset(
        "fundus",
        "the same with a sixth grade, as DDR has",
        _ICDR6,
        _numbers(_ICDR6) | _names(_ICDR6),
        _ICDR[2:],
        "ungradable",
        vision_threatening=_ICDR[3:],
    ),
    "normal_3stages": SchemePreset(
        "fundus",
        "normal and three stages; the raw grades 3 and 4 merge, as Messidor's do",
        _STAGES,
        _numbers(_STAGES) | {"4": "stage_3"} | _names(_STAGES),
        ("stage_2", "stage_3"),
        covers={
            "normal": ("no_dr",),
            "stage_1": ("mild",),
            "stage_2": ("moderate",),
            "stage_3": ("severe", "proliferative"),
        },
        vision_threatening=("stage_3",),
    ),
    # OCT. That every disease is referable where a set does not call some urgent is ours.
    "oct3": _diseases(
        "oct",
        "the next with its two forms of AMD merged",
        "normal amd dme",
        labels={"DRUSEN": "amd", "CNV": "amd"},
        covers=_AMD,
    ),
    "oct4": _diseases(
        "oct",
        "Kermany et al., Cell 2018; referable are those that they call urgent",
        "normal drusen dme cnv",
        referable=("dme", "cnv"),
    ),
    "octdl7": _diseases(
        "oct", "OCTDL, Kulyabin et al. 2024", "normal amd dme erm rvo vid rao", labels={"NO": "normal"}, covers=_AMD
    ),
    "octid": _diseases(
        "oct",
        "OCTID, Gholami et al. 2020; DR is retinopathy and not DME",
        "normal amd csr dr mh",
        labels={"AMRD": "amd", "ARMD": "amd"},
        covers=_AMD,
    ),
    "duke3": _diseases(
        "oct", "Srinivasan et al. 2014, whose AMD is the dry form", "normal amd dme", covers={"amd": ("drusen",)}
    ),
    # Others.
    "isic8": _diseases(
        "dermoscopy",
        "the diagnoses of ISIC 2019; referable are the malignant ones and actinic keratosis, which may become so "
        "(ours)",
        "mel nv bcc ak bkl df vasc scc",
        referable=("mel", "bcc", "ak", "scc"),
    ),
    "heart2": SchemePreset(
        "heart_sound",
        "PhysioNet/CinC 2016",
        ("normal", "abnormal"),
        {"-1": "normal", "1": "abnormal", "normal": "normal", "abnormal": "abnormal"},
        ("abnormal",),
    ),
    "activity8": SchemePreset(
        "activity",
        "the eight activities of PAMAP2 that FedEE uses (they stand in its code alone), under the set's own "
        "numbers; none is referable",
        tuple(_ACTIVITIES.values()),
        _ACTIVITIES | {activity: activity for activity in _ACTIVITIES.values()},
    ),
}
SCHEMES: Mapping[str, SchemePreset] = MappingProxyType(_SCHEMES)


def add_scheme(name: str, added: SchemePreset) -> None:
    """Add a grading scheme that a package of somebody else's brings.

    The package's entry point of the group `fedretina.parts` names the module that calls this; the module is imported
    when a scheme is asked for that is not there.

    Args:
        name: What a site file calls it.
        added: The scheme.

    Raises:
        SettingsError: Another scheme has the name.
    """
    # A module that is imported anew, as by a notebook, brings its own scheme again.
    if _SCHEMES.setdefault(name, added) != added:
        raise SettingsError(f"there is a grading scheme {name!r} already: give yours another name.")


def presets_of(modality: str) -> tuple[str, ...]:
    """The names of the schemes that grade a modality."""
    return tuple(name for name, scheme in SCHEMES.items() if scheme.modality == modality)
