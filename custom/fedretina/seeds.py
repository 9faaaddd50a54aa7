"""Seeds that depend on what they are for, so that no draw shifts when another one is added.

And what else of a machine decides a result's bits, for as long as torch computes it: device, threads, deterministic
kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fedretina.errors import SettingsError

if TYPE_CHECKING:  # who draws a phantom or divides a folder does not wait for torch
    import torch

    from fedretina.settings.training import TrainingSettings


def derive_seed(*parts: int | str) -> int:
    """Hash named parts to a seed in [0, 2**63).

    The same parts give the same seed on every machine and in every process, whatever the order in which
    sites answer; (seed, site, phase, round, purpose) is the usual list.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """A NumPy generator of its own for one purpose; see `derive_seed`."""
    return np.random.default_rng(derive_seed(*parts))


def torch_device(settings: TrainingSettings) -> torch.device:
    """The device to train on.

    Raises:
        SettingsError: CUDA is asked for and not there.
    """
    import torch

    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise SettingsError("training.device is 'cuda' but this machine shows no CUDA device: use 'auto' or 'cpu'.")
    return torch.device("cuda" if there and settings.device != "cpu" else "cpu")


def brought(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor where a network computes; itself where it is there.

    To a card it goes from memory that is pinned, behind what stands in the card's queue: nobody waits for it.
    """
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def devices_seen() -> list[str]:
    """Names of the CUDA devices that this process sees; of one that it has not used, that it is there."""
    import torch

    used = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # asking for a name would take memory of a device that others may need
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.cuda.get_device_name(at) if used else "CUDA device" for at in range(count)]
    except RuntimeError as error:  # a device that has failed
        return [f"CUDA does not answer ({type(error).__name__})"]


def seed_layers(device: torch.device, purpose: tuple[int | str, ...]) -> None:
    """Seed what layers draw from while they train (dropout), on their device alone; within `reproducible_torch`."""
    import torch

    seed = derive_seed(*purpose)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def reproducible_torch(settings: TrainingSettings) -> Iterator[None]:
    """Set threads, the choice of kernels and how products are formed; put back what was there, generators included."""
    import torch

    threads = torch.get_num_threads()
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    # Left alone, torch forms a card's convolutions of float32 by TF32, and its matrix products not. These are the old
    # names of both: where the new ones (`fp32_precision`) are set, whoever asks for the old ones gets an error.
    matmul = torch.backends.cuda.matmul
    products = matmul.allow_tf32, cudnn.allow_tf32
    torch.set_num_threads(settings.threads)
    fastest = settings.kernels == "fastest"
    cudnn.deterministic, cudnn.benchmark = not fastest, fastest
    matmul.allow_tf32 = cudnn.allow_tf32 = settings.precision == "tf32"
    device = torch_device(settings)
    cuda = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        torch.set_num_threads(threads)
        cudnn.deterministic, cudnn.benchmark = flags
        matmul.allow_tf32, cudnn.allow_tf32 = products
