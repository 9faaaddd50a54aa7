"""How tensors come to the device on which a network computes, so that nobody waits for them."""

from __future__ import annotations

import torch


def brought(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor where a network computes; itself where it is there.

    To a card it goes from memory that is pinned, behind what stands in the card's queue: nobody waits for it.
    """
    if tensor.device.type == device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
