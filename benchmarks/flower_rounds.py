"""Flower's side of `round_overhead`, run by a Python that has it: `flower_rounds.py SITES ROUNDS`.

The same ResNet-50 in float32, loaded and read out again at every client, averaged by Flower's FedAvg; its last line is
JSON: seconds of each round, and CPU seconds of all processes in each after the first.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

import psutil
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torchvision.models import resnet50

_CORES = 2
_NET: list[torch.nn.Module] = []


def _keys(net: torch.nn.Module) -> list[str]:
    return [key for key in net.state_dict() if not key.endswith("num_batches_tracked")]


class Echo(NumPyClient):
    """Loads what came, and sends it back."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Answer with the received weights."""
        if not _NET:
            _NET.append(resnet50(weights=None))
        keys = _keys(_NET[0])
        came = {key: torch.from_numpy(array.copy()) for key, array in zip(keys, parameters, strict=True)}
        _NET[0].load_state_dict(came, strict=False)
        state = _NET[0].state_dict()
        return [state[key].numpy().copy() for key in keys], 1, {}


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round is over."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.times = [time.perf_counter()]
        self.cpu: list[dict[int, float]] = []

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> Any:
        """Average, and note the time."""
        assert len(results) == self.min_fit_clients, failures
        found = super().aggregate_fit(server_round, results, failures)
        self.times.append(time.perf_counter())
        own = psutil.Process()
        times = {one.pid: one.cpu_times() for one in [own, *own.children(recursive=True)]}
        self.cpu.append({pid: one.user + one.system for pid, one in times.items()})
        return found


def main(sites: int, rounds: int) -> None:
    """Run the simulation and print what its rounds took."""
    net = resnet50(weights=None)
    start = ndarrays_to_parameters([net.state_dict()[key].numpy() for key in _keys(net)])
    made: list[TimedFedAvg] = []

    def server(context: Context) -> ServerAppComponents:
        settings = {"fraction_fit": 1.0, "fraction_evaluate": 0.0, "initial_parameters": start}
        made.append(TimedFedAvg(min_fit_clients=sites, min_available_clients=sites, **settings))
        return ServerAppComponents(strategy=made[0], config=ServerConfig(num_rounds=rounds))

    def client(context: Context) -> Any:
        return Echo().to_client()

    # As many clients at once as there are cores: more only wait for one another.
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": _CORES}}
    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), sites, backend_config=backend)
    times, cpu = made[0].times, made[0].cpu
    spent = [sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items()) for before, after in pairwise(cpu)]
    seconds = [after - before for before, after in pairwise(times)]
    print(json.dumps({"seconds": seconds, "cpu": spent}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
