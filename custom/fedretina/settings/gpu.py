"""What of a machine's graphics cards a site's process may use; the site's own, never a job's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class GpuSettings(BaseModel):
    """Which card a site's work is done on, and how much of its memory it may take.

    Neither changes a figure, as long as the cards are alike. A job's settings say whether a card is used at all.

    Attributes:
        card: Number of the card, as `nvidia-smi` counts, or its UUID, as CUDA_VISIBLE_DEVICES takes both; None takes
            the first that the process is shown. Where FLARE's resource manager gives each job its card, leave it out.
        memory_share: Largest share of the card's memory that torch may take, where several sites or programs use one
            card. An order that needs more fails at this site, and leaves the others' memory alone. About half a GB that
            CUDA itself takes for each process comes on top. 1 sets no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    card: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^(GPU|MIG)-[\w/-]+$")] | None = None
    memory_share: float = Field(default=1.0, gt=0, le=1)
