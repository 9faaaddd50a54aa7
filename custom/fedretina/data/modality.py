"""The kinds of data that a run can take, by name."""

from __future__ import annotations

from typing import Literal, get_args

Modality = Literal["fundus", "oct", "dermoscopy", "heart_sound", "activity"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
SIGNALS: frozenset[Modality] = frozenset(("heart_sound", "activity"))
"""Those whose files are WAV files and no pictures."""
