"""TWEU that stops at a gate, so that a test can hurt a federation in the middle of a round, however fast the machine.

A part of another package, as few_blocks.py.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from torch import Tensor

from fedretina.losses.evidential import TweuObjective
from fedretina.losses.objective import Clock, objective
from fedretina.settings.objective import TweuSettings

GATE = "GATED_TWEU_GATE"
"""In the environment: a file with the first round that may not be trained. Without the file all may.

A name with FEDRETINA_ before it would not reach the processes of a rehearsal.
"""


class GatedTweuSettings(TweuSettings):
    """As "tweu"."""

    name: Literal["gated_tweu"] = "gated_tweu"  # type: ignore[assignment]


@objective(GatedTweuSettings)
class GatedTweu(TweuObjective):
    """The objective of TWEU, once the gate lets its round pass."""

    def score(self, logits: Tensor, labels: Tensor, clock: Clock) -> Tensor:
        """See `Objective.score`."""
        while clock.round >= _held():
            time.sleep(0.05)
        return super().score(logits, labels, clock)


def _held() -> float:
    with suppress(FileNotFoundError, KeyError):
        return int(Path(os.environ[GATE]).read_text())
    return float("inf")
