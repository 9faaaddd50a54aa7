"""The classes that a job may name: the one list for startup kits, the site's filter, exported jobs and their tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FILTER = "fedretina.flare.whitelist_filter.WhitelistFilter"

OWN_CLASSES = (
    "fedretina.flare.aggregator.SpoolAggregator",
    "fedretina.flare.controller.RoundController",
    "fedretina.flare.executor.TrainerExecutor",
    "fedretina.flare.learner.TrainerLearner",
    "fedretina.flare.server_run.ServerRun",
    FILTER,
)
"""Of this package, each by its full name: a prefix would let a job build anything that the package holds."""

FLARE_CLASSES = ("nvflare.app_common.executors.model_learner_executor.ModelLearnerExecutor",)
"""Of FLARE, those that the jobs of this package use."""

ALLOWED_CLASSES = (*OWN_CLASSES, *FLARE_CLASSES)

RESULT_FILTERS = frozenset({FILTER})
"""Filters that a job may put behind a site's own: they pass or refuse, and never add."""

_NAMES = ("path", "class_path", "name")


def classes_named(config: Any) -> Iterator[str]:
    """List every class that a job's configuration asks FLARE to build, however deep.

    FLARE may take any object with `path`, `class_path` or `name` for a component, so each such word counts.
    """
    if isinstance(config, dict):
        yield from (config[key] for key in _NAMES if isinstance(config.get(key), str))
        for value in config.values():
            yield from classes_named(value)
    elif isinstance(config, list):
        for value in config:
            yield from classes_named(value)
