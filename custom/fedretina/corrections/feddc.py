"""FedDC: a proximal term around the aggregate less the site's drift, and a gradient correction."""

from __future__ import annotations

import torch

from fedretina.corrections.correction import (
    Correction,
    LocalRound,
    Outcome,
    Rates,
    RoundContext,
    ServerRound,
    correction,
)
from fedretina.corrections.feddyn import with_mean_drift
from fedretina.corrections.gradients import CorrectionSize, MeanGradient, length, raw_gradients
from fedretina.exchange.partition import CONTROL
from fedretina.exchange.payload import Tensors
from fedretina.settings.correction import FedDcSettings


class FedDcRound(LocalRound):
    """Adds alpha_i (w - w_t + h_i) + g / p_i - g_i to the gradient."""

    def __init__(self, context: RoundContext, alpha: float, share: float) -> None:
        self._context = context
        self._alpha = alpha  # alpha_i
        self._share = share  # p_i
        self._start = {key: context.received[key].clone() for key in context.parameters}  # w_t
        self._drift, self._gradient = (  # h_i, g_i
            {key: context.memory.get(f"{name}:{key}", torch.zeros_like(start)) for key, start in self._start.items()}
            for name in ("drift", "gradient")
        )
        self._toward = {key: context.control[key] / share - own for key, own in self._gradient.items()}  # g / p_i - g_i
        self._gathered = MeanGradient()
        self._size = CorrectionSize()

    @torch.no_grad()
    def adjust(self, rates: Rates) -> None:
        """See `LocalRound.adjust`."""
        gradients = raw_gradients(self._context.parameters)
        if not gradients:
            return
        raw, added = length(gradients.values()), []
        for key, gradient in gradients.items():
            spring = self._context.parameters[key] - self._start[key] + self._drift[key]
            gradient.add_(spring, alpha=self._alpha)
            added.append(spring.mul_(self._alpha).add_(self._toward[key]))
        self._size.note(length(added), raw)
        # The gradient of f_i with its spring, and without the memories: what the next g_i is the mean of.
        self._gathered.gather(gradients, rates)
        for key, gradient in gradients.items():
            gradient.add_(self._toward[key])

    @torch.no_grad()
    def finish(self) -> Outcome:
        """See `LocalRound.finish`: h_i += Delta, g_i becomes the mean gradient; its change goes up, times p_i."""
        memory: dict[str, torch.Tensor] = {}
        control: dict[str, torch.Tensor] = {}
        for key, parameter in self._context.parameters.items():
            own, mean = self._gradient[key], self._gathered.of(key)
            change = torch.zeros_like(own) if mean is None else mean - own
            memory[f"drift:{key}"] = self._drift[key] + (parameter - self._start[key])
            memory[f"gradient:{key}"] = own + change  # both ends round alike
            control[key] = self._share * change
        return Outcome(control, memory, self._size.figures())


@correction(FedDcSettings)
class FedDc(Correction):
    """FedDC (Gao et al., CVPR 2022), as its official code states it.

    Site: f_i(w) + alpha_i / 2 ||w - (w_t - h_i)||^2 + <w, g / p_i - g_i>; then h_i += Delta, Delta = w_i - w_t, and
    g_i becomes the mean over the round's steps of grad f_i(w) + alpha_i (w - w_t + h_i). Server: w = mean of w_i + mean
    over all sites of h_i, g += (1/N) sum_i p_i (g_i's change).

    Differs from that code in how g_i is found. It has g_i += -g / p_i - Delta / (S eta), which for plain SGD is that
    very mean, since Delta = -sum eta_s (grad f_i + alpha_i (w - w_t + h_i) + g / p_i - g_i). Under momentum 0.9 the
    formula is some eight times too large and the run diverges, under Adam it is no gradient at all, and it divides by
    the rate before decay while it trains with the decayed one; the mean is right under all of them.
    """

    def __init__(self, settings: FedDcSettings) -> None:
        self._settings = settings

    def begin(self, context: RoundContext) -> LocalRound:
        """See `Correction.begin`."""
        if self._settings.alpha == 0:
            return _Silent(context)
        share = context.share if self._settings.by_images else 1.0
        return FedDcRound(context, self._settings.alpha / share, share)

    def server(self, round_: ServerRound) -> Tensors:
        """See `Correction.server`."""
        names = [f"{CONTROL}{key}" for key in round_.parameters]
        if self._settings.alpha == 0:
            return {**round_.mixed, **{name: round_.received[name] for name in names}}
        change = round_.uniform(names)
        share = len(round_.sites) / round_.enrolled  # |S| / N
        held = {name: round_.over_all(round_.received[name]) for name in names}
        return {**with_mean_drift(round_), **{name: held[name] + share * change[name] for name in names}}


class _Silent(LocalRound):
    """Corrects nothing, but sends the zeros that the row's exchange declares."""

    def __init__(self, context: RoundContext) -> None:
        self._control = {key: torch.zeros_like(value) for key, value in context.control.items()}

    def finish(self) -> Outcome:
        """See `LocalRound.finish`."""
        return Outcome(self._control, {}, {})
