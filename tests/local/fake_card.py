"""A card that is not there: torch's meta device, whose tensors have a shape and a place, and no numbers to wait for.

It refuses to compute with tensors of another device, and to tell a number or to copy one away. So what runs on it runs
on a card without waiting for it, as far as a processor can tell.
"""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

CARD = torch.device("meta")
_AUTOCAST = torch.autocast


class Copies(TorchDispatchMode):
    """Notes what goes to the card, and what of it the process would wait for."""

    def __init__(self):
        super().__init__()
        self.begin()

    def begin(self):
        """Forget what was noted."""
        self.brought, self.waited_for = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            if source.device != found.device:
                self.brought += 1
                behind = kwargs.get("non_blocking") or args[2:] == (True,)
                if not (behind and getattr(source, "was_pinned", False)):
                    self.waited_for.append((str(func), tuple(source.shape)))
        return found


def _pinned(tensor):
    tensor.was_pinned = True
    return tensor


def _autocast(device, *how, **named):
    return nullcontext() if device == CARD.type else _AUTOCAST(device, *how, **named)


def put_on_card(model, monkeypatch):
    """Let a site's model stand on the card that is not there."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", _pinned)  # which needs a card
    monkeypatch.setattr(torch, "autocast", _autocast)  # which knows no such device
    for module in model.net.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(torch.empty_like(value, device=CARD), value.requires_grad)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = torch.empty_like(value, device=CARD)
    model.device, model._places = CARD, model.net.state_dict()
