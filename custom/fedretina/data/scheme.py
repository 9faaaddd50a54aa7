"""A hospital's own grading scheme: its grades in order, and the raw labels that mean them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from fedretina.errors import DataError, SettingsError

_ICDR = ("no_dr", "mild", "moderate", "severe", "proliferative")


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
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    grades: tuple[str, ...]
    labels: dict[str, str]
    ungradable: str | None = None
    referable: tuple[str, ...] = ()

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
        return self

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
    """A scheme by name.

    "icdr5" is the International Clinical Diabetic Retinopathy scale (Wilkinson et al. 2003);
    "icdr5_ungradable" adds a sixth grade, as DDR does; "normal_3stages" is normal and three stages, where the
    raw grades 3 and 4 merge, as Messidor's do. Referable is moderate and worse (stage 2 and worse), as in
    Gulshan et al., JAMA 2016.

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
    raise SettingsError(
        f"there is no grading scheme {name!r}: use 'icdr5', 'icdr5_ungradable' or 'normal_3stages', or list the grades."
    )
