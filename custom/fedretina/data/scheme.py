"""A hospital's own grading scheme: its grades in order, and the raw labels that mean them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedretina.data.modality import Modality
from fedretina.errors import DataError, SettingsError

_ICDR = ("no_dr", "mild", "moderate", "severe", "proliferative")
_FORMS = ("drusen", "cnv")  # of AMD
# Grades, other raw labels, referable grades where not all diseases are, and what a grade covers.
_OCT: dict[str, tuple[str, dict[str, str], tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "oct3": ("normal amd dme", {"DRUSEN": "amd", "CNV": "amd"}, (), {"amd": _FORMS}),
    "oct4": ("normal drusen dme cnv", {}, ("dme", "cnv"), {}),
    "octdl7": ("normal amd dme erm rvo vid rao", {"NO": "normal"}, (), {"amd": _FORMS}),
    "octid": ("normal amd csr dr mh", {"AMRD": "amd", "ARMD": "amd"}, (), {"amd": _FORMS}),
    "duke3": ("normal amd dme", {}, (), {"amd": ("drusen",)}),
}
_SKIN = ("mel", "nv", "bcc", "ak", "bkl", "df", "vasc", "scc")
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
    "isic8": {
        "grades": _SKIN,
        "labels": {str(number): name for number, name in enumerate(_SKIN)}
        | {spelling: name for name in _SKIN for spelling in (name, name.upper())},
        "referable": ("mel", "bcc", "ak", "scc"),
    },
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
OCT_PRESETS = tuple(_OCT)
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


class GradingScheme(BaseModel):
    """The grades of one site.

    Grades differ between hospitals, so a scheme is a setting of the site and never of the job.

    Attributes:
        grades: Names of the grades in order, the healthy one first; at least two, all different.
        labels: Raw label, as text in the manifest, to the name of its grade. Several raw labels may share a
            grade. By default "0", "1", ... mean the grades in order, and each grade's name means itself.
        ungradable: The grade of images that nobody can grade, by convention the last; None where there is none.
        referable: The grades that a doctor must see (referable disease), without the ungradable one; empty where
            the site has not said.
        covers: Name of a grade to the classes of a federation that it stands for, where sites share classes and tell
            them apart unlike: "amd" of one site is "drusen" or "cnv" of another. A grade that is not named here stands
            for the class of its own name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    grades: tuple[str, ...]
    labels: dict[str, str]
    ungradable: str | None = None
    referable: tuple[str, ...] = ()
    covers: dict[str, tuple[str, ...]] = {}

    @model_serializer(mode="wrap")
    def _without_empty(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Schemes that cover their own names are stored, and fingerprinted, as before there was this field.
        words: dict[str, Any] = plain(self)
        if not self.covers:
            words.pop("covers", None)
        return words

    @model_validator(mode="before")
    @classmethod
    def _fill_labels(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("labels") or not isinstance(values.get("grades"), list | tuple):
            return values
        grades = values["grades"]
        labels = {str(number): name for number, name in enumerate(grades)}
        return {**values, "labels": labels | {name: name for name in grades if isinstance(name, str)}}

    @model_validator(mode="after")
    def _check(self) -> GradingScheme:
        if len(self.grades) < 2:
            raise ValueError(f"a grading scheme needs at least two grades, found {len(self.grades)}: name them all.")
        if any(not name or name != name.strip() for name in self.grades):
            raise ValueError("a grade's name is empty or has blanks around it: write plain names.")
        if len(set(self.grades)) != len(self.grades):
            raise ValueError(f"a grade is named twice in {list(self.grades)}: each name stands for one grade.")
        strangers = sorted(set(self.labels.values()) - set(self.grades))
        if strangers:
            raise ValueError(f"labels name {strangers}, which are not grades: use names of {list(self.grades)}.")
        unused = [name for name in self.grades if name not in self.labels.values()]
        if unused:
            raise ValueError(f"no raw label means {unused}: add one for each, or leave the grades out.")
        if self.ungradable is not None and self.ungradable not in self.grades:
            raise ValueError(f"ungradable is {self.ungradable!r}: it must be one of {list(self.grades)}.")
        if not set(self.referable) < set(self.grades) or self.ungradable in self.referable:
            raise ValueError(
                f"referable is {list(self.referable)}: name some of {list(self.grades)}, not all of them, and not the "
                "ungradable grade, which is always referred."
            )
        self._check_covers()
        return self

    def _check_covers(self) -> None:
        strangers = sorted(set(self.covers) - set(self.grades))
        if strangers:
            raise ValueError(f"covers names {strangers}, which are not grades: use names of {list(self.grades)}.")
        empty = [grade for grade, names in self.covers.items() if not names]
        if empty:
            raise ValueError(f"covers gives {empty} no class: name those that it stands for, or leave the grade out.")
        named = Counter(name for grade in self.grades for name in set(self.covers.get(grade, ())))
        twice = sorted(name for name, count in named.items() if count > 1)
        if twice:
            raise ValueError(f"covers gives {twice} to more than one grade: a class belongs to one grade of a site.")

    @property
    def num_classes(self) -> int:
        """How many grades the site tells apart."""
        return len(self.grades)

    @property
    def referable_classes(self) -> tuple[int, ...]:
        """Classes of the referable grades, in order; empty where the site has not said."""
        return tuple(at for at, name in enumerate(self.grades) if name in self.referable)

    @property
    def ungradable_class(self) -> int | None:
        """Class of the ungradable grade, or None."""
        return None if self.ungradable is None else self.grades.index(self.ungradable)

    def cover(self, shared: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Which of a federation's classes each grade stands for.

        A grade whose own name is shared stands for that class alone, so one scheme serves federations that tell
        "amd" and others that tell "drusen" from "cnv". Classes that no grade stands for are those that the site
        cannot label.

        Args:
            shared: Names of the federation's classes, in order.

        Returns:
            For each grade, in order, the places in `shared` of its classes, ascending; no place comes twice.

        Raises:
            DataError: A grade stands for a class that is not shared, or for one that another grade stands for.
        """
        taken: dict[str, str] = {}
        found = []
        for grade in self.grades:
            names = (grade,) if grade in shared else self.covers.get(grade, (grade,))
            strangers = [name for name in names if name not in shared]
            if strangers:
                raise DataError(
                    f"grade {grade!r} stands for {strangers}, but the sites share {list(shared)}: say under `covers` "
                    "which of these it stands for, or take the grade and its images out."
                )
            for name in names:
                if taken.setdefault(name, grade) != grade:
                    raise DataError(
                        f"grades {taken[name]!r} and {grade!r} both stand for {name!r}: give each class to one grade "
                        "under `covers`."
                    )
            found.append(tuple(sorted({list(shared).index(name) for name in names})))
        return tuple(found)

    def index(self, raw: str | int) -> int:
        """Turn a raw label into its class, 0 to `num_classes` - 1.

        Raises:
            DataError: The label is not in the scheme; names what was found and what is allowed.
        """
        name = self.labels.get(str(raw).strip())
        if name is None:
            raise DataError(f"label {str(raw)!r} is not in the grading scheme: allowed are {sorted(self.labels)}.")
        return self.grades.index(name)


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
    if name in _OCT:
        return _oct(*_OCT[name])
    if name in _OTHERS:
        return GradingScheme(**_OTHERS[name])
    raise SettingsError(f"there is no grading scheme {name!r}: use one of {list(PRESETS)}, or list the grades.")


def _oct(
    names: str, more: dict[str, str], referable: tuple[str, ...], covers: dict[str, tuple[str, ...]]
) -> GradingScheme:
    """Grades whose raw labels are their numbers and their names, in small letters and in capitals."""
    grades = tuple(names.split())
    labels = {str(number): name for number, name in enumerate(grades)}
    labels |= {spelling: name for name in grades for spelling in (name, name.upper())}
    return GradingScheme(grades=grades, labels=labels | more, referable=referable or grades[1:], covers=covers)


def preset_modality(scheme: GradingScheme | str | None) -> Modality | None:
    """What a grading scheme grades: a preset knows it by its name, a scheme of a site's own does not."""
    return next((kind for kind, names in PRESETS_OF.items() if scheme in names), None)
