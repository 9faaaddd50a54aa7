"""Going back: the mark with which a job says that its run starts again from one of its steps."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

ROUNDS_BACK = 3
"""By how many of its last rounds a run can go back: the server keeps their models, each site its own part for them.
Beyond that there is the run's first step, which needs nothing."""


class RestartSettings(BaseModel):
    """Where a run starts again; `fedretina resume RUN --from STEP` writes it.

    Attributes:
        step: Name of the step, such as `train-0001`: it is done again, and all after it. What came before stays.
        mark: Tells one going back from another: server and site do each once, however often the job is started.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    step: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    mark: str = Field(pattern=r"^[a-z0-9]{4,32}$")
