"""ConvNeXt-tiny as an encoder in five stages; the layers are timm's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, TORCHVISION_LICENCE, Fitted, Layout, published
from fedretina.settings.encoder import ConvNeXtTinyTraits

_WIDTHS = (96, 192, 384, 768)


class ConvNeXtEncoder(Encoder):
    """A ConvNeXt: a stem that cuts patches of 4 pixels, then four stages; the average of the last passes a LayerNorm.

    Attributes:
        norm: That LayerNorm.
    """

    def __init__(self, stages: list[nn.Module], widths: tuple[int, ...], norm: nn.Module) -> None:
        super().__init__(stages, widths)
        self.norm = norm

    def pool(self, last: Tensor) -> Tensor:
        """See `Encoder.pool`."""
        features: Tensor = self.norm(self.average(last)[:, :, None, None]).flatten(1)
        return features


@encoder(ConvNeXtTinyTraits)
def convnext_tiny_encoder() -> Encoder:
    """Return an untrained ConvNeXt-tiny encoder (F = 768, 27.8 million weights).

    Source: Liu et al., CVPR 2022. It has LayerNorm and no BatchNorm: nothing of it needs to stay at a site. No
    stochastic depth. timm's class is built itself, not its named models: nothing in it can ask a hub for weights.
    """
    from timm.models.convnext import ConvNeXt

    net = ConvNeXt(depths=(3, 3, 9, 3), dims=_WIDTHS, num_classes=0)
    return ConvNeXtEncoder([net.stem, *net.stages], (_WIDTHS[0], *_WIDTHS), net.head.norm)


@published(ConvNeXtTinyTraits)
class TimmConvNeXt(Layout):
    """timm's keys (`stages.1.blocks.0.conv_dw.weight`, ...)."""

    title = "timm"
    pretrained_on = IMAGENET + "; some of timm's files more: their cards say"
    licence = "Apache-2.0 or MIT as a rule; see the card that the file came with"
    marks = ("stem.0.weight", "head.norm.weight")
    dropped = ("head.fc",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return {"stem": "stages.0", **{f"stages.{n}": f"stages.{n + 1}" for n in range(4)}, "head.norm": "norm"}


@published(ConvNeXtTinyTraits)
class MetaConvNeXt(TimmConvNeXt):
    """Meta's own file (`downsample_layers.0.0.weight`, `stages.1.0.dwconv.weight`, ...), under "model"."""

    title = "Meta's ConvNeXt"
    licence = "MIT"
    marks = ("downsample_layers.0.0.weight", "stages.0.0.dwconv.weight")
    dropped = ("head",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return {**{name: ours for name, ours in super().homes(encoder).items() if name != "head.norm"}, "norm": "norm"}

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`."""
        return Fitted({_timms(key): value for key, value in state.items()})


def _timms(key: str) -> str:
    key = re.sub(r"^downsample_layers\.0\.", "stem.", key)
    key = re.sub(r"^downsample_layers\.(\d+)\.(\d+)", r"stages.\1.downsample.\2", key)
    key = re.sub(r"^stages\.(\d+)\.(\d+)", r"stages.\1.blocks.\2", key)
    return key.replace("dwconv", "conv_dw").replace("pwconv", "mlp.fc")


@published(ConvNeXtTinyTraits)
class TorchvisionConvNeXt(Layout):
    """torchvision's keys (`features.1.0.block.0.weight`, ...); the same function as timm's."""

    title = "torchvision"
    pretrained_on = IMAGENET
    licence = TORCHVISION_LICENCE
    marks = ("features.0.0.weight", "features.1.0.layer_scale")
    dropped = ("classifier.2",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        homes = {"features.0": "stages.0", "classifier.0": "norm"}
        for stage in range(1, len(encoder.stages)):
            if stage > 1:
                homes[f"features.{2 * stage - 2}"] = f"stages.{stage}.downsample"
            for at, _ in enumerate(encoder.stages[stage].get_submodule("blocks").children()):
                theirs, ours = f"features.{2 * stage - 1}.{at}", f"stages.{stage}.blocks.{at}"
                homes |= {f"{theirs}.{name}": f"{ours}.{mine}" for name, mine in _BLOCK.items()}
        return homes

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`: torchvision's factors of the channels have two more axes of length 1."""
        return Fitted({key: _flat(value) if key.endswith(_SCALE) else value for key, value in state.items()})


_SCALE = "layer_scale"
_BLOCK = {_SCALE: "gamma", "block.0": "conv_dw", "block.2": "norm", "block.3": "mlp.fc1", "block.5": "mlp.fc2"}


def _flat(value: Tensor) -> Tensor:
    return value.flatten() if value.shape[1:] == (1, 1) else value
