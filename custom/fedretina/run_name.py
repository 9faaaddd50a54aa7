"""The name of a run: where a job tells it, and one for a run that nobody named."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedretina.experiment import Experiment

RUN_KEY = "fedretina_run"
"""Entry of a job's `meta.json` that tells FLARE's list of jobs which run it belongs to."""


def new_run_name(experiment: Experiment) -> str:
    """The experiment's name, the time (UTC) and four random digits, such as `feduaa-20261121-084047-e50c`."""
    return f"{experiment.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
