"""In a process that is FLARE's simulator: two threads in turn pick the same site, whether it runs already or not.

That is what FLARE 2.9 does by itself where two threads end a task at the same moment.
"""

import itertools
import sys

_SIMULATOR = "nvflare.private.fed.app.simulator.simulator"

if _SIMULATOR in sys.orig_argv:
    from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner

    turn = itertools.count()
    SimulatorClientRunner.get_next_run_client = lambda self, gpu: self.federated_clients[
        next(turn) // 2 % len(self.federated_clients)
    ]
