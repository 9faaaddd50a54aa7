"""Parts that misbehave, shipped inside a test job's app/custom; a site's name tells it how, and in which round."""

import json
import os
import time
from pathlib import Path

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell

from fedretina.flare.controller import RoundController
from fedretina.flare.executor import TrainerExecutor

FAULTS = {
    "north": ("absurd", "digest", "entry"),
    "east": ("head-leaks", "meta", "nan"),
    "south": ("raises", "shape", "slow"),
    "west": ("stale", "stretched", "theta"),
    "fails": ("unreadable", None, "raises always"),
}
"""What a site does in each round of training: in its first attempt, unless it says `always`; None where it behaves."""
TENSORS = {
    "nan": lambda update, sent: np.full_like(update, np.nan),
    "absurd": lambda update, sent: np.full_like(update, 1e29),
    "stretched": lambda update, sent: sent + np.float32(1e4) * (update - sent),
}
"""What these faults make of every tensor of an update and of what the site was sent."""


ROOT, WAITS = Path(os.environ["FEDRETINA_STATE_ROOT"]), "the slow site waits"


def fault_of(site, stamp):
    """The fault of a site in a round, by the order's stamp; None where it behaves."""
    planned = dict(enumerate(FAULTS.get(site, ()))).get(stamp[2])
    return planned if planned == "raises always" or stamp[3] == 0 else None


class HostileExecutor(TrainerExecutor):
    """Misbehaves in training as planned, and in `finalise` while told so."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        site = fl_ctx.get_identity_name()
        if site == "absent" and task_name == "finalise" and "ABSENT" in os.environ:
            raise RuntimeError("away when the run ends")
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        stamp = from_shareable(shareable).meta["fedretina"]["stamp"]
        while os.environ.get("HOLDS") == f"{stamp[1]}-{stamp[2]}":  # for ever: until the test ends the process
            time.sleep(0.05)
        fault = fault_of(site, stamp) if task_name == "train" else None
        if fault is None:
            return reply
        if fault.startswith("raises"):
            raise RuntimeError(f"a secret path: {os.getcwd()}/patients/smith.jpg")
        if fault == "slow":
            (ROOT / WAITS).touch()
            while not closed(stamp[2]):
                time.sleep(0.05)
            return reply
        if fault == "unreadable":
            leave_unreadable()
            return reply
        dxo = from_shareable(reply)
        spoil(dxo, fault, from_shareable(shareable).data, stamp)
        return dxo.update_shareable(reply)


def spoil(dxo, fault, sent, stamp):
    """Put a fault into an answer."""
    words = dxo.meta["fedretina"]
    if fault in TENSORS:
        dxo.data = {name: TENSORS[fault](value, sent[name]) for name, value in dxo.data.items()}
    elif fault == "head-leaks":
        dxo.data["head.0.bias"] = np.ones(16, np.float32)
    elif fault == "shape":
        dxo.data[min(dxo.data)] = np.zeros(7, np.float32)
    elif fault == "stale":
        words["stamp"] = [*stamp[:2], 7, *stamp[3:]]
    elif fault == "digest":
        words["stamp"] = [*stamp[:4], "smith, born 1950"]
    elif fault == "theta":
        words["scalars"]["theta"] = float("inf")
    elif fault == "entry":
        words["patient"] = "smith"
    elif fault == "meta":
        dxo.meta["patient"] = "somebody"


def leave_unreadable():
    """Have the next answer of this process leave as bytes that no FLARE unpacks."""
    plain = cell.encode_payload

    def encode(message, *words, **named):
        answer = "DXO" in message.payload if isinstance(message.payload, Shareable) else False
        size = plain(message, *words, **named)
        if answer:
            message.payload = b"\0no message of FLARE's"
            cell.encode_payload = plain
        return size

    cell.encode_payload = encode


def closed(number):
    """Whether the server has closed a round: a simulator's sites see its folder."""
    return json.loads((ROOT / os.environ["FEDRETINA_RUN"] / "server" / "run.json").read_text())["done"] > number


class SpentTask(Task):
    """Its time is over as soon as its site has begun to wait: never before the others, however slow the machine is."""

    @property
    def timeout(self):
        return 1 if (ROOT / WAITS).exists() else vars(self)["timeout"]


class SpentBudget(RoundController):
    """Closes a round without the site that is slow in it."""

    def _task(self, site, coordinator, held, question):
        task = super()._task(site, coordinator, held, question)
        if fault_of(site, (None, None, coordinator.step.round, 0)) == "slow":
            task.__class__ = SpentTask
        return task
