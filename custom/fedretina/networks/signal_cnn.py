"""Three convolutions over time as an encoder, for signals such as windows of an accelerometer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedretina.errors import TrainingError
from fedretina.networks.encoder import Encoder, Visit, encoder
from fedretina.settings.encoder import SignalCnnTraits

_WIDTHS, _KERNELS = (16, 32, 64), (24, 16, 8)
_PLACES = 14
_FEATURES = 1024
_LOST = sum(kernel - 1 for kernel in _KERNELS)


class SignalEncoder(Encoder):
    """An encoder that keeps where along time its last map was largest.

    In place of a global average the last map's time is cut into 14 equal stretches; the largest value of each channel
    in each goes through one fully connected layer.

    Attributes:
        reduce: That layer with its ReLU.
    """

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__(stages, _WIDTHS)
        self.reduce = nn.Sequential(nn.Linear(_PLACES * _WIDTHS[-1], _FEATURES), nn.ReLU(inplace=True))
        self.features = _FEATURES

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        """See `Encoder.forward_stages`; signals are `[B, 3, h, w]`.

        Raises:
            TrainingError: The signal is too short.
        """
        return super().forward_stages(_long_enough(x))

    def span(self, x: Tensor, begin: int, end: int, visit: Visit | None = None) -> Tensor:
        """See `Encoder.span`; signals are `[B, 3, h, w]`.

        Raises:
            TrainingError: The signal is too short.
        """
        return super().span(x if begin else _long_enough(x), begin, end, visit)

    def pool(self, last: Tensor) -> Tensor:
        """Return the features `[B, F]` of the last stage's map."""
        stretch = last.shape[-1] // _PLACES
        kept = last[..., : stretch * _PLACES]
        features: Tensor = self.reduce(F.max_pool2d(kept, (last.shape[-2], stretch)).flatten(1))
        return features


@encoder(SignalCnnTraits)
def signal_cnn_encoder() -> Encoder:
    """Return an untrained network of three convolutions over time (F = 1024, 0.945 million weights).

    Channels 16, 32, 64 with kernels of 24, 16 and 8 samples, BatchNorm and ReLU after each, no padding and no stride.
    With a linear head for eight activities it has 952,792 weights, the 0.953 million of FedEE's Table 4. Most are in
    the fully connected layer between the last map and the head, which the paper's text does not name: 14 places times
    64 channels to 1024. The authors' code has it, behind a pool over 64 samples, which leaves the last 59 of 955 out;
    ours cuts them into 14 stretches of 68, so windows of other lengths pass too. Their dropout of 0.1 after each
    convolution is left out: it draws from torch's global generator, and a round could not be repeated bit for bit.

    A convolution is 1 x k over `[B, 3, 1, L]`; a picture's rows would pass one by one and meet in the pool. The start
    is drawn from torch's generator; `build_network` seeds it.
    """
    stages: list[nn.Module] = []
    channels = 3
    for width, kernel in zip(_WIDTHS, _KERNELS, strict=True):
        stages.append(
            nn.Sequential(nn.Conv2d(channels, width, (1, kernel)), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        )
        channels = width
    return SignalEncoder(stages)


def _long_enough(x: Tensor) -> Tensor:
    if x.shape[-1] < _LOST + _PLACES:
        raise TrainingError(
            f"The encoder takes signals of {_LOST + _PLACES} samples or more, but got {tuple(x.shape)}; set "
            "images.length higher, or choose another encoder for pictures."
        )
    return x
