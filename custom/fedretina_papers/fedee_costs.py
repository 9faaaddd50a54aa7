"""What FedEE's four methods cost: backbone, passes of dropout, several networks and early exits, measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.storage import read_json, write_json
from fedretina_papers.costs.forward_cost import forward_cost
from fedretina_papers.costs.meters import Meter, counters
from fedretina_papers.costs.peak_memory import peak_memory
from fedretina_papers.costs.side_by_side import Beside, side_by_side
from fedretina_papers.costs.workload import Step, Workload
from fedretina_papers.plan import BenchmarkPlan
from fedretina_papers.processes import pool
from fedretina_papers.published import published_fedee

COSTS = "side_by_side.json"
_REPEATS = 25
_TRAINING_REPEATS = 10
_MEMBERS = 5
_ANY_GRADES = 4  # of heads that do not travel


@dataclass(frozen=True)
class Method:
    """A method at a batch of drawn images; calling it builds its networks and gives the step. Picklable.

    Attributes:
        network: Settings of one network.
        width: Outputs.
        shape: Channels, height and width of a sample.
        batch_size: Samples.
        threads: Torch threads.
        optimizer: Of a training step.
        networks: How many of them answer; a training step trains one.
        passes: Passes with dropout at work.
        train: A training step, or an answer.
    """

    network: Mapping[str, Any]
    width: int
    shape: tuple[int, int, int]
    batch_size: int
    threads: int
    optimizer: str
    networks: int = 1
    passes: int = 1
    train: bool = False

    def __call__(self) -> Step:
        """Build and give the step; see `Workload`."""
        settings = NetworkSettings.model_validate(dict(self.network))
        build = partial(build_network, settings, self.width, 0)
        if self.train:
            channels, height, width = self.shape
            optimizer: Any = self.optimizer
            return Workload(build, (height, width), self.batch_size, True, optimizer, "cpu", channels, self.threads)()
        return self._answering(settings)

    def _answering(self, settings: NetworkSettings) -> Step:
        import torch

        from fedretina.networks.dropout import answered_in_passes

        torch.set_num_threads(self.threads)
        drawn = torch.Generator().manual_seed(0)
        images = torch.rand(self.batch_size, *self.shape, generator=drawn)
        nets = [build_network(settings, self.width, seed).eval() for seed in range(self.networks)]

        def step() -> None:
            with torch.inference_mode():
                for net in nets:
                    answered_in_passes(net, images, self.passes)

        return step


def measure_side_by_side(plan: BenchmarkPlan, out: Path, tell: Callable[[int, int, str], None]) -> None:
    """Measure the four methods under FedAvg as far as the plan has their rows; what is there is not measured again.

    Times are taken on the CPU in one process that nothing else of the benchmark runs beside; a run on a GPU has other
    ratios.

    Args:
        plan: The plan.
        out: Folder of the benchmark.
        tell: Called with 1, 1 and what came out.
    """
    methods = methods_of(plan)
    if "Backbone" not in methods:
        return
    path = out / "costs" / COSTS
    asked = {name: _words(method) for name, method in methods.items()}
    if path.exists() and read_json(path).get("asked") == asked:
        return
    with pool(1) as workers:
        times = workers.submit(_timed, methods).result()
    found = {}
    for name, method in methods.items():
        trained = name != "Deep Ens."
        one = forward_cost(build_on_meta(_settings(method), method.width), method.shape[1:], method.shape[0])
        found[name] = {
            "parameters": one.parameters * method.networks,
            "multiply_adds": one.multiply_adds * method.networks * method.passes,
            "memory_inference": peak_memory(method).step,
            "memory_training": peak_memory(_training(method)).step if trained else None,
            **times[name],
        }
    backbone = methods["Backbone"]
    write_json(
        path,
        {
            "asked": asked,
            "encoder": str(backbone.network["encoder"]),
            "shape": list(backbone.shape),
            "batch_size": backbone.batch_size,
            "repeats": _REPEATS,
            "methods": found,
        },
    )
    told = found.get("FedEE", found["Backbone"])["inference_ratio"]["median"]
    tell(1, 1, f"costs measured; FedEE answers in {told:.3f} of the backbone's time")


def methods_of(plan: BenchmarkPlan) -> dict[str, Method]:
    """The four methods as the plan's rows under FedAvg make them."""
    names = {choice.name for choice in plan.rows}
    found = {}
    for method, name in published_fedee().rows["FedAvg"].items():
        row = published_fedee().rows["FedAvg"]["Backbone"] if method == "Deep Ens." else name
        if row not in names:
            continue
        choice = plan.choice(row)
        made = _method(plan.experiment_of(choice, plan.seeds_of(choice)[0], {}))
        found[method] = _several(made, plan) if method == "Deep Ens." else made
    return found


def _several(one: Method, plan: BenchmarkPlan) -> Method:
    members = {reading.members for reading in plan.readings if reading.reading == "deep_ensemble"}
    return Method(**{**_words(one), "shape": one.shape, "networks": max(members, default=_MEMBERS)})


def _method(experiment: Experiment) -> Method:
    training = experiment.phase(experiment.phases[-1].name).training or experiment.training
    network = experiment.network.model_dump(mode="json") | {"contrast": None, "weights": {"source": "none"}}
    return Method(
        network=network,
        width=experiment.head_width or _ANY_GRADES,
        shape=experiment.images.shape,
        batch_size=training.batch_size,
        threads=training.threads,
        optimizer=training.optimizer,
        passes=experiment.evaluation.passes,
    )


def _training(method: Method) -> Method:
    return Method(**{**_words(method), "shape": method.shape, "train": True})


def _settings(method: Method) -> NetworkSettings:
    return NetworkSettings.model_validate(dict(method.network))


def _words(method: Method) -> dict[str, Any]:
    return {
        "network": dict(method.network),
        "width": method.width,
        "shape": list(method.shape),
        "batch_size": method.batch_size,
        "threads": method.threads,
        "optimizer": method.optimizer,
        "networks": method.networks,
        "passes": method.passes,
        "train": method.train,
    }


def _timed(methods: Mapping[str, Method]) -> dict[str, dict[str, Any]]:
    answering = _pairs({name: method() for name, method in methods.items()}, _REPEATS)
    steps = {name: _training(method)() for name, method in methods.items() if name != "Deep Ens."}
    training = _pairs(steps, _TRAINING_REPEATS)
    found: dict[str, dict[str, Any]] = {}
    for name in methods:
        own = _told("inference", answering[name])
        if name in training:
            own |= _told("training", training[name]) | {"power": _power(steps[name])}
        found[name] = own
    return found


def _pairs(steps: Mapping[str, Step], repeats: int) -> dict[str, Beside]:
    """Each step in turn with the backbone's alone: between two that are compared lies no third one."""
    base = "Backbone"
    found = side_by_side({base: steps[base]}, base, repeats)
    for name, step in steps.items():
        if name != base:
            found[name] = side_by_side({base: steps[base], name: step}, base, repeats)[name]
    return found


def _told(what: str, one: Beside) -> dict[str, Any]:
    return {f"{what}_s": one.seconds._asdict(), f"{what}_ratio": one.ratio._asdict()}


def _power(step: Step) -> dict[str, Any] | None:
    """Mean power of the machine's meters while it trains, in watts; None where it has none."""
    import time

    found = counters()
    if not found:
        return None
    began = time.perf_counter()
    with Meter(found) as meter:
        while time.perf_counter() - began < 5:
            step()
    seconds = time.perf_counter() - began
    return {"watts": meter.energy.wh * 3600 / seconds, "source": meter.energy.source}
