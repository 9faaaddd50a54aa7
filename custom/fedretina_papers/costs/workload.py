"""One training or inference step of a network, in a form that can be sent to a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedretina.errors import SettingsError

Step = Callable[[], None]
Prepare = Callable[[], Step]
"""Builds all that a step needs and gives the step. To be sent, it must be picklable: a `Workload`, a partial."""


@dataclass(frozen=True)
class Workload:
    """A network on a batch of drawn images; calling it builds both and gives the step.

    The loss is the mean log-sum-exp of the outputs, which every shape of outputs has (one head, or several exits) and
    which costs as little as a cross entropy.

    Attributes:
        build: Gives the network, such as `partial(build_network, settings, 4, 0)`; picklable.
        side: Height and width of the images, in px; one number for square ones.
        batch_size: Images a step.
        train: Forward, backward and a step of the optimiser; or else a forward pass without gradients.
        optimizer: "sgd" has momentum, and so one buffer a weight; "adam" has two.
        device: "cpu" or "cuda".
        channels: Of the images.
        threads: Torch threads on the CPU.
    """

    build: Callable[[], nn.Module]
    side: int | tuple[int, int]
    batch_size: int
    train: bool = True
    optimizer: Literal["sgd", "adam"] = "sgd"
    device: Literal["cpu", "cuda"] = "cpu"
    channels: int = 3
    threads: int = 1

    def __post_init__(self) -> None:
        if min(*self._size, self.batch_size, self.channels, self.threads) < 1:
            raise SettingsError("a step needs a side, batch, channels and threads of 1 or more.")

    @property
    def _size(self) -> tuple[int, int]:
        return (self.side, self.side) if isinstance(self.side, int) else self.side

    def __call__(self) -> Step:
        """Build network and images; sets torch's threads, so that it belongs into a process of its own.

        Raises:
            SettingsError: CUDA is asked for and not there.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise SettingsError('a step was asked for on "cuda", but there is no CUDA device: use "cpu".')
        torch.set_num_threads(self.threads)
        drawn = torch.Generator().manual_seed(0)
        images = torch.rand(self.batch_size, self.channels, *self._size, generator=drawn).to(self.device)
        net = self.build().to(self.device)
        return _training(net, images, self.optimizer) if self.train else _inference(net, images)


def _training(net: nn.Module, images: torch.Tensor, name: str) -> Step:
    net.train()
    parameters = list(net.parameters())
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=1e-4) if name == "adam" else torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = net(images).logsumexp(-1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _inference(net: nn.Module, images: torch.Tensor) -> Step:
    net.eval()

    def step() -> None:
        with torch.inference_mode():
            net(images)

    return step
