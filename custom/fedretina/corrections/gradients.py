"""What corrections gather of a round's gradients: their mean, and how large a correction is beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fedretina.corrections.correction import Rates

RATIO = "correction_ratio"
"""Figure of a round: sum of |correction| / sum of |raw gradient| over its steps; it stays in the site's own history."""


def raw_gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Gradients of the parameters that have one in this step, by key; a frozen parameter has none."""
    return {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None}


def length(tensors: Iterable[Tensor]) -> Tensor:
    """Length of tensors together, a scalar on their device; nothing waits for it."""
    each: list[Tensor] = [tensor.norm() for tensor in tensors]
    total: Tensor = torch.stack(each).norm()
    return total


class MeanGradient:
    """The mean gradient of a round by key, each step weighted by its learning rate.

    For plain SGD it is the way that the weights went over the sum of the rates. Under momentum that way is up to ten
    times longer, under Adam it hardly depends on the gradient, and clipping and decay change it too: a memory that is
    to hold a gradient is made of gradients, never of the way.
    """

    def __init__(self) -> None:
        self._mean: dict[str, Tensor] = {}
        self._rates: dict[str, float] = {}

    def gather(self, gradients: Mapping[str, Tensor], rates: Rates) -> None:
        """Add a step's gradients, which are copied."""
        for key, gradient in gradients.items():
            self._rates[key] = self._rates.get(key, 0.0) + rates[key]
            if key not in self._mean:
                self._mean[key] = gradient.clone()
            elif self._rates[key] > 0:
                self._mean[key].lerp_(gradient, rates[key] / self._rates[key])

    def of(self, key: str) -> Tensor | None:
        """The mean of a key; None where no step of a rate above 0 had a gradient of it."""
        return self._mean[key] if self._rates.get(key, 0.0) > 0 else None


class CorrectionSize:
    """How large a correction is beside the raw gradient, over a round.

    A correction of which nothing is left beside the gradient does nothing, and one of many times its length diverges:
    both show in a curve, and in no accuracy. Lengths are summed over the steps before they are divided: where a few
    images are learned by heart a step's gradient all but vanishes, and the mean of the steps' ratios would be that
    step's. The sums are kept on the device, so that no step waits for them.
    """

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor] | None = None

    def note(self, correction: Tensor, gradient: Tensor) -> None:
        """Add a step.

        Args:
            correction: Length of what is added to the gradient, a scalar.
            gradient: Length of the raw gradient.
        """
        before = (torch.zeros_like(gradient), torch.zeros_like(gradient)) if self._sums is None else self._sums
        self._sums = before[0] + correction, before[1] + gradient

    def figures(self) -> dict[str, float]:
        """The ratio over the round's steps, as a figure of `Outcome`; 0 where there was no gradient."""
        corrections, gradients = (0.0, 0.0) if self._sums is None else map(float, self._sums)
        return {RATIO: corrections / gradients if gradients > 0 else 0.0}
