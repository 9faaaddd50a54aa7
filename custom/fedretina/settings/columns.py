"""The optional columns of a manifest: what may stand in them, and which of them tell subgroups of patients.

A column with a list of values can be counted over hospitals, since its words are those of this list and never a
hospital's own. The others, such as the camera, are words of the site's, and stay there: a camera's own name may tell
whose it is, so cameras are counted over hospitals by their maker.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Column = Literal["camera", "camera_maker", "sex", "age_band", "eye", "quality", "first_visit", "macular_oedema"]
"""Columns that a site may have read."""
Counted = Literal["camera_maker", "sex", "age_band", "eye", "quality", "first_visit"]
"""Those of them whose sums a site may let go."""

LONGEST = 40
MOST_VALUES = 20


class ColumnRule(NamedTuple):
    """What may stand in a column; an empty cell always may, and means that nothing is known.

    Attributes:
        words: Each word that may stand there, in small letters, to the value that it means; empty where the site's own
            words stand there, at most `LONGEST` characters each and `MOST_VALUES` of them.
        of_patient: Whether all images of a patient must have the same.
    """

    words: Mapping[str, str]
    of_patient: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """What the words mean, in order."""
        return tuple(dict.fromkeys(self.words.values()))


def _words(**spellings: str) -> Mapping[str, str]:
    return MappingProxyType({word: value for value, listed in spellings.items() for word in [value, *listed.split()]})


_YES_NO = _words(yes="y true 1", no="n false 0")
COLUMNS: Mapping[Column, ColumnRule] = MappingProxyType(
    {
        "camera": ColumnRule(MappingProxyType({})),
        "camera_maker": ColumnRule(
            _words(
                canon="",
                centervue="icare",
                crystalvue="",
                heidelberg="",
                kowa="",
                nidek="",
                optomed="",
                optos="",
                optovue="",
                remidio="",
                topcon="",
                zeiss="",
                other="",
            )
        ),
        "sex": ColumnRule(_words(female="f w", male="m"), of_patient=True),
        "age_band": ColumnRule(
            _words(
                under_40="<40 0-39",
                from_40="40-49",
                from_50="50-59",
                from_60="60-69",
                from_70="70+ >=70 70-79 80+ 80-89",
            )
        ),
        "eye": ColumnRule(_words(left="l os le", right="r od re")),
        "quality": ColumnRule(_words(good="", usable="adequate acceptable", poor="reject bad")),
        "first_visit": ColumnRule(_YES_NO),
        "macular_oedema": ColumnRule(_YES_NO),
    }
)
SUBGROUPS: tuple[Column, ...] = ("camera", "camera_maker", "sex", "age_band", "eye", "quality", "first_visit")
"""The columns by which figures are told apart."""
COUNTED: tuple[Counted, ...] = ("camera_maker", "sex", "age_band", "eye", "quality", "first_visit")
PARTS = ("ill", "found", "well", "cleared")
"""What is summed of a subgroup's patients: with referable disease, found of them; without it, cleared of them."""


def sum_name(column: str, value: str, part: str) -> str:
    """Name of the scalar that holds a subgroup's sum, such as `group_sex_female_ill`."""
    return f"group_{column}_{value}_{part}"


GROUP_SUMS: Mapping[str, str] = MappingProxyType(
    {sum_name(column, value, part): column for column in COUNTED for value in COLUMNS[column].values for part in PARTS}
)
"""Every such name, to the column that it tells of."""
