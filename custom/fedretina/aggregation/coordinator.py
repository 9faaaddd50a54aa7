"""The server's half of a run without any transport: orders out, updates in, a durable result a step.

The plain loop and the FLARE controller drive this one class; neither holds arithmetic of its own.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedretina.aggregation.admission import admit
from fedretina.aggregation.choice import best_step, candidates
from fedretina.aggregation.progress import Progress
from fedretina.aggregation.rules import site_weights
from fedretina.aggregation.run_store import RunStore
from fedretina.aggregation.spool import Spool
from fedretina.errors import QuorumError, RefusedError
from fedretina.exchange.partition import partition
from fedretina.exchange.payload import Order, Payload, Tensors, tensors_bytes, tensors_digest
from fedretina.exchange.scalars import BY_TASK
from fedretina.exchange.stamp import Stamp, require_name
from fedretina.experiment import Experiment
from fedretina.local.training import reproducible_torch
from fedretina.networks.network import build_network
from fedretina.plan import Plan, Step
from fedretina.storage import write_json
from fedretina.version import __version__

_log = logging.getLogger(__name__)
# Where the head is personal the server has no grades of its own: what depends on their number never reaches it.
_ANY_GRADES = 2


class Coordinator:
    """Runs the steps of one run at the server.

    Begun on a folder that holds a part of the run, it goes on after the last step that is done there. Answers may
    arrive from other threads while a step closes; a lock decides whether they still count.

    Args:
        experiment: The run's settings.
        run: Name of the run.
        folder: The server's folder of the run.

    Raises:
        StateError: The folder holds another run's state, or cannot be used.
    """

    def __init__(self, experiment: Experiment, run: str, folder: Path) -> None:
        self.experiment = experiment
        self.run = require_name(run, "run")
        self.plan = Plan.of(experiment)
        net = build_network(experiment.network, experiment.grades or _ANY_GRADES, experiment.seed)
        self.partition = partition(net, experiment.exchange)
        self.digest = experiment.digest(self.partition)
        start = net.state_dict()
        self._start = {key: start[key].clone() for key in self.partition.shared}
        self._store = RunStore(folder, self.digest, self._head(), lambda step: self.plan[step].name)
        self._spool = Spool(folder / "spool")
        self._down_cache: tuple[int, Tensors] | None = None
        self._lock = threading.RLock()
        self._attempt = -1
        self._scalars: dict[str, dict[str, float]] = {}
        self._bytes: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return self._store.done

    @property
    def folder(self) -> Path:
        """The server's folder of the run."""
        return self._store.folder

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        """Records of the steps that are done."""
        return self._store.records

    @property
    def step(self) -> Step:
        """The step to do next."""
        return self.plan[self.done]

    @property
    def progress(self) -> Progress:
        """How far the run is; read without the lock, so that it answers while a step is being mixed."""
        step = self.step if self.done < len(self.plan) else None
        return Progress(
            self.run, self.done, len(self.plan), step, self._attempt, tuple(self._scalars), {**self._refused}
        )

    def begin(self) -> None:
        """Begin the next step, or begin it again; answers to earlier attempts are refused from now on."""
        with self._lock:
            self._attempt += 1
            self._scalars, self._bytes, self._refused = {}, {}, {}
            self._spool = Spool(self._store.folder / "spool")

    def order(self, site: str) -> Order:
        """What the running step asks of a site."""
        accepted = [
            number
            for number, record in enumerate(self.records)
            if self.plan[number].task == "train" and site in record["scalars"]
        ]
        last = accepted[-1] if accepted else None
        weight = None if last is None else self.records[last]["weights"].get(site)
        return Order(self.step.task, self._stamp(), last, self._best(), weight)

    def down(self) -> Tensors:
        """The tensors that go with the running step's orders: the same for every site, read once a step."""
        base = self._base()
        if self._down_cache is None or self._down_cache[0] != base:
            self._down_cache = base, self._start if base < 0 else self._store.model(base)
        return self._down_cache[1]

    def accept(self, site: str, payload: Payload) -> None:
        """Take one site's answer into the running step.

        Raises:
            RefusedError: What is wrong with it; the answer is dropped and noted under the site's name.
            StateError: The disk is full; the answer is dropped.
        """
        with self._lock:
            try:
                require_name(site, "site")
                if site in self._scalars:
                    raise RefusedError("the site has answered this step before.")
                trains = self.step.task == "train"
                largest = self.experiment.theta.largest
                admit(payload, self._stamp(), self.partition, BY_TASK[self.step.task], trains, largest)
            except RefusedError as refusal:
                self.refuse(site, str(refusal))
                raise
            if self.step.task == "train":
                self._spool.put(site, payload.tensors)
            self._bytes[site] = tensors_bytes(payload.tensors)
            self._scalars[site] = {name: float(payload.scalars[name]) for name in sorted(payload.scalars)}
            self._refused.pop(site, None)

    def refuse(self, site: str, why: str) -> None:
        """Note why a site has no part in the running step."""
        with self._lock:
            if site not in self._scalars:
                self._refused[site] = why
        _log.warning("%s: the answer of %s does not count: %s", self.step.name, site, why)

    def close(self) -> dict[str, Any]:
        """Mix what was accepted and make the step durable.

        Returns:
            The step's record.

        Raises:
            QuorumError: Too few updates were accepted; the step may be begun again.
            StateError: The disk is full or not writable; the step may be begun again.
        """
        with self._lock:
            return self._close()

    def _close(self) -> dict[str, Any]:
        quorum = self.experiment.quorum
        if len(self._scalars) < quorum:
            reasons = "; ".join(f"{site}: {why}" for site, why in sorted(self._refused.items())) or "no answer"
            raise QuorumError(
                f"{self.step.name}: {len(self._scalars)} updates were accepted, the quorum is {quorum} ({reasons})."
            )
        step = self.step
        record: dict[str, Any] = {
            "step": step.name,
            "task": step.task,
            "scalars": {site: self._scalars[site] for site in sorted(self._scalars)},
            "refused": dict(sorted(self._refused.items())),
            "bytes_up": {site: self._bytes[site] for site in sorted(self._bytes)},
            "bytes_down": tensors_bytes(self.down()),
        }
        mixed: Tensors | None = None
        if step.task == "train":
            record["weights"] = site_weights(self._scalars, self.experiment.aggregation)
            with reproducible_torch(self.experiment.training):
                mixed = self._spool.weighted_mean(record["weights"], self.partition.dtypes)
            record["digest"] = tensors_digest(mixed)
        if step.task == "finalise":
            record["chosen"] = self._base()
            write_json(self._store.folder / "results.json", self._results(record))
        self._store.commit(step.number, record, mixed, self._needed())
        self._spool.erase()
        if mixed is not None:
            self._down_cache = step.number, mixed
        self._attempt = -1
        return record

    def _needed(self) -> frozenset[int]:
        best = self._best()
        last = self._last_trained()
        return frozenset(number for number in (best, last) if number is not None and number >= 0)

    def _last_trained(self) -> int:
        return min(self.done, self.plan.training) - 1

    def _base(self) -> int:
        """The step whose model goes down; -1 is the start."""
        if self.step.task != "finalise":
            return self._last_trained()
        best = self._best()
        # No site could measure any round (one class in every validation split): the last model is as good as any.
        return self._last_trained() if best is None else best

    def _best(self) -> int | None:
        if self.done < len(self.plan) and self.step.task == "finalise":
            best = best_step(self.records, self.plan.training)
            return self._last_trained() if best is None else best
        return best_step(self.records, self.plan.training)

    def _stamp(self) -> Stamp:
        return Stamp(self.run, self.step.phase, self.step.round, self._attempt, self.digest)

    def _head(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "settings": self.experiment.agreed(),
            "partition": {
                kind.value: sorted(k for k in self.partition.shared if self.partition.kinds[k] is kind)
                for kind in sorted(self.partition.shared_kinds())
            },
            "versions": {
                "fedretina": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    def _results(self, final: dict[str, Any]) -> dict[str, Any]:
        chosen = int(final["chosen"])
        trained = self.records[chosen]
        sites = {
            site: {
                **figures,
                "theta": trained["scalars"].get(site, {}).get("theta"),
                "weight": trained.get("weights", {}).get(site),
            }
            for site, figures in final["scalars"].items()
        }
        return {
            **self._head(),
            "digest": self.digest,
            "chosen": self.plan[chosen].name,
            "model_digest": trained["digest"],
            "validation": {
                self.plan[c.step].name: {"mean_auc": c.mean, "auc": dict(c.aucs)}
                for c in candidates(self.records, self.plan.training)
            },
            "sites": sites,
            "without_result": final["refused"],
            "steps": list(self.records),
        }
