"""The torch state that training needs for a while: device, threads, deterministic kernels, seeds of layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedretina.errors import SettingsError
from fedretina.seeds import derive_seed
from fedretina.settings.training import TrainingSettings


def torch_device(settings: TrainingSettings) -> torch.device:
    """The device to train on.

    Raises:
        SettingsError: CUDA is asked for and not there.
    """
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise SettingsError("training.device is 'cuda' but this machine shows no CUDA device: use 'auto' or 'cpu'.")
    return torch.device("cuda" if there and settings.device != "cpu" else "cpu")


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
    device = torch_device(settings)
    cuda = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = flags
