"""A site's network on its device, with what of it stays, travels and rests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.analytic.distance import directions
from fedretina.corrections.correction import Outcome, RoundContext
from fedretina.errors import DataError, TrainingError
from fedretina.exchange.partition import CONTROL, KEY, partition_of
from fedretina.exchange.payload import Tensors
from fedretina.local.site_state import Snapshot
from fedretina.losses.objective import build_objective
from fedretina.networks.build import build_network
from fedretina.networks.gate import Gate
from fedretina.networks.label_space import label_space
from fedretina.networks.network import Network
from fedretina.seeds import brought, torch_device
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings
from fedretina.settings.scalars import Task
from fedretina.settings.scheme import GradingScheme

_LEARN: tuple[Task, Task] = ("pretrain", "train")
_CONTRAST = "contrast."
_ANY_GRADES = 2


class LocalModel:
    """The network that all work at a site is done with; loaded anew for each task.

    Attributes:
        net: The network, on its device.
        partition: What travels and what stays.
        device: Where it computes.
        start: What stays, as the seed gives it.
        sealed_start: What travels encrypted, likewise.

    Args:
        experiment: The run's settings.
        scheme: The site's grades; None where it only pre-trains.

    Raises:
        TrainingError: The head travels, and the site's grades do not fit it.
        SettingsError: The device is not there, or the weights cannot be loaded.
    """

    def __init__(self, experiment: Experiment, scheme: GradingScheme | None) -> None:
        self.device = torch_device(experiment.training)
        self.net = site_network(experiment, scheme)
        self.partition = partition_of(experiment, self.net)
        state = {key: tensor.clone() for key, tensor in self.net.state_dict().items()}
        self.start = {key: state[key] for key in self.partition.personal}
        self.sealed_start = {key: state[key] for key in self.partition.sealed}
        self._moving = {task: self.partition.moving(task) for task in _LEARN}
        still = {task: set(self.partition.shared) - set(moving.shared) for task, moving in self._moving.items()}
        # Contrast layers are no part of a stored model, whether they travelled or not.
        still["train"] |= {key for key in state if key.startswith(_CONTRAST)}
        for keys in still.values():
            keys |= set(self.partition.frozen)  # as the run started with them, here as at the server
        self._rests = {task: {key: state[key] for key in sorted(keys)} for task, keys in still.items()}
        self._layout = torch.channels_last if experiment.training.channels_last else torch.contiguous_format
        self.net.to(device=self.device, memory_format=self._layout)  # type: ignore[call-overload]
        self._places = self.net.state_dict()

    def load(self, received: Tensors, personal: Tensors, task: Task = "train") -> None:
        """Put a model together; nothing may be missing or left over but what rests in the task.

        Args:
            received: The aggregate, with or without controls and key network.
            personal: What the site keeps.
            task: "pretrain" loads the encoder and its contrast layers, any other what answers.
        """
        network = {key: tensor for key, tensor in received.items() if not key.startswith((CONTROL, KEY))}
        rests = self._rests["pretrain" if task == "pretrain" else "train"]
        state = {**rests, **network, **personal}
        if state.keys() != self._places.keys() or any(
            one.shape != self._places[key].shape for key, one in state.items()
        ):
            self.net.load_state_dict(state, strict=True)  # which says what is missing, left over or of another shape
            self._places = self.net.state_dict()
            return
        with torch.no_grad():  # the same without a walk over all modules, which is long for a small network
            for key, tensor in state.items():
                self._places[key].copy_(tensor)

    def leave_out(self, prefix: str) -> None:
        """Do not load what rests under a prefix: for a network that had this part of it taken out, being given rows."""
        self._rests = {
            task: {key: tensor for key, tensor in held.items() if not key.startswith(prefix)}
            for task, held in self._rests.items()
        }

    def round_context(self, received: Tensors, start: Snapshot, share: float, task: Task) -> RoundContext:
        """What a correction stands on."""

        def there(tensors: Tensors) -> dict[str, torch.Tensor]:
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}

        moving = self._moving[task]
        parameters = {key: self.net.get_parameter(key) for key in moving.parameters}
        control = {key.removeprefix(CONTROL): received[key] for key in moving.controls}
        shared = {key: received[key] for key in moving.shared}
        return RoundContext(self.net, parameters, there(shared), there(control), there(start.memory), share)

    def keys(self, received: Tensors, task: Task) -> Tensors:
        """What came down of the key network, by key of the network that it follows."""
        return {key.removeprefix(KEY): received[key].to(self.device) for key in self._moving[task].keys}

    def shared_state(self, outcome: Outcome, task: Task, keys: Tensors = MappingProxyType({})) -> Tensors:
        """What of the model goes up after a task, with the correction's controls and the key network's tensors."""
        moving, state = self._moving[task], self.net.state_dict()
        controls = {key: to_cpu(outcome.control[key.removeprefix(CONTROL)]) for key in moving.controls}
        followers = {key: to_cpu(keys[key.removeprefix(KEY)]) for key in moving.keys}
        return {**{key: to_cpu(state[key]) for key in moving.shared}, **controls, **followers}

    def personal_state(self) -> Tensors:
        """What of the model stays."""
        state = self.net.state_dict()
        return {key: to_cpu(state[key]) for key in self.partition.personal}

    def moved_state(self) -> Tensors:
        """All of the model that answers and may have changed since the run began."""
        frozen = set(self.partition.frozen)
        return {key: tensor for key, tensor in self.full_state().items() if key not in frozen}

    def full_state(self) -> Tensors:
        """All of the model that answers; contrast layers do not."""
        return {key: to_cpu(tensor) for key, tensor in self.net.state_dict().items() if not key.startswith(_CONTRAST)}

    def brought(self, tensor: torch.Tensor) -> torch.Tensor:
        """A part of a batch where the network is, as it is: cached bytes are a quarter of what is made of them."""
        return brought(tensor, self.device)

    def batches(self, images: torch.Tensor, order: Sequence[NDArray[np.int64]]) -> Iterator[torch.Tensor]:
        """Images batch after batch, where the network is.

        For a card a thread reads the next batch and pins it while this one's kernels are queued: reading takes as long
        as queueing a step of a small network does. On the CPU it would take the cores that train.

        Args:
            images: [N, ...], on the CPU.
            order: Which images each batch has.
        """
        card = self.device.type != "cpu"

        def read(samples: NDArray[np.int64]) -> torch.Tensor:
            found = images.index_select(0, torch.from_numpy(samples))  # rows whole: a tenth of the time of images[...]
            return found.pin_memory() if card else found

        for found in read_ahead(read, order) if card else map(read, order):
            yield found.to(self.device, non_blocking=True)

    def to_device(self, images: torch.Tensor) -> torch.Tensor:
        """Images, or what frozen stages made of them, where the network is, and laid out as it wants them."""
        there = self.brought(images)
        return there if images.dim() != 4 else there.to(memory_format=self._layout)


def read_ahead(
    read: Callable[[NDArray[np.int64]], torch.Tensor], order: Sequence[NDArray[np.int64]]
) -> Iterator[torch.Tensor]:
    """What is read of each batch, in order, the next one by a thread while the caller works on this one."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        waiting = deque(thread.submit(read, samples) for samples in order[:2])
        for following in (*order[2:], None, None)[: len(order)]:
            found = waiting.popleft().result()
            if following is not None:
                waiting.append(thread.submit(read, following))
            yield found


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU, contiguous.

    One copy even where the memory is channels_last, which `contiguous` would copy a second time.
    """
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def site_network(
    experiment: Experiment,
    scheme: GradingScheme | None,
    seed: int | None = None,
    settings: NetworkSettings | None = None,
) -> Network:
    """Build a site's network, on the CPU.

    Args:
        experiment: The run's settings.
        scheme: The site's grades; where the head has named classes, the scheme says which each grade stands for. None
            at a site that only pre-trains: its head rests, and any width will do.
        seed: Of the start; the run's by default.
        settings: Of the network; the run's by default.

    Raises:
        TrainingError: The head travels, and the site's grades do not fit it.
        SettingsError: The weights cannot be loaded.
    """
    grades = _ANY_GRADES if scheme is None else scheme.num_classes
    if scheme is not None and experiment.grades not in (None, grades):
        raise TrainingError(
            f"the job's head has {experiment.grades} grades and this site's scheme {grades}: "
            "let the head be personal (exchange.personal: head)."
        )
    width = experiment.head_width or grades
    net = build_network(settings or experiment.network, width, experiment.seed if seed is None else seed)
    if experiment.evaluation.gate is not None:
        net.gate = Gate(net.encoder.features, directions(net.encoder.features))
    if scheme is not None and experiment.classes is not None and experiment.head_width is not None:
        try:
            cover = scheme.cover(experiment.classes)
        except DataError as error:
            raise TrainingError(
                f"the grades of this site do not fit the {width} classes of the job's head: say in the site's scheme "
                "which classes each grade stands for (`covers`), or let the head be personal."
            ) from error
        net.space = label_space(cover, width, build_objective(experiment.objective).evidential)
    return net
