"""Bytes of a step between the server and a site, as the partition has them."""

from __future__ import annotations

from typing import NamedTuple

from fedretina.exchange.partition import Partition
from fedretina.settings.scalars import Task


class Traffic(NamedTuple):
    """Bytes of tensors; names, stamps and scalars, some kB a message, are not counted.

    Attributes:
        up: From sites to the server.
        down: From the server to sites.
    """

    up: int
    down: int

    @property
    def both(self) -> int:
        """Up and down together."""
        return self.up + self.down


def site_traffic(parts: Partition, task: Task = "train") -> Traffic:
    """Bytes that one site sends and is sent in one step.

    It is a plan. What a run moved stands in its results (`bytes_up`, `bytes_down` of each step), and is less where a
    site did not answer or gradients travel sparse, and more where they travel encrypted: a part that is to be sealed is
    counted here at its plain size. Papers that count uploads alone, as the OCT paper does, print half of `both`; those
    that forget the controls of SCAFFOLD print a quarter.

    Args:
        parts: What travels.
        task: The step.
    """
    down = {"train": parts.travelling, "finalise": (*parts.shared, *parts.calibrator)}.get(task, parts.shared)
    return Traffic(up=_bytes(parts, parts.sent(task)), down=_bytes(parts, down))


def _bytes(parts: Partition, keys: tuple[str, ...]) -> int:
    return sum(parts.sizes[key][1] for key in keys)
