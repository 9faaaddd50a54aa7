"""The card that a process works on, and the memory of it that it may take, set before CUDA starts."""

from __future__ import annotations

import os

import torch

from fedretina.errors import SettingsError
from fedretina.seeds import torch_device
from fedretina.settings.gpu import GpuSettings
from fedretina.settings.training import TrainingSettings

SHOWN = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


def take_gpu(settings: GpuSettings, training: TrainingSettings) -> None:
    """Let this process see the site's card alone, and cap what torch takes of it; done again it changes nothing.

    Args:
        settings: The site's.
        training: The job's: where it trains on the CPU nothing is capped.

    Raises:
        SettingsError: The process is shown other cards, it has used one already, or the job must have a card and there
            is none.
    """
    if settings.card is not None:
        _show_only(str(settings.card))
    if settings.memory_share < 1 and torch_device(training).type == "cuda":
        torch.cuda.set_per_process_memory_fraction(settings.memory_share)


def _show_only(card: str) -> None:
    shown = os.environ.get(SHOWN)
    if shown == card:
        return
    if shown is not None and card not in shown.split(","):
        raise SettingsError(
            f"gpu.card is {card}, but this process is shown {shown or 'no card'} ({SHOWN}): leave gpu.card out where "
            "FLARE, a container or a cluster chooses the card."
        ).telling("the site's own settings name a card that it cannot have: its log says more.")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise SettingsError(
            f"gpu.card is {card}, but this process has begun to use another card: let each site have a process."
        ).telling("the site's own settings name a card that it cannot have: its log says more.")
    # CUDA reads both once, when it starts. Without the order it would count the fastest card as the first.
    os.environ.setdefault(_ORDER, "PCI_BUS_ID")
    os.environ[SHOWN] = card
