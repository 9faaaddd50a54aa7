"""ResNet-18 and ResNet-50 as encoders in five stages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fedretina.networks.encoder import Encoder


def resnet18_encoder() -> Encoder:
    """Return an untrained ResNet-18 encoder (F = 512, 11.2 million weights).

    Source: He et al., CVPR 2016; the layers are torchvision's, without its last fully connected layer.
    Nothing is downloaded. The start is drawn from torch's generator; `build_network` seeds it.
    """
    from torchvision.models import resnet18

    return _in_stages(resnet18(weights=None), (64, 64, 128, 256, 512))


def resnet50_encoder() -> Encoder:
    """Return an untrained ResNet-50 encoder (F = 2048, 23.5 million weights), the one of FedUAA.

    Source: He et al., CVPR 2016, with the stride in the 3 x 3 convolution as in torchvision. See
    `resnet18_encoder`.
    """
    from torchvision.models import resnet50

    return _in_stages(resnet50(weights=None), (64, 256, 512, 1024, 2048))


def _in_stages(net: nn.Module, widths: tuple[int, ...]) -> Encoder:
    """Re-home the layers of a torchvision ResNet.

    In the stem (`stages.0.1`) and in the four shortcuts (`downsample.1`) of ResNet-50 a BatchNorm has no
    "bn" in its key. This is also so in the official FedUAA code, which wraps the children in a `Sequential`
    and then selects BatchNorm by name: 5 of 53 leak there. `exchange.partition` goes by module.
    """
    parts = dict(net.named_children())
    stem = nn.Sequential(parts["conv1"], parts["bn1"], parts["relu"], parts["maxpool"])
    return Encoder([stem, *(parts[f"layer{i}"] for i in range(1, 5))], widths)


def load_torchvision_state(encoder: Encoder, state: Mapping[str, Tensor]) -> None:
    """Load a `state_dict` with torchvision's keys (`conv1.weight`, `layer1.0.bn1.bias`, ...) into our stages.

    The classifier `fc.weight` and `fc.bias` is dropped; every other key must find its place.

    Args:
        encoder: The result of `resnet18_encoder` or `resnet50_encoder`.
        state: The published state.

    Raises:
        SettingsError: A key is missing or left over, a shape differs, or a value is not finite.
    """
    homes = {"conv1": "stages.0.0", "bn1": "stages.0.1", **{f"layer{i}": f"stages.{i}" for i in range(1, 5)}}
    encoder.load_renamed(state, homes, "fc")
