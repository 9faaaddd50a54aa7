"""Which eye a photograph shows: the words for it, and what a file's name says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Literal

Eye = Literal["left", "right", ""]
EYES: Mapping[str, Eye] = MappingProxyType(
    {
        **dict.fromkeys(("left", "l", "os", "le"), "left"),
        **dict.fromkeys(("right", "r", "od", "re"), "right"),
    }
)
"""Words for an eye, in small letters."""
NAMED = re.compile(r"(?P<base>.+)(?P<mark>[ _.-])(?P<word>left|right|os|od|l|r)", re.IGNORECASE | re.DOTALL)
"""A name without its ending whose last word is one of an eye."""


def named_eye(file: str) -> Eye:
    """The eye that a file's name says with its last word, as 10_left.png and a7-OD.jpg do; "" where it says none.

    A lone L or R may mean anything and says none.
    """
    found = NAMED.fullmatch(PurePosixPath(file).stem)
    word = "" if found is None else found["word"].lower()
    return EYES[word] if len(word) > 1 else ""
