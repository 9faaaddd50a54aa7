"""Executors that misbehave, shipped inside a test job's app/custom; each site is told how by its name."""

import os
import time

import numpy as np
from nvflare.apis.dxo import from_shareable

from fedretina.flare.executor import TrainerExecutor

TENSORS = {
    "nan": lambda update, sent: np.full_like(update, np.nan),
    "absurd": lambda update, sent: np.full_like(update, 1e29),
    "stretched": lambda update, sent: sent + np.float32(1e4) * (update - sent),
}
"""What these sites make of every tensor of their update and of what they were sent."""


class HostileExecutor(TrainerExecutor):
    """Behaves in every step but the first attempt of the first training round, or in `finalise` while told so."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        site = fl_ctx.get_identity_name()
        if site == "absent" and task_name == "finalise" and "ABSENT" in os.environ:
            raise RuntimeError("away when the run ends")
        reply = super().execute(task_name, shareable, fl_ctx, abort_signal)
        stamp = from_shareable(shareable).meta["fedretina"]["stamp"]
        if task_name != "train" or stamp[2] != 0 or stamp[3] != 0:
            return reply
        dxo = from_shareable(reply)
        key = sorted(dxo.data)[0]
        if site == "head-leaks":
            dxo.data["head.0.bias"] = np.ones(16, np.float32)
        elif site in TENSORS:
            sent = from_shareable(shareable).data
            dxo.data = {name: TENSORS[site](value, sent[name]) for name, value in dxo.data.items()}
        elif site == "stale":
            dxo.meta["fedretina"]["stamp"] = [*stamp[:2], 7, *stamp[3:]]
        elif site == "theta":
            dxo.meta["fedretina"]["scalars"]["theta"] = float("inf")
        elif site == "meta":
            dxo.meta["patient"] = "somebody"
        elif site == "shape":
            dxo.data[key] = np.zeros(7, np.float32)
        elif site == "digest":
            dxo.meta["fedretina"]["stamp"] = [*stamp[:4], "smith, born 1950"]
        elif site == "entry":
            dxo.meta["fedretina"]["patient"] = "smith"
        elif site == "slow":
            time.sleep(25)
        elif site == "raises":
            raise RuntimeError(f"a secret path: {os.getcwd()}/patients/smith.jpg")
        return dxo.update_shareable(reply)
