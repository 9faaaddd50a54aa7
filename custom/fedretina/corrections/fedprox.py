"""FedProx: a proximal term around the aggregate."""

from __future__ import annotations

import torch

from fedretina.corrections.correction import Correction, LocalRound, Outcome, Rates, RoundContext, correction
from fedretina.corrections.gradients import CorrectionSize, length, raw_gradients
from fedretina.settings.correction import FedProxSettings


class FedProxRound(LocalRound):
    """Adds the gradient of mu/2 ||w - w_t||^2, which is mu (w - w_t), to that of the loss."""

    def __init__(self, context: RoundContext, mu: float) -> None:
        self._context = context
        self._mu = mu
        # The parameters change in place, so what they were is copied.
        self._start = {key: context.received[key].clone() for key in context.parameters}
        self._size = CorrectionSize()

    @torch.no_grad()
    def adjust(self, rates: Rates) -> None:
        """See `LocalRound.adjust`."""
        gradients = raw_gradients(self._context.parameters)
        if not gradients:
            return
        raw, ways = length(gradients.values()), []
        for key, gradient in gradients.items():
            ways.append(self._context.parameters[key] - self._start[key])
            gradient.add_(ways[-1], alpha=self._mu)
        self._size.note(self._mu * length(ways), raw)

    def finish(self) -> Outcome:
        """See `LocalRound.finish`."""
        return Outcome({}, {}, self._size.figures())


@correction(FedProxSettings)
class FedProx(Correction):
    """FedProx (Li et al., MLSys 2020, Eq. 2) over the parameters that travel.

    The gradient of the term is added to the loss's: the same step as adding the term to the loss, without its
    graph. The norm is squared, as in the paper; the FedEE code takes its root. The term is on from the first step,
    where w = w_t makes it 0; some codes skip that step. Personal parameters are free: there is nothing to
    hold them to.
    """

    def __init__(self, settings: FedProxSettings) -> None:
        self._settings = settings

    def begin(self, context: RoundContext) -> LocalRound:
        """See `Correction.begin`."""
        return FedProxRound(context, self._settings.mu) if self._settings.mu > 0 else LocalRound()
