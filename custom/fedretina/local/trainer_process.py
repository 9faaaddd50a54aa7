"""The child process of `ChildTrainer`: reads an order, does it, writes the answer, and ends.

What is said to the kernel comes first, before torch is imported: a child that grows while its parent is the larger of
the two would else leave the parent to be killed, and the whole job with it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedretina.child import end_with
from fedretina.garbage import end_quickly


def main(arguments: list[str]) -> None:
    """Read an order, do it, write the answer: the child's whole life."""
    parent, asked, answered = int(arguments[0]), Path(arguments[1]), Path(arguments[2])
    end_with(parent)
    _be_the_first_to_go()
    end_quickly()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    # The last word goes through a pipe, since the disk may be full; whatever else prints goes to the log.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(2, 1)
        json.dump(_answered(asked, answered), told)


def _answered(asked: Path, answered: Path) -> dict[str, Any]:
    gc.disable()  # as in flare/fork_server.py
    from fedretina.errors import FedretinaError
    from fedretina.exchange.payload import Order, Stamp
    from fedretina.local.child_trainer import SiteRecipe
    from fedretina.storage import read_tensors, write_tensors
    from fedretina.told import told

    gc.freeze()
    gc.enable()
    known: set[str] = set()
    try:
        tensors, header = read_tensors(asked)
        order = Order(**{**header["order"], "stamp": Stamp(*header["order"]["stamp"])})
        known = {order.stamp.run, order.stamp.phase, order.stamp.digest[:12], *tensors}
        payload = SiteRecipe.model_validate_json(header["recipe"]).build().handle(order, tensors)
        write_tensors(answered, payload.tensors, {}, durable=False)
        return {"stamp": list(payload.stamp), "scalars": dict(payload.scalars), "release": payload.release}
    except FedretinaError as error:
        # What may leave is made here, where the error still knows through which modules it came.
        says = {"says": str(error), "tells": told(error, known)}
        return {"error": type(error).__name__, **says, "notes": list(error.notes)}
    except Exception as error:  # noqa: BLE001 - the parent logs its trace at the site, and tells its class alone
        return {"error": type(error).__name__, "says": traceback.format_exc()}


def _be_the_first_to_go() -> None:
    """Ask Linux to choose this process, and not the job's, when memory is short."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
