"""A hospital's own grading scheme: its grades in order, and the raw labels that mean them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator

from fedretina.errors import DataError, SettingsError
from fedretina.settings.choice import load_parts
from fedretina.settings.scheme_presets import SCHEMES

_WHOLE = re.compile(r"([+-]?[0-9]+)[.,]0+")


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
        vision_threatening: The grades with which sight is at stake: severe retinopathy or worse, macular oedema where
            it is a grade. Figures for it stand beside those for referable disease. Empty where the site has not said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    grades: tuple[str, ...]
    labels: dict[str, str]
    ungradable: str | None = None
    referable: tuple[str, ...] = ()
    covers: dict[str, tuple[str, ...]] = {}
    vision_threatening: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _without_empty(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Schemes that cover their own names are stored, and fingerprinted, as before there was this field.
        settings: dict[str, Any] = plain(self)
        for name in ("covers", "vision_threatening"):
            if not getattr(self, name):
                settings.pop(name, None)
        return settings

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
        unknown = sorted(set(self.labels.values()) - set(self.grades))
        if unknown:
            raise ValueError(f"labels name {unknown}, which are not grades: use names of {list(self.grades)}.")
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
        if not set(self.vision_threatening) < set(self.grades) or self.ungradable in self.vision_threatening:
            raise ValueError(
                f"vision_threatening is {list(self.vision_threatening)}: name some of {list(self.grades)}, not all of "
                "them, and not the ungradable grade."
            )
        self._check_covers()
        return self

    def _check_covers(self) -> None:
        unknown = sorted(set(self.covers) - set(self.grades))
        if unknown:
            raise ValueError(f"covers names {unknown}, which are not grades: use names of {list(self.grades)}.")
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
    def threatening_classes(self) -> tuple[int, ...]:
        """Classes of the vision-threatening grades, in order; empty where the site has not said."""
        return tuple(at for at, name in enumerate(self.grades) if name in self.vision_threatening)

    @property
    def ungradable_class(self) -> int | None:
        """Class of the ungradable grade, or None."""
        return None if self.ungradable is None else self.grades.index(self.ungradable)

    def first_classes(self, ordered: bool) -> frozenset[int]:
        """Classes that a doctor must see before all others.

        The vision-threatening ones where the site names them. Else the upper half of the referable ones where grades
        have an order (severe and proliferative, where moderate is referable too), and all of these where they are kinds
        of disease.

        Args:
            ordered: See `ImageSettings.ordered`.
        """
        ill = self.referable_classes
        return frozenset(self.threatening_classes or (ill[len(ill) // 2 :] if ordered else ill))

    def severity(self, grade: int, ordered: bool) -> int:
        """How bad a class is beside the others, from 0; kinds of disease of which none comes first are alike.

        Args:
            grade: The class.
            ordered: See `ImageSettings.ordered`.
        """
        band = (grade in self.first_classes(ordered)) + (grade in self.referable_classes)
        if grade == self.ungradable_class:
            band = 3  # nothing is known of it
        return band * self.num_classes + (grade if ordered else 0)

    def worst(self, found: Iterable[int], ordered: bool) -> tuple[int, ...]:
        """The worst of some classes: one where grades have an order, else all that are as bad; empty for none.

        Ungradable counts only where there is no other.

        Args:
            found: Classes.
            ordered: See `ImageSettings.ordered`.
        """
        each = set(found)
        kept = each - {self.ungradable_class} or each
        top = max((self.severity(grade, ordered) for grade in kept), default=0)
        return tuple(sorted(grade for grade in kept if self.severity(grade, ordered) == top))

    def cover(self, shared: Sequence[str], outside: bool = False) -> tuple[tuple[int, ...], ...]:
        """Which of a federation's classes each grade stands for.

        A grade whose own name is shared stands for that class alone, so one scheme serves federations that tell
        "amd" and others that tell "drusen" from "cnv". Classes that no grade stands for are those that the site
        cannot label.

        Args:
            shared: Names of the federation's classes, in order.
            outside: Whether a grade may stand for none of them. Only one that `covers` does not name does: a class
                that is named there and not shared is a mistake.

        Returns:
            For each grade, in order, the places in `shared` of its classes, ascending; no place comes twice. Empty for
            a grade outside of them.

        Raises:
            DataError: A grade stands for a class that is not shared, or for one that another grade stands for.
        """
        taken: dict[str, str] = {}
        found = []
        for grade in self.grades:
            names = (grade,) if grade in shared else self.covers.get(grade, () if outside else (grade,))
            unknown = [name for name in names if name not in shared]
            if unknown:
                raise DataError(
                    f"grade {grade!r} stands for {unknown}, but the sites share {list(shared)}: say under `covers` "
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
        """Turn a raw label into its class, 0 to `num_classes` - 1; "2.0" and "2,0" are "2" where that is a label.

        Raises:
            DataError: The label is not in the scheme; names what was found and what is allowed.
        """
        plain = str(raw).strip()
        name = self.labels.get(plain) or self.labels.get(whole_label(plain))
        if name is None:
            raise DataError(
                f"label {str(raw)!r} is not in the grading scheme: allowed are {sorted(self.labels)}: correct "
                "it, or name the scheme that the site grades by."
            )
        return self.grades.index(name)


def _is_known(name: str) -> bool:
    if name not in SCHEMES:
        load_parts()
    return name in SCHEMES


def preset(name: str) -> GradingScheme:
    """A scheme by name, one of `SCHEMES`.

    Raises:
        SettingsError: There is no such preset.
    """
    if not _is_known(name):
        raise SettingsError(f"there is no grading scheme {name!r}: use one of {list(SCHEMES)}, or list the grades.")
    scheme = SCHEMES[name]
    return GradingScheme(
        grades=scheme.grades,
        labels=dict(scheme.labels),
        ungradable=scheme.ungradable,
        referable=scheme.referable,
        covers=dict(scheme.covers),
        vision_threatening=scheme.vision_threatening,
    )


def preset_modality(scheme: GradingScheme | str | None) -> str | None:
    """What a grading scheme grades: a preset knows it by its name, a scheme of a site's own does not."""
    return SCHEMES[scheme].modality if isinstance(scheme, str) and _is_known(scheme) else None


def whole_label(raw: str) -> str:
    """A label without the ".0" or ",0" that spreadsheets and data frames write behind whole numbers."""
    found = _WHOLE.fullmatch(raw)
    return found[1] if found else raw


def in_words(grade: str) -> str:
    """A grade's name as one reads it: "no_dr" is "no DR"."""
    return " ".join(word.upper() if word in {"dr", "dme", "amd", "cnv"} else word for word in grade.split("_"))
