"""torch's optimisers without its compiler, which their first use would import: 1.5 s in the process of every task."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class EagerSGD(torch.optim.SGD):
    """`torch.optim.SGD`, to be stepped by `eager_step`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without the wrapper that keeps it out of compiled graphs."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


class EagerAdam(torch.optim.Adam):
    """`torch.optim.Adam`, to be stepped by `eager_step`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, without the wrapper that keeps it out of compiled graphs."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)


def eager_step(optimiser: torch.optim.Optimizer) -> None:
    """Step as `optimiser.step()` does, to the last bit, where nothing is compiled.

    Args:
        optimiser: One that is not differentiable; its hooks are not called.
    """
    with torch.no_grad():
        inspect.unwrap(type(optimiser).step)(optimiser)
