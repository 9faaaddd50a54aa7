"""FedDyn: a proximal term around the aggregate whose centre each site moves by its own drift."""

from __future__ import annotations

import torch

from fedretina.corrections.correction import (
    MEMORY,
    Correction,
    LocalRound,
    Outcome,
    Rates,
    RoundContext,
    ServerRound,
    correction,
)
from fedretina.corrections.gradients import CorrectionSize, length, raw_gradients
from fedretina.exchange.payload import Tensors
from fedretina.settings.correction import FedDynSettings


class FedDynRound(LocalRound):
    """Adds alpha_i (w - w_t + h_i) to the gradient; h_i is the site's accumulated drift."""

    def __init__(self, context: RoundContext, alpha: float) -> None:
        self._context = context
        self._alpha = alpha  # alpha_i
        self._start = {key: context.received[key].clone() for key in context.parameters}  # w_t
        self._drift = {  # h_i
            key: context.memory.get(f"drift:{key}", torch.zeros_like(self._start[key])) for key in context.parameters
        }
        self._size = CorrectionSize()

    @torch.no_grad()
    def adjust(self, rates: Rates) -> None:
        """See `LocalRound.adjust`."""
        gradients = raw_gradients(self._context.parameters)
        if not gradients:
            return
        raw, springs = length(gradients.values()), []
        for key, gradient in gradients.items():
            springs.append(self._context.parameters[key] - self._start[key] + self._drift[key])
            gradient.add_(springs[-1], alpha=self._alpha)
        self._size.note(self._alpha * length(springs), raw)

    @torch.no_grad()
    def finish(self) -> Outcome:
        """See `LocalRound.finish`: h_i grows by w_i - w_t."""
        moved = {key: parameter - self._start[key] for key, parameter in self._context.parameters.items()}
        return Outcome(
            {}, {f"drift:{key}": self._drift[key] + value for key, value in moved.items()}, self._size.figures()
        )


@correction(FedDynSettings)
class FedDyn(Correction):
    """FedDyn (Acar et al., ICLR 2021), as its official code states it.

    Site: minimise f_i(w) + alpha_i <w, h_i - w_t> + alpha_i / 2 ||w||^2, then h_i += w_i - w_t. Server:
    w_{t+1} = mean over the accepted of w_i + mean over all sites of h_i; the latter is kept as one sum, so no h_i
    ever leaves its site. The quadratic is added to the gradient instead of through the optimiser's weight
    decay: the same for SGD, and sound for the others. Only parameters that travel take part, never BatchNorm's
    running statistics, which may turn negative under a drift (the official code has no BatchNorm at all).
    h_i is a sum of ways, as in that code, and no estimate of a gradient: nothing divides it by steps or rates. Where
    no site moves any more, grad f_i = -alpha h_i and the sum of all h_i is 0, whatever the optimiser, so momentum, Adam
    and schedules change how fast it goes there and not where to. Made of mean gradients instead, as FedDC's g_i is,
    h_i would have the server step by 1 / alpha and diverge below an alpha of about half the losses' curvature, under
    plain SGD too (both in tests/corrections/test_under_other_optimisers.py). With the
    paper's alpha of 0.01 forty rounds of few short steps get hardly anywhere on that toy, under Adam as under momentum:
    tune it (1 there, 0.1 in docs/trunk.md).
    The means are uniform, as in the paper, whatever the row's weights are; those still decide the rest of
    the state.
    """

    def __init__(self, settings: FedDynSettings) -> None:
        self._settings = settings

    def begin(self, context: RoundContext) -> LocalRound:
        """See `Correction.begin`."""
        alpha = self._settings.alpha / (context.share if self._settings.by_images else 1.0)
        return FedDynRound(context, alpha) if alpha > 0 else LocalRound()

    def server(self, round_: ServerRound) -> Tensors:
        """See `Correction.server`."""
        return with_mean_drift(round_) if self._settings.alpha > 0 else round_.mixed


def with_mean_drift(round_: ServerRound) -> dict[str, torch.Tensor]:
    """Add the mean drift of all sites, (1/N) sum_i h_i, to the mean of the accepted; for what travels as parameter.

    Returns:
        The next aggregate with the server's memory.
    """
    mean = round_.uniform(round_.parameters)
    share = len(round_.sites) / round_.enrolled  # |S| / N
    after = dict(round_.mixed)
    for key in round_.parameters:
        drift = round_.over_all(round_.kept("drift", key)) + share * (mean[key] - round_.received[key])
        after[key] = mean[key] + drift
        after[f"{MEMORY}drift:{key}"] = drift
    return after
