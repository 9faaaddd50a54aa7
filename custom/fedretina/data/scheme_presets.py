"""Grading schemes by name: ONE list of the scales and classes of published sets; a new one is an entry here.

Names of options are taken from this list, so the module imports nothing that help would have to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedretina.errors import DataError, SettingsError

if TYPE_CHECKING:
    from fedretina.settings.images import Modality
    from fedretina.settings.scheme import GradingScheme
    from fedretina.settings.site import SiteDataSettings


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
    """

    modality: Modality
    source: str
    grades: tuple[str, ...]
    labels: Mapping[str, str]
    referable: tuple[str, ...] = ()
    ungradable: str | None = None
    covers: Mapping[str, tuple[str, ...]] = MappingProxyType({})


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
    modality: Modality, source: str, grades: str, labels: Mapping[str, str] = MappingProxyType({}), **more: Any
) -> SchemePreset:
    """Classes without a degree, under their numbers and names; all but the first are referable if nothing is said."""
    names = tuple(grades.split())
    raw = _numbers(names) | _names(names, capitals=True) | dict(labels)
    return SchemePreset(modality, source, names, raw, **({"referable": names[1:]} | more))


SCHEMES: Mapping[str, SchemePreset] = MappingProxyType(
    {
        # Fundus. Referable is moderate and worse (stage 2 and worse), as in Gulshan et al., JAMA 2016.
        "icdr5": SchemePreset(
            "fundus",
            "International Clinical Diabetic Retinopathy scale, Wilkinson et al. 2003",
            _ICDR,
            _numbers(_ICDR) | _names(_ICDR),
            _ICDR[2:],
        ),
        "icdr5_ungradable": SchemePreset(
            "fundus",
            "the same with a sixth grade, as DDR has",
            _ICDR6,
            _numbers(_ICDR6) | _names(_ICDR6),
            _ICDR[2:],
            "ungradable",
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
)
PRESETS = tuple(SCHEMES)


def presets_of(modality: Modality) -> tuple[str, ...]:
    """The names of the schemes that grade a modality."""
    return tuple(name for name, scheme in SCHEMES.items() if scheme.modality == modality)


def preset(name: str) -> GradingScheme:
    """A scheme by name, one of `PRESETS`.

    Raises:
        SettingsError: There is no such preset.
    """
    from fedretina.settings.scheme import GradingScheme

    if name not in SCHEMES:
        raise SettingsError(f"there is no grading scheme {name!r}: use one of {list(PRESETS)}, or list the grades.")
    scheme = SCHEMES[name]
    return GradingScheme(
        grades=scheme.grades,
        labels=dict(scheme.labels),
        ungradable=scheme.ungradable,
        referable=scheme.referable,
        covers=dict(scheme.covers),
    )


def preset_modality(scheme: GradingScheme | str | None) -> Modality | None:
    """What a grading scheme grades: a preset knows it by its name, a scheme of a site's own does not."""
    return SCHEMES[scheme].modality if isinstance(scheme, str) and scheme in SCHEMES else None


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
