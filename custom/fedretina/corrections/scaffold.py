"""SCAFFOLD: control variates that subtract each site's own direction and add everybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedretina.corrections.correction import (
    Correction,
    LocalRound,
    Outcome,
    Rates,
    RoundContext,
    ServerRound,
    correction,
)
from fedretina.corrections.gradients import CorrectionSize, MeanGradient, length, raw_gradients
from fedretina.exchange.partition import CONTROL
from fedretina.exchange.payload import Tensors
from fedretina.settings.correction import ScaffoldSettings

if TYPE_CHECKING:
    from fedretina.settings.training import OptimiserSettings


class ScaffoldRound(LocalRound):
    """Adds c - c_i and gathers what c_i becomes."""

    def __init__(self, context: RoundContext, settings: ScaffoldSettings, momentum: float) -> None:
        self._context = context
        self._settings = settings
        self._in_gradient = settings.place == "gradient"
        self._momentum = momentum
        self._own = {  # c_i
            key: context.memory.get(f"variate:{key}", torch.zeros_like(parameter.detach()))
            for key, parameter in context.parameters.items()
        }
        self._toward = {key: context.control[key] - own for key, own in self._own.items()}  # c - c_i
        self._length = length(self._toward.values())
        self._start = {} if settings.update == "mean_grad" else {k: context.received[k].clone() for k in self._own}
        self._gathered = MeanGradient()
        self._rates = dict.fromkeys(self._own, 0.0)  # sum of eta_s
        self._pull = dict.fromkeys(self._own, 0.0)  # sum of eta_s a_s: how far unit gradients carry the weights
        self._speed = 0.0  # momentum's memory of unit gradients
        self._scale = torch.ones_like(self._length)
        self._moving: tuple[str, ...] = ()
        self._size = CorrectionSize()

    @torch.no_grad()
    def adjust(self, rates: Rates) -> None:
        """See `LocalRound.adjust`; the gradient is still raw here: neither clipped nor decayed."""
        gradients = raw_gradients(self._context.parameters)
        self._moving = tuple(gradients)
        self._speed = self._momentum * self._speed + 1
        for key in gradients:
            self._rates[key] += rates[key]
            self._pull[key] += rates[key] * self._speed
        if self._settings.update == "mean_grad":
            self._gathered.gather(gradients, rates)
        if not gradients:
            return
        raw = length(gradients.values())
        self._size.note(self._length, raw)
        # The guard, on the device: no step waits for a length. Without a gradient there is nothing to be measured by.
        capped = (self._settings.max_ratio * raw / self._length).clamp(max=1)
        self._scale = torch.where((raw > 0) & (self._length > 0), capped, torch.ones_like(raw))
        if self._in_gradient:
            for key, gradient in gradients.items():
                gradient.addcmul_(self._toward[key], self._scale)

    @torch.no_grad()
    def stepped(self, rates: Rates) -> None:
        """See `LocalRound.stepped`."""
        if not self._in_gradient:
            for key in self._moving:  # a frozen parameter stands still
                self._context.parameters[key].addcmul_(self._toward[key], self._scale, value=-rates[key])

    @torch.no_grad()
    def finish(self) -> Outcome:
        """See `LocalRound.finish`: c_i+ - c_i goes up.

        The site keeps c_i plus that difference, not c_i+ itself: so both ends round alike, and with one site c - c_i
        is 0 to the last bit.
        """
        change = {key: self._renewed(key) - own for key, own in self._own.items()}
        memory = {f"variate:{key}": self._own[key] + value for key, value in change.items()}
        ways = {} if self._settings.update == "mean_grad" else {key: self._travelled(key) for key in self._own}
        return Outcome(change, memory, self._size.figures(), ways)

    def _renewed(self, key: str) -> Tensor:
        own = self._own[key]
        if self._rates[key] == 0:  # a parameter without gradient in this round, such as a frozen one
            return own
        if self._settings.update == "mean_grad":
            mean = self._gathered.of(key)
            return own if mean is None else mean
        way = (self._start[key] - self._context.parameters[key]) / self._travelled(key)
        return way - self._toward[key]  # c_i - c + (x - y) / (S eta)

    def _travelled(self, key: str) -> float:
        return self._pull[key] if self._settings.update == "option2_fednova" else self._rates[key]


@correction(ScaffoldSettings)
class Scaffold(Correction):
    """SCAFFOLD (Karimireddy et al., ICML 2020) over the parameters that travel.

    Site: g + c - c_i in place of g, before the optimiser's moments, whatever the optimiser. Server: x += eta_g mean(y_i
    - x), c += |S|/N mean(c_i+ - c_i).

    Differs from the paper in how c_i+ is found. For plain SGD, the paper's Option II equals the mean of the raw
    gradients, since x - y = eta S (gbar - c_i + c). Under momentum 0.9 the same formula overestimates it
    tenfold, under Adam it saturates near 1, and a schedule, clipping or decay break it too; the mean of the raw
    gradients is right under all of them and is the default. Differs from FLARE's own helper in that the server's
    variate moves by |S|/N, as the paper says, that parameters may have rates of their own, and in where the
    correction enters: FLARE and NIID-Bench take lr (c - c_i) off the weights after the step (`place` "weights"). For
    plain SGD that is the same. Adam's step does not shrink with the gradient, so beside it nothing is left of that
    correction on a network, and on quadratics it diverges; in the gradient it brings the same sites to their joint
    optimum (tests/corrections/test_under_other_optimisers.py).

    Args:
        settings: The settings.
        momentum: Of the optimiser in use; 0 for Adam.
    """

    def __init__(self, settings: ScaffoldSettings, momentum: float = 0.0) -> None:
        self._settings = settings
        self._momentum = momentum
        self.follows = settings.update != "mean_grad"
        self.comes_back = self.follows and settings.eta_g == 1

    @classmethod
    def of(cls, own: ScaffoldSettings, optimiser: OptimiserSettings) -> Self:
        """See `Correction.of`."""
        return cls(own, optimiser.momentum)

    def begin(self, context: RoundContext) -> LocalRound:
        """See `Correction.begin`."""
        return ScaffoldRound(context, self._settings, self._momentum)

    def control_of(self, start: Tensor, end: Tensor, way: float, control: Tensor | None) -> Tensor:
        """See `Correction.control_of`: c_i+ - c_i = (x - y) / (S eta) - c.

        With every site there, alike in weight and way, c + mean(c_i+ - c_i) is (x - mean y) / (S eta).
        """
        went = (start - end) / way
        return went if control is None else went - control

    def server(self, round_: ServerRound) -> Tensors:
        """See `Correction.server`."""
        after = dict(round_.mixed)
        if self._settings.eta_g != 1:
            for key in round_.parameters:
                after[key] = torch.lerp(round_.received[key], round_.mixed[key], self._settings.eta_g)
        names = [f"{CONTROL}{key}" for key in round_.parameters]
        change = round_.uniform(names)
        share = len(round_.sites) / round_.enrolled  # |S| / N
        held = {name: round_.over_all(round_.received[name]) for name in names}
        return {**after, **{name: held[name] + share * change[name] for name in names}}
