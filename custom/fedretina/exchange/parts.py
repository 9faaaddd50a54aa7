"""What travels and what stays of one network, key by key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fedretina.settings.exchange import Kind
from fedretina.settings.scalars import Task

CONTROL = "control:"
"""Prefix of the control that goes beside a parameter."""
KEY = "key:"
"""Prefix of what travels of a key network, beside the encoder and projector that it follows."""
STATISTIC, MEAN, VARIANCE = "statistic:", ".mean", ".variance"
"""Prefix and endings of what a site says of its activations."""
GRAM, MOMENT = "calibration:gram", "calibration:moment"
"""What a site says of its features once, for temperatures per image."""
CONTRAST = "contrast"
"""The network's part that only label-free training has."""


class Moving(NamedTuple):
    """What of the network goes both ways in one kind of training step.

    Attributes:
        shared: Keys of the network, sorted.
        parameters: Those of them that are parameters, not buffers.
        controls: Keys of the controls beside these, sorted.
        keys: Keys of the key network beside them, sorted.
    """

    shared: tuple[str, ...]
    parameters: tuple[str, ...]
    controls: tuple[str, ...]
    keys: tuple[str, ...] = ()

    @property
    def mixed(self) -> tuple[str, ...]:
        """What the server takes the weighted mean of."""
        return (*self.shared, *self.keys)

    @property
    def travelling(self) -> tuple[str, ...]:
        """All keys that the step sends, both ways."""
        return (*self.shared, *self.controls, *self.keys)


@dataclass(frozen=True)
class Partition:
    """What travels and what stays of one network, fixed for a run.

    Attributes:
        kinds: The kind of every key of the network's `state_dict`, and of the controls.
        shared: The keys of the network that travel, sorted.
        personal: All other keys of the network, sorted.
        parameters: The shared keys that are parameters, not buffers.
        controls: Keys of the controls that travel beside them, sorted; none without such a correction.
        statistics: Keys of the activations' statistics that a site sends once; none without such an aggregation.
        moments: Keys of the sums of features that a site sends once, after training; none without a calibrator.
        calibrator: Keys of the calibrator, which come down once, at the end; they count as personal.
        shapes: Shapes of all keys that a site may send or be sent.
        dtypes: Their dtypes.
        sizes: For every key, how many numbers and how many bytes it holds.
        sealed: The shared keys that travel encrypted, sorted; their shapes and dtypes are those of what is inside.
        keys: Keys of the key network's tensors that travel in label-free training, sorted; none unless it is averaged.
    """

    kinds: Mapping[str, Kind]
    shared: tuple[str, ...]
    personal: tuple[str, ...]
    parameters: tuple[str, ...]
    controls: tuple[str, ...]
    statistics: tuple[str, ...]
    moments: tuple[str, ...]
    calibrator: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    sizes: Mapping[str, tuple[int, int]]
    sealed: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def travelling(self) -> tuple[str, ...]:
        """All keys that any training step sends, both ways."""
        return (*self.shared, *self.controls, *self.keys)

    def moving(self, task: Task) -> Moving:
        """What of the network a task moves: label-free training the encoder and its contrast layers, all else the rest.

        Where there are no contrast layers, every task but the label-free one moves all that travels.
        """

        def moves(key: str) -> bool:
            part = key.removeprefix(CONTROL).partition(".")[0]
            return part in ("encoder", CONTRAST) if task == "pretrain" else part != CONTRAST

        shared, parameters, controls = (
            tuple(filter(moves, keys)) for keys in (self.shared, self.parameters, self.controls)
        )
        return Moving(shared, parameters, controls, self.keys if task == "pretrain" else ())

    def sent(self, task: Task) -> tuple[str, ...]:
        """Keys that a site's answer to a task holds."""
        if task in ("train", "pretrain"):
            return self.moving(task).travelling
        return {"prepare": self.statistics, "calibrate": self.moments}.get(task, ())

    @property
    def sendable(self) -> tuple[str, ...]:
        """All keys that a site ever sends."""
        return (*self.travelling, *self.statistics, *self.moments)

    @property
    def receivable(self) -> tuple[str, ...]:
        """All keys that a site is ever sent."""
        return (*self.travelling, *self.calibrator)

    def shared_kinds(self) -> frozenset[Kind]:
        """Return the kinds that travel."""
        return frozenset(self.kinds[key] for key in self.sendable)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Tensors and numbers of each kind, told apart by whether it travels: "encoder", "norm, at home"."""
        sums: dict[str, dict[str, Any]] = {}
        for travels, keys in ((True, self.sendable), (False, self.personal)):
            for key in keys:
                name = self.kinds[key].value if travels else f"{self.kinds[key].value}, at home"
                entry = sums.setdefault(name, {"tensors": 0, "values": 0, "travels": travels})
                entry["tensors"] += 1
                entry["values"] += self.sizes[key][0]
        return dict(sorted(sums.items()))

    def digest(self) -> str:
        """Return the sha256 (64 hex digits) of the travelling keys with their kinds, shapes and dtypes.

        It does not depend on what stays: sites with different grades agree when the head is personal.
        """
        rows = [[k, self.kinds[k], self.shapes[k], str(self.dtypes[k])] for k in self.sendable]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def table(self) -> str:
        """Return a printable summary: each kind's tensors, numbers and bytes, and whether it travels."""
        sums: dict[tuple[str, str], list[int]] = {}
        for way, keys in (("travels", self.sendable), ("stays", self.personal)):
            for key in keys:
                numbers, size = self.sizes[key]
                for name in (self.kinds[key].value, "all"):
                    row = sums.setdefault((name, way), [0, 0, 0])
                    row[:] = row[0] + 1, row[1] + numbers, row[2] + size
        order = [*(kind.value for kind in Kind), "all"]
        lines = [f"{'kind':<10} {'':<8}{'tensors':>8} {'numbers':>12} {'bytes':>13}"]
        for name, way in sorted(sums, key=lambda row: (order.index(row[0]), row[1] == "stays")):
            tensors, numbers, size = sums[name, way]
            lines.append(f"{name:<10} {way:<8}{tensors:>8} {numbers:>12,} {size:>13,}")
        return "\n".join(lines)
