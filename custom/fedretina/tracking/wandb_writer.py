"""The process that writes a run's curves as an offline run of Weights & Biases, for `WandbCurves`.

A process of its own, since what W&B does besides is switched off by its environment alone: reports of errors to its
makers, which "offline" leaves on. Of this machine nothing is written: no name, user, path, command line, package or
hardware, since an offline run may be sent to a server later.

    python -m fedretina.tracking.wandb_writer FOLDER PROJECT NAME ID

It reads one JSON object a line, `{"step": 3, "values": {"train/theta/site-1": 0.5}}`, and ends where the lines end.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO


def write(lines: TextIO, folder: str, project: str, name: str, run_id: str) -> None:
    """Write the lines' values until they end.

    Args:
        lines: Steps in order, a JSON object each.
        folder: Where W&B makes its folder `wandb`.
        project: W&B's project.
        name: The run's name there.
        run_id: The run's id there.
    """
    import wandb

    settings = wandb.Settings(
        mode="offline", console="off", silent=True,
        disable_git=True, disable_code=True, save_code=False, disable_job_creation=True, x_save_requirements=False,
        x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True, x_disable_viewer=True,
        host="-", username="-",
    )  # fmt: skip
    run = wandb.init(dir=folder, project=project, name=name, id=run_id, settings=settings)
    for line in lines:
        step = json.loads(line)
        run.log(step["values"], step=step["step"], commit=True)
    run.finish()


if __name__ == "__main__":
    write(sys.stdin, *sys.argv[1:5])
