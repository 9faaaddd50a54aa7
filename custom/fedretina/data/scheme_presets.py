"""Grading schemes by name: the scales and classes of published sets, and what kind of data each grades."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedretina.errors import DataError, SettingsError
from fedretina.settings.images import Modality
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings

_ICDR = ("no_dr", "mild", "moderate", "severe", "proliferative")
_FORMS = ("drusen", "cnv")  # of AMD
# Grades, raw labels besides their numbers and names, referable grades where not all diseases are, what a grade covers.
_NUMBERED: dict[str, tuple[str, dict[str, str], tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "oct3": ("normal amd dme", {"DRUSEN": "amd", "CNV": "amd"}, (), {"amd": _FORMS}),
    "oct4": ("normal drusen dme cnv", {}, ("dme", "cnv"), {}),
    "octdl7": ("normal amd dme erm rvo vid rao", {"NO": "normal"}, (), {"amd": _FORMS}),
    "octid": ("normal amd csr dr mh", {"AMRD": "amd", "ARMD": "amd"}, (), {"amd": _FORMS}),
    "duke3": ("normal amd dme", {}, (), {"amd": ("drusen",)}),
    "isic8": ("mel nv bcc ak bkl df vasc scc", {}, ("mel", "bcc", "ak", "scc"), {}),
}
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
_OTHERS: dict[str, dict[str, Any]] = {
    "heart2": {
        "grades": ("normal", "abnormal"),
        "labels": {"-1": "normal", "1": "abnormal", "normal": "normal", "abnormal": "abnormal"},
        "referable": ("abnormal",),
    },
    "activity8": {
        "grades": tuple(_ACTIVITIES.values()),
        "labels": _ACTIVITIES | {activity: activity for activity in _ACTIVITIES.values()},
    },
}
FUNDUS_PRESETS = ("icdr5", "icdr5_ungradable", "normal_3stages")
OCT_PRESETS = ("oct3", "oct4", "octdl7", "octid", "duke3")
PRESETS_OF: Mapping[Modality, tuple[str, ...]] = MappingProxyType(
    {
        "fundus": FUNDUS_PRESETS,
        "oct": OCT_PRESETS,
        "dermoscopy": ("isic8",),
        "heart_sound": ("heart2",),
        "activity": ("activity8",),
    }
)
PRESETS = tuple(name for names in PRESETS_OF.values() for name in names)


def preset(name: str) -> GradingScheme:
    """A scheme by name, one of `PRESETS`.

    Fundus: "icdr5" is the International Clinical Diabetic Retinopathy scale (Wilkinson et al. 2003);
    "icdr5_ungradable" adds a sixth grade, as DDR does; "normal_3stages" is normal and three stages, where the
    raw grades 3 and 4 merge, as Messidor's do. Referable is moderate and worse (stage 2 and worse), as in
    Gulshan et al., JAMA 2016.

    OCT: "oct4" has the classes of Kermany et al., Cell 2018, and calls referable those that they call urgent;
    "oct3" merges their two forms of AMD; "octdl7" has the classes of OCTDL (Kulyabin et al. 2024), "octid" those of
    OCTID (Gholami et al. 2020), "duke3" those of Srinivasan et al. 2014, whose AMD is the dry form. Every disease of
    these four is referable, which is ours. DR of OCTID is retinopathy and not DME.

    Others: "isic8" has the diagnoses of the ISIC 2019 challenge in its order, 0 to 7; referable are the malignant ones
    and actinic keratosis, which may become so (ours). "heart2" has those of PhysioNet/CinC 2016, -1 normal and 1
    abnormal. "activity8" has the eight activities of PAMAP2 that FedEE uses (they stand in its code alone), under the
    set's own numbers; none is referable.

    Raises:
        SettingsError: There is no such preset.
    """
    if name == "icdr5":
        return GradingScheme(grades=_ICDR, referable=_ICDR[2:])  # type: ignore[call-arg]
    if name == "icdr5_ungradable":
        return GradingScheme(  # type: ignore[call-arg]
            grades=(*_ICDR, "ungradable"), ungradable="ungradable", referable=_ICDR[2:]
        )
    if name == "normal_3stages":
        stages = ("normal", "stage_1", "stage_2", "stage_3")
        labels = {str(number): stage for number, stage in enumerate(stages)}
        return GradingScheme(
            grades=stages,
            labels=labels | {"4": "stage_3"} | {stage: stage for stage in stages},
            referable=stages[2:],
        )
    if name in _NUMBERED:
        return _numbered(*_NUMBERED[name])
    if name in _OTHERS:
        return GradingScheme(**_OTHERS[name])
    raise SettingsError(f"there is no grading scheme {name!r}: use one of {list(PRESETS)}, or list the grades.")


def preset_modality(scheme: GradingScheme | str | None) -> Modality | None:
    """What a grading scheme grades: a preset knows it by its name, a scheme of a site's own does not."""
    return next((kind for kind, names in PRESETS_OF.items() if scheme in names), None)


def site_scheme(settings: SiteDataSettings) -> GradingScheme | None:
    """The scheme that a site's settings name or hold; None where they say none.

    Raises:
        DataError: There is no such preset.
    """
    if not isinstance(settings.scheme, str):
        return settings.scheme
    try:
        return preset(settings.scheme)
    except SettingsError as error:
        raise DataError(str(error)) from error


def site_modality(settings: SiteDataSettings) -> Modality | None:
    """What a site's images are; None where the site does not say. Phantoms are drawn as a job asks."""
    said = settings.modality
    return preset_modality(settings.scheme) if said is None and settings.manifest is not None else said


def _numbered(
    names: str, more: dict[str, str], referable: tuple[str, ...], covers: dict[str, tuple[str, ...]]
) -> GradingScheme:
    """Grades whose raw labels are their numbers and their names, in small letters and in capitals."""
    grades = tuple(names.split())
    labels = {str(number): name for number, name in enumerate(grades)}
    labels |= {spelling: name for name in grades for spelling in (name, name.upper())}
    return GradingScheme(grades=grades, labels=labels | more, referable=referable or grades[1:], covers=covers)
