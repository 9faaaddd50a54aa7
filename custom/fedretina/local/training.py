"""How a site trains: optimiser, batches, precision, threads; and the torch state that they need for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedretina.errors import SettingsError
from fedretina.local.optimiser import OptimiserSettings
from fedretina.seeds import derive_seed


class StretchSettings(BaseModel):
    """A part of a round in which a part of the network trains.

    Attributes:
        train: "all", "head" (the head and what else is not the encoder) or "encoder". What does not train is in
            evaluation mode: its BatchNorm's statistics stand still too.
        epochs: Local epochs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    train: Literal["all", "head", "encoder"] = "all"
    epochs: int = Field(default=1, ge=1, le=1000)


class TrainingSettings(OptimiserSettings):
    """Local training of one round; the defaults are FedUAA's (released code: SGD, no momentum, no decay).

    Attributes:
        epochs: Local epochs a round (E), where no stretches are given.
        stretches: What trains, one after the other, within a round; FedRep trains the head, then the encoder.
        batch_size: Images a step.
        drop_last: Leave out the last batch when it is not full, as the released code does.
        threads: Torch threads. It is a setting, equal at all ends, because sums over other numbers of threads
            differ in the last bits.
        precision: `float32`, or `bf16` autocast of the forward pass; losses stay float32.
        channels_last: Memory layout of images and weights; faster convolutions.
        device: `cpu`, `cuda`, or `auto` (CUDA when there is one). Equal bits need equal devices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    epochs: int = Field(default=1, ge=1, le=1000)
    stretches: tuple[StretchSettings, ...] = ()
    batch_size: int = Field(default=32, ge=2, le=4096)
    drop_last: bool = True
    threads: int = Field(default=1, ge=1, le=256)
    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def resolved_stretches(self) -> tuple[StretchSettings, ...]:
        """The stretches, or the one that `epochs` means."""
        return self.stretches or (StretchSettings(epochs=self.epochs),)

    def torch_device(self) -> torch.device:
        """The device to train on.

        Raises:
            SettingsError: CUDA is asked for and not there.
        """
        there = torch.cuda.is_available()
        if self.device == "cuda" and not there:
            raise SettingsError("training.device is 'cuda' but this machine shows no CUDA device: use 'auto' or 'cpu'.")
        return torch.device("cuda" if there and self.device != "cpu" else "cpu")


def seed_layers(device: torch.device, purpose: tuple[int | str, ...]) -> None:
    """Seed what layers draw from while they train (dropout), on their device alone; within `reproducible_torch`."""
    seed = derive_seed(*purpose)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def reproducible_torch(settings: TrainingSettings) -> Iterator[None]:
    """Set threads and deterministic kernels, and put back what was there, torch's generators included."""
    threads = torch.get_num_threads()
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    torch.set_num_threads(settings.threads)
    cudnn.deterministic, cudnn.benchmark = True, False
    cuda = [settings.torch_device().index or 0] if settings.torch_device().type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = flags
