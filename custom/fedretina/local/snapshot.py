"""What a site carries from one round to the next: its personal tensors and a few figures of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedretina.exchange.payload import Tensors


class Snapshot(NamedTuple):
    """A site's state after a round.

    Attributes:
        tensors: The personal part of the network, by key.
        record: Plain figures that the next round or the report needs (theta, loss, accuracy).
        memory: What the correction keeps at the site (variates, drifts, the last model), by its own names.
    """

    tensors: Tensors
    record: Mapping[str, Any]
    memory: Tensors = MappingProxyType({})
