"""The model as the server holds it: where a run starts, what each step begins with, and what of it goes down."""

from __future__ import annotations

import torch

from fedretina.aggregation.lineage import Lineage
from fedretina.aggregation.run_store import RunStore
from fedretina.exchange.parts import CONTROL, KEY, Partition
from fedretina.exchange.payload import Tensors, tensors_bytes
from fedretina.local.encoder_ending import write_encoder
from fedretina.networks.network import Network
from fedretina.settings.experiment import Experiment


class ServerModel:
    """Reads the models that steps have stored, one at a time; what was mixed last is kept at hand.

    Args:
        experiment: The run's settings.
        net: The network as the seed gives it.
        parts: What travels of it.
        store: The run's stored models.
        lineage: Says which of them the running step begins with.
    """

    def __init__(
        self, experiment: Experiment, net: Network, parts: Partition, store: RunStore, lineage: Lineage
    ) -> None:
        self._experiment = experiment
        self._parts = parts
        self._store = store
        self._lineage = lineage
        start = net.state_dict()
        self._start = {
            # Nothing is sealed yet: each site starts its head from the seed, as the server would.
            **{key: start[key].clone() for key in parts.shared if key not in parts.sealed},
            **{key: torch.zeros(parts.shapes[key]) for key in parts.controls},
            **{key: start[key.removeprefix(KEY)].clone() for key in parts.keys},
        }
        self._start_encoder = {key: value for key, value in start.items() if key.startswith("encoder.")}
        self._normalisation = net.normalisation
        self._at_hand: tuple[tuple[int, str], Tensors] | None = None

    def state(self, site: str = "") -> Tensors:
        """The model that the running step starts from, with all that the server keeps beside it.

        Args:
            site: Whose, where the aggregation keeps a model a site; else empty.
        """
        base = self._lineage.base
        if self._at_hand is None or self._at_hand[0] != (base, site):
            self._at_hand = (base, site), self._start if base < 0 else self._store.model(base, site)
        state = self._at_hand[1]
        if not self._lineage.begins_anew:
            return state
        # Controls, memories and key networks belong to an objective: another one begins with none.
        fresh = {key: torch.zeros_like(state[key.removeprefix(CONTROL)]) for key in self._parts.controls}
        fresh |= {key: state[key.removeprefix(KEY)].clone() for key in self._parts.keys}
        return {**{key: state[key] for key in self._parts.shared if key in state}, **fresh}

    def learned(self, step: int, mixed: Tensors) -> None:
        """Keep at hand what a step gave, which the next will most likely begin with."""
        self._at_hand = (step, ""), mixed

    def down(self, site: str = "") -> Tensors:
        """The tensors that go down with the running step's order.

        Args:
            site: To whom, where the aggregation keeps a model a site; else empty.
        """
        state, calibrated = self.state(site), self._lineage.calibrated
        state = state if calibrated is None else {**state, **self._store.model(calibrated)}
        return {key: state[key] for key in self._down_keys() if key in state}

    def bytes_down(self) -> int:
        """Bytes of these tensors to one site; counted, not read, where nothing is sealed."""
        plain = sum(self._parts.sizes[key][1] for key in self._down_keys() if key not in self._parts.sealed)
        state = self.state() if self._parts.sealed else {}
        down = set(self._parts.sealed) & set(self._down_keys())
        return plain + tensors_bytes({key: state[key] for key in sorted(down) if key in state})

    def write_encoder(self, run: str) -> None:
        """Write the pre-trained encoder where all of it travels; with BatchNorm at home only the sites can."""
        state, own = self.state(), self._start_encoder
        if all(key in state or key.endswith(".num_batches_tracked") for key in own):
            whole = {key: state.get(key, value) for key, value in own.items()}
            write_encoder(self._store.folder, run, self._experiment, whole, self._normalisation)

    def _down_keys(self) -> tuple[str, ...]:
        task = self._lineage.step.task
        # A run without labels ends with what its training moved.
        ends = "pretrain" if task == "finalise" and not self._experiment.supervised else task
        moving = self._parts.moving(ends)
        if task == "finalise":
            return (*moving.shared, *self._parts.calibrator)
        return moving.travelling if self._lineage.learns else moving.shared
