"""Which model a step begins with, which are still needed, and what a site's last accepted step was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedretina.aggregation.run_store import RunStore
from fedretina.evaluation.model_selection import chosen_step
from fedretina.exchange.partition import CONTROL, KEY, Partition
from fedretina.exchange.payload import Tensors, tensors_bytes
from fedretina.networks.encoder_file import Learned, write_encoder
from fedretina.networks.network import Network
from fedretina.settings.aggregation import ChoiceSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import CALIBRATE, ROUNDS_BACK, Plan, Step

FRAME = "frame:"
"""Prefix of what takes the sites from the model before to this one, where it travels encoded."""
ERROR = "error:"
"""Prefix of what that lost of the aggregate, which the next one makes up for."""
_GIVES_STATE = ("pretrain", "train", "sums", "tune")
_CHOSEN = ("tune", "calibrate", "curve", "finalise")  # after the training, of the model that is chosen


class Lineage:
    """Reads the records of the steps that are done; holds nothing of its own.

    Args:
        plan: The run's steps.
        records: Records of the steps that are done, in order; it grows as the run goes on.
        choice: How the round is chosen that the run ends with.
    """

    def __init__(self, plan: Plan, records: Sequence[Mapping[str, Any]], choice: ChoiceSettings) -> None:
        self._plan = plan
        self._records = records
        self._choice = choice

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return len(self._records)

    @property
    def step(self) -> Step:
        """The step to do next."""
        return self._plan[self.done]

    @property
    def learns(self) -> bool:
        """Whether the step to do next gives a model, with labels or without."""
        return self.done in self._plan.learning

    @property
    def last(self) -> int:
        """The last step that gave a model; -1 where there is none."""
        last = min(self.done, self._plan.learning.stop) - 1
        return last if last in self._plan.learning else -1

    @property
    def best(self) -> int | None:
        """The best step so far; once training is over, the chosen one."""
        best = chosen_step(self._records, self._plan.training, self._choice)
        if best is None and self.done < len(self._plan) and self.step.task in _CHOSEN:
            # No site could measure any round (one class in every validation split): the last is as good as any.
            return self.last
        return best

    @property
    def base(self) -> int:
        """The step whose model goes down; -1 is the start."""
        if self.learns or self.step.task in ("prepare", "validate"):
            return self.last
        best = self.best
        return self.last if best is None else best

    @property
    def begins_anew(self) -> bool:
        """Whether the next step trains for something else than the model it begins with was trained for."""
        return self.learns and self.base >= 0 and self._plan[self.base].task != self.step.task

    @property
    def worth_keeping(self) -> int | None:
        """The oldest step that a site may still need: the best so far, or before any, the last one without labels."""
        best = self.best
        if best is not None:
            return best
        blind = [at for at in self._plan.learning if at not in self._plan.training and at < self.done]
        return blind[-1] if blind else None

    @property
    def calibrated(self) -> int | None:
        """The step that gave the calibrator, once the sites are to have it."""
        step = self._plan.find(CALIBRATE, 0)
        return step.number if step is not None and self.step.task in ("curve", "finalise") else None

    @property
    def needed(self) -> frozenset[int]:
        """Steps whose models the server must keep when the next step is done."""
        calibrated = self.done if self.step.task == "calibrate" else self.calibrated
        return frozenset(at for at in (self.best, self.last, calibrated) if at is not None and at >= 0)

    @property
    def oldest_return(self) -> int:
        """The oldest step, besides the first, that the run is to be able to go back to when the next step is done."""
        rounds = [at for at in self._plan.learning if at <= self.done]
        return rounds[-ROUNDS_BACK] if len(rounds) >= ROUNDS_BACK else 0

    def accepted(self, site: str) -> int | None:
        """Step of the site's last update that was accepted; None before the first."""
        found = [
            number
            for number, record in enumerate(self._records)
            if self._plan[number].task in _GIVES_STATE and site in record["scalars"]
        ]
        return found[-1] if found else None

    def share(self, site: str) -> float:
        """The site's images over the mean of all sites, from what the sites said last; 1 where nobody has."""
        images: dict[str, float] = {}
        for record in self._records:
            if record["task"] in ("pretrain", "train"):
                found = record["scalars"].items()
                images.update({name: scalars["images"] for name, scalars in found if "images" in scalars})
        mean = sum(images[name] for name in sorted(images)) / max(1, len(images))
        return images[site] / mean if site in images else 1.0


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
        self._personal = experiment.aggregation.personal
        start = net.state_dict()
        self._start = {
            # Nothing is sealed yet: each site starts its head from the seed, as the server would.
            **{key: start[key].clone() for key in parts.shared if key not in parts.sealed},
            **{key: torch.zeros(parts.shapes[key]) for key in parts.controls},
            **{key: start[key.removeprefix(KEY)].clone() for key in parts.keys},
        }
        self._start_encoder = {key: value for key, value in start.items() if key.startswith("encoder.")}
        self._normalisation = net.normalisation
        self._learned: Learned = net.provenance or {}
        self._at_hand: tuple[tuple[int, str], Tensors] | None = None

    def state(self, site: str = "") -> Tensors:
        """The model that the running step starts from, with all that the server keeps beside it.

        Args:
            site: Whose, where the aggregation keeps a model per site; else empty.
        """
        base = self._lineage.base
        # One thread takes answers while another sends orders: each goes on with what it has read or found itself.
        held = self._at_hand
        if held is None or held[0] != (base, site):
            held = self._at_hand = (base, site), self._start if base < 0 else self._store.model(base, site)
        state = held[1]
        if not self._lineage.begins_anew:
            return state
        # Controls, memories and key networks belong to an objective: another one begins with none.
        fresh = {key: torch.zeros_like(state[key.removeprefix(CONTROL)]) for key in self._parts.controls}
        fresh |= {key: state[key.removeprefix(KEY)].clone() for key in self._parts.keys}
        return {**{key: state[key] for key in self._parts.shared if key in state}, **fresh}

    def learned(self, step: int, mixed: Tensors) -> None:
        """Keep at hand what a step gave, which the next will most likely begin with."""
        self._at_hand = (step, ""), mixed

    def down(self, site: str = "", whole: bool = False) -> Tensors:
        """The tensors that go down with the running step's order.

        Whoever had a part in the step that gave the model holds the one before it, as that step began with it: then the
        frames go, which take it on from there. Who missed that step gets the model whole.

        Args:
            site: To whom; where all get the same, it may be empty.
            whole: Whether nothing is to be taken for held.
        """
        state, calibrated = self.state(site if self._personal else ""), self._lineage.calibrated
        state = state if calibrated is None else {**state, **self._store.model(calibrated)}
        found = {key: state[key] for key in self._down_keys() if key in state}
        if whole or not self._holds(site):
            return found
        return {key: state.get(f"{FRAME}{key}", tensor) for key, tensor in found.items()}

    def same_for(self, site: str, whole: bool = False) -> str | None:
        """A name for what `down` gives a site, one for all that get the same; None where it is the site's own."""
        if self._personal:
            return None
        return "whole" if whole or not self._holds(site) else "held"

    def _holds(self, site: str) -> bool:
        return bool(site) and self._lineage.accepted(site) == self._lineage.base

    def bytes_down(self, sites: Sequence[str] = (), whole: bool = False) -> int:
        """Bytes of these tensors to one site; counted, not read, where nothing is sealed or encoded.

        Args:
            sites: Whom they go to, where they travel encoded: then it is the mean over them.
            whole: See `down`.
        """
        if sites:
            return round(sum(tensors_bytes(self.down(site, whole)) for site in sites) / len(sites))
        plain = sum(self._parts.sizes[key][1] for key in self._down_keys() if key not in self._parts.sealed)
        state = self.state() if self._parts.sealed else {}
        down = set(self._parts.sealed) & set(self._down_keys())
        return plain + tensors_bytes({key: state[key] for key in sorted(down) if key in state})

    def write_encoder(self, run: str) -> None:
        """Write the pre-trained encoder where all of it travels; with BatchNorm at home only the sites can."""
        state, own = self.state(), self._start_encoder
        still = set(self._parts.frozen)
        if all(key in state or key in still or key.endswith(".num_batches_tracked") for key in own):
            whole = {key: state.get(key, value) for key, value in own.items()}
            folder, normalisation = self._store.folder, self._normalisation
            write_encoder(folder, run, self._experiment, whole, normalisation, self._learned)

    def _down_keys(self) -> tuple[str, ...]:
        task = self._lineage.step.task
        # A run without labels ends with what its training moved.
        ends = "pretrain" if task == "finalise" and not self._experiment.supervised else task
        moving = self._parts.moving(ends)
        if self._parts.sums and task != "pretrain":
            # Their total goes with the encoder that they stand on, where the run has pre-trained one.
            return moving.shared if self._lineage.learns else (*moving.shared, *self._parts.sums)
        if task in ("curve", "finalise"):
            return (*moving.shared, *self._parts.calibrator)
        return moving.travelling if self._lineage.learns else moving.shared
