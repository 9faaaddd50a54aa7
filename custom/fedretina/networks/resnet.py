"""ResNet-18 and ResNet-50 as encoders in five stages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, Layout, published
from fedretina.settings.encoder import ResNet18Traits, ResNet50Traits


@encoder(ResNet18Traits)
def resnet18_encoder() -> Encoder:
    """Return an untrained ResNet-18 encoder (F = 512, 11.2 million weights).

    Source: He et al., CVPR 2016; the layers are torchvision's, without its last fully connected layer.
    Nothing is downloaded. The start is drawn from torch's generator; `build_network` seeds it.
    """
    from torchvision.models import resnet18

    return _in_stages(resnet18(weights=None), (64, 64, 128, 256, 512))


@encoder(ResNet50Traits)
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


@published(ResNet18Traits, ResNet50Traits)
class PublishedResNet(Layout):
    """torchvision's keys (`conv1.weight`, `layer1.0.bn1.bias`, ...); timm's are the same."""

    title = "torchvision or timm"
    pretrained_on = IMAGENET
    licence = "BSD-3-Clause (torchvision) or Apache-2.0 (timm) by their code; see what the file came with"
    marks = ("conv1.weight", "layer1.0.conv1.weight")
    dropped = ("fc",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return {"conv1": "stages.0.0", "bn1": "stages.0.1", **{f"layer{i}": f"stages.{i}" for i in range(1, 5)}}
