"""What each row's network costs: weights and arithmetic counted, memory and time measured in processes of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedretina.networks.build import build_network, build_on_meta
from fedretina.seeds import torch_device
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.storage import read_json, write_json
from fedretina_papers.costs.forward_cost import forward_cost
from fedretina_papers.costs.peak_memory import peak_memory
from fedretina_papers.costs.side_by_side import side_by_side
from fedretina_papers.costs.workload import Workload
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.processes import pool

_REPEATS = 20
_ANY_GRADES = 4  # of a head that does not travel: a class more or less is some thousand weights of millions


def measure_costs(plan: BenchmarkPlan, out: Path, tell: Callable[[int, int, str], None]) -> None:
    """Measure the network of each row, one after the other while nothing else of the benchmark runs.

    Rows whose networks, images and batches are alike share one measurement. Each is stored in `costs/NAME.json`; what
    is there is not measured again.

    Args:
        plan: The plan.
        out: Folder of the benchmark.
        tell: Called after each row with its number, the number of rows, and what came out.
    """
    for at, choice in enumerate(plan.rows, 1):
        experiment = plan.experiment_of(choice, plan.seeds_of(choice)[0], {})
        key = hashlib.sha256(json.dumps(_decisive(experiment), sort_keys=True).encode()).hexdigest()
        shared = out / "costs" / "networks" / f"{key[:16]}.json"
        if not shared.exists():
            write_json(shared, network_costs(experiment))
        path = out / "costs" / f"{choice.name}.json"
        if not path.exists() or read_json(path) != read_json(shared):
            write_json(path, read_json(shared))
            tell(at, len(plan.rows), f"{choice.name}: costs of {experiment.network.encoder} measured")


def network_costs(experiment: Experiment) -> dict[str, Any]:
    """Costs of a run's network with its head, without the layers of pre-training.

    Time is that of one image in evaluation mode; memory is that of a training step of the last phase.

    Args:
        experiment: The run's settings.

    Raises:
        TrainingError: The process that measured memory was killed.
    """
    chosen = _decisive(experiment)
    network = _answering(experiment)
    side = experiment.images.shape[1], experiment.images.shape[2]
    counted = forward_cost(build_on_meta(network, chosen["width"]), side)
    build = partial(build_network, network, chosen["width"], 0)
    step = Workload(
        build,
        side,
        chosen["batch_size"],
        optimizer=chosen["optimizer"],
        device=chosen["device"],
        threads=chosen["threads"],
    )
    answer = Workload(build, side, 1, train=False, device=chosen["device"], threads=chosen["threads"])
    memory = peak_memory(step, chosen["device"])
    with pool(1) as workers:
        seconds = workers.submit(_timed, answer).result()
    return {**chosen, **counted._asdict(), "memory_bytes": memory.step, "memory_of": memory.source, "seconds": seconds}


def _timed(workload: Workload) -> float:
    step, wait = workload(), None
    if workload.device == "cuda":
        import torch

        wait = torch.cuda.synchronize
    return side_by_side({"answer": step}, "answer", _REPEATS, synchronise=wait)["answer"].seconds.median


def _answering(experiment: Experiment) -> NetworkSettings:
    """The network that answers, from no weights: they change no cost."""
    nothing: dict[str, Any] = {"source": "none"}
    network = experiment.network.model_dump(mode="json") | {"contrast": None, "weights": nothing}
    return NetworkSettings.model_validate(network)


def _decisive(experiment: Experiment) -> dict[str, Any]:
    """What the costs depend on."""
    training = experiment.phase(experiment.phases[-1].name).training or experiment.training
    _, height, width = experiment.images.shape
    return {
        "encoder": experiment.network.encoder,
        "network": _answering(experiment).model_dump(mode="json"),
        "width": experiment.head_width or _ANY_GRADES,
        # A square is told by its side, as results of old are.
        "image_size": width if height == width else [height, width],
        "batch_size": training.batch_size,
        "optimizer": training.optimizer,
        "threads": training.threads,
        "device": torch_device(training).type,
    }
