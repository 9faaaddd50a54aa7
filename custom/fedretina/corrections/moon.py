"""MOON: a contrast that draws a site's features to the aggregate's and away from its own last model's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedretina.corrections.correction import Correction, LocalRound, Outcome, RoundContext, correction
from fedretina.settings.correction import MoonSettings


def moon_contrast(own: Tensor, aggregate: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """The model-contrastive loss, MOON Eq. 3: -log softmax of the aggregate's similarity against the last model's.

    Args:
        own: Features z of the network in training [B, F].
        aggregate: Features of the aggregate z_glob [B, F]; no gradient is needed.
        previous: Features of the site's last model z_prev [B, F]; no gradient is needed.
        temperature: T, above 0.

    Returns:
        The mean over the batch, above 0; log 2 where both are equally near.
    """
    near = F.cosine_similarity(own, aggregate, dim=1) / temperature
    far = F.cosine_similarity(own, previous, dim=1) / temperature
    return F.softplus(far - near).mean()


class MoonRound(LocalRound):
    """Reads the features of each forward pass and adds the contrast."""

    def __init__(self, context: RoundContext, settings: MoonSettings) -> None:
        self._context = context
        self._settings = settings
        self._features: Tensor | None = None
        self._aggregate = _frozen(context.net)
        self._previous = _frozen(context.net)
        kept = {key.removeprefix("state:"): value for key, value in context.memory.items()}
        self._previous.load_state_dict(kept, strict=True)
        self._hook = _last_shared(context.net).register_forward_hook(self._see)

    def penalty(self, images: Tensor) -> Tensor | None:
        """See `LocalRound.penalty`."""
        own, self._features = self._features, None
        if own is None:
            return None
        with torch.no_grad():
            aggregate = self._aggregate.features(images)
            previous = self._previous.features(images)
        return self._settings.mu * moon_contrast(own, aggregate, previous, self._settings.temperature)

    def finish(self) -> Outcome:
        """See `LocalRound.finish`: the model as it is now becomes the previous one."""
        return _remembered(self._context)

    def close(self) -> None:
        """See `LocalRound.close`."""
        self._hook.remove()

    def _see(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._features = output


class _First(LocalRound):
    """A site's first round: there is no last model, so the contrast has one term and is 0."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context

    def finish(self) -> Outcome:
        return _remembered(self._context)


@correction(MoonSettings)
class Moon(Correction):
    """MOON (Li, He, Song, CVPR 2021): loss + mu l_con on the features that enter the head.

    The features are those of the projector where the network has one, as in the paper, else the pooled features of
    the encoder, as in FedUAA's comparison. Aggregate and previous model answer in evaluation mode, the site's in
    training mode, as in the official code. The previous model is the site's own after its last accepted round; in
    the first round there is none and the contrast is 0, as that code does it. All of it stays at the site.
    """

    def __init__(self, settings: MoonSettings) -> None:
        self._settings = settings

    def begin(self, context: RoundContext) -> LocalRound:
        """See `Correction.begin`."""
        if self._settings.mu == 0:
            return LocalRound()
        return MoonRound(context, self._settings) if context.memory else _First(context)


def _last_shared(net: nn.Module) -> nn.Module:
    projector = getattr(net, "projector", None)
    return projector if isinstance(projector, nn.Module) else net.get_submodule("encoder")


def _frozen(net: nn.Module) -> Any:
    return copy.deepcopy(net).eval().requires_grad_(False)


def _remembered(context: RoundContext) -> Outcome:
    state = context.net.state_dict()
    return Outcome({}, {f"state:{key}": value.detach().clone() for key, value in state.items()}, {})
