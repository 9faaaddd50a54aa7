"""What an answer rests on: how much each part of a photograph speaks for disease, on the grid of the model's features.

The last map of the encoder is a grid, each cell of which describes a part of the picture and what surrounds it. One
cell after the other is replaced by the mean of the others, and the head answers again: what the log odds of disease
lose is what the cell spoke for it, and what they gain is what it spoke against it. Nothing but the head is asked again,
so the map is exact about the head and silent about what the encoder mixed into a cell from further away. With a linear
head on averaged features and two grades it is the class activation map (Zhou et al., CVPR 2016) less its mean.

It says what this model used, and not what is ill. A lesion that the model does not use is dark on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedretina.networks.network import Network
from fedretina.settings.scheme import GradingScheme
from fedretina.uncertainty.estimators import Estimator
from fedretina.uncertainty.promise import chance_of_disease

_AT_ONCE = 32  # cells, so that a fine grid of many channels does not fill the memory
_CERTAIN = 1e-6
_CLOSE = 0.05
"""Most that the head's logits may differ from the answer's: one image and a batch may be computed in other kernels."""


class EvidenceMap(NamedTuple):
    """How much each cell of the grid speaks for disease.

    Attributes:
        cells: float64 [h, w], in log odds; below 0 a cell speaks against it. Of the picture as the network gets it.
        odds: The answer's log odds of disease, or of its grade where the site names no referable ones.
    """

    cells: NDArray[np.float64]
    odds: float


@torch.inference_mode()
def evidence_map(
    net: Network, estimator: Estimator, scheme: GradingScheme, image: Tensor, logits: Tensor
) -> EvidenceMap | None:
    """The map of one image.

    Args:
        net: The network, in evaluation mode.
        estimator: What makes an answer of its logits.
        scheme: Names the referable grades; where there are none, the grade that is answered takes their place.
        image: float32 [1, 3, H, W] in [0, 1], on the network's device.
        logits: What the network answered to it, [1, K] or [1, M, K]; of members the last one's cells are asked, the
            others keep their answer.

    Returns:
        None where the encoder has no grid: it reads a class token or a signal, or answers in several passes.
    """
    seen = net.encoder.span(net.normalised(image), 0, len(net.encoder.stages))
    if seen.dim() != 4 or min(seen.shape[2:]) < 2:
        return None
    height, width = seen.shape[2:]
    asked = _answered(net, seen).float().cpu()
    last = logits if logits.dim() == 2 else logits[:, -1]
    if float((asked - last).abs().max()) > _CLOSE * (1 + float(last.abs().max())):
        return None  # the answer came about in another way than from this grid
    others = (seen.sum((2, 3)) - seen.flatten(2).transpose(0, 2).squeeze(-1)) / (height * width - 1)  # [cells, C]
    changed = []
    for begin in range(0, height * width, _AT_ONCE):
        cells = torch.arange(begin, min(begin + _AT_ONCE, height * width), device=seen.device)
        without = seen.flatten(2).repeat(len(cells), 1, 1)
        without[torch.arange(len(cells), device=seen.device), :, cells] = others[cells]
        changed.append(_answered(net, without.reshape(len(cells), -1, height, width)).float().cpu())
    stacked = torch.cat([asked, *changed])
    if logits.dim() == 3:
        stacked = torch.cat([logits[:, :-1].repeat(len(stacked), 1, 1), stacked[:, None]], 1)
    odds = _odds(estimator.predict(stacked).probabilities, scheme)
    return EvidenceMap((odds[0] - odds[1:]).reshape(height, width), float(odds[0]))


def _answered(net: Network, seen: Tensor) -> Tensor:
    features = net.encoder.pool(seen)
    return net.logits(features if net.projector is None else net.projector(features))


def _odds(probabilities: NDArray[np.float64], scheme: GradingScheme) -> NDArray[np.float64]:
    if scheme.referable:
        chance = chance_of_disease(probabilities, scheme)
    else:
        chance = probabilities[:, int(np.argmax(probabilities[0]))]
    held = np.clip(chance, _CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(held / (1 - held)), dtype=np.float64)
