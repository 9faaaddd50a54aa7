"""SwinV2-tiny as an encoder in five stages; the layers are timm's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from fedretina.errors import TrainingError
from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import IMAGENET, TORCHVISION_LICENCE, Fitted, Layout, published
from fedretina.settings.encoder import SwinV2TinyTraits

_WIDTHS = (96, 192, 384, 768)
_SIDE = SwinV2TinyTraits.side


class SwinStage(nn.Module):
    """Layers that work on `[B, h, w, C]`, between maps `[B, C, h, w]`.

    Args:
        layers: timm's stage.
        norm: What the last stage's tokens pass at the end.
    """

    def __init__(self, layers: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layers, self.norm = layers, norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the map `[B, C', h', w']`."""
        out: Tensor = self.norm(self.layers(x.permute(0, 2, 3, 1)))
        return out.permute(0, 3, 1, 2)


class SwinEmbedding(nn.Module):
    """Cuts images into patches of 4 pixels, `[B, 3, H, W]` to `[B, C, H / 4, W / 4]`.

    Args:
        net: timm's patch embedding.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.proj, self.norm = net.get_submodule("proj"), net.get_submodule("norm")

    def forward(self, x: Tensor) -> Tensor:
        """Return the map.

        Raises:
            TrainingError: The images are not RGB, or a side is no multiple of what the four stages divide it by.
        """
        least = SwinV2TinyTraits.patch
        if x.dim() != 4 or x.shape[1] != 3 or x.shape[2] % least or x.shape[3] % least:
            raise TrainingError(
                f"The encoder takes RGB images [B, 3, H, W] with sides that {least} divides, but got {tuple(x.shape)}; "
                f"set images.image_size to a multiple of {least}."
            )
        out: Tensor = self.norm(self.proj(x).permute(0, 2, 3, 1))
        return out.permute(0, 3, 1, 2)


@encoder(SwinV2TinyTraits)
def swinv2_tiny_encoder() -> Encoder:
    """Return an untrained SwinV2-tiny encoder (F = 768, 27.6 million weights), windows of 8 x 8 tokens.

    Source: Liu et al., CVPR 2022. Positions within a window are computed from their distance, so one set of weights
    serves images of any size whose side 32 divides. It has LayerNorm and no BatchNorm, and no stochastic depth. timm's
    class is built itself, not its named models: nothing in it can ask a hub for weights.
    """
    from timm.models.swin_transformer_v2 import SwinTransformerV2

    net = SwinTransformerV2(
        img_size=_SIDE,
        window_size=8,
        embed_dim=_WIDTHS[0],
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        num_classes=0,
        drop_path_rate=0.0,
        strict_img_size=False,
    )
    last = len(net.layers) - 1
    stages = [SwinStage(one, net.norm if at == last else nn.Identity()) for at, one in enumerate(net.layers)]
    return Encoder([SwinEmbedding(net.patch_embed), *stages], (_WIDTHS[0], *_WIDTHS))


@published(SwinV2TinyTraits)
class SwinV2(Layout):
    """timm's keys, or those of Microsoft's own file, under "model", which ends a stage where timm begins the next.

    Tables that follow from the window's size are left out: they are no weights.
    """

    title = "SwinV2, timm or Microsoft"
    pretrained_on = IMAGENET + "; some of the files ImageNet-22k: their cards say"
    licence = "MIT"
    marks = ("patch_embed.proj.weight", "layers.0.blocks.0.attn.logit_scale")
    dropped = ("head",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        last = len(encoder.stages) - 1
        layers = {f"layers.{n}": f"stages.{n + 1}.layers" for n in range(last)}
        return {"patch_embed": "stages.0", **layers, "norm": f"stages.{last}.norm"}

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`."""
        tables = tuple(key for key in state if key.endswith(_TABLES))
        found = {key: value for key, value in state.items() if key not in tables}
        if "layers.0.downsample.reduction.weight" in found:
            found = {_DOWN.sub(lambda m: f"layers.{int(m[1]) + 1}.downsample", k): v for k, v in found.items()}
        return Fitted(found, dropped=tables)


@published(SwinV2TinyTraits)
class TorchvisionSwinV2(Layout):
    """torchvision's keys of `swin_v2_t` (`features.1.0.attn.qkv.weight`, ...).

    It is the same function as timm's for images of 256 pixels. For others the two may shift and pad their windows
    otherwise.
    """

    title = "torchvision"
    theirs = "swin_v2_t"
    pretrained_on = IMAGENET
    licence = TORCHVISION_LICENCE
    marks = ("features.0.0.weight", "features.1.0.attn.logit_scale")
    dropped = ("head",)

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        last = len(encoder.stages) - 1
        homes = {"features.0.0": "stages.0.proj", "features.0.2": "stages.0.norm", "norm": f"stages.{last}.norm"}
        for stage in range(1, last + 1):
            if stage > 1:
                homes[f"features.{2 * stage - 2}"] = f"stages.{stage}.layers.downsample"
            for at, _ in enumerate(encoder.stages[stage].get_submodule("layers.blocks").children()):
                theirs, ours = f"features.{2 * stage - 1}.{at}", f"stages.{stage}.layers.blocks.{at}"
                homes |= {theirs: ours, f"{theirs}.mlp.0": f"{ours}.mlp.fc1", f"{theirs}.mlp.3": f"{ours}.mlp.fc2"}
        return homes

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`: one tensor holds the biases of queries, keys and values, and the keys' are not used."""
        tables = tuple(key for key in state if key.endswith(_TABLES))
        found: dict[str, Tensor] = {}
        for key, value in state.items():
            if key.endswith(_BIASES) and value.dim() == 1 and value.numel() and value.numel() % 3 == 0:
                query, _, values = value.chunk(3)
                found |= {key.replace(_BIASES, ".q_bias"): query, key.replace(_BIASES, ".v_bias"): values}
            elif key not in tables:
                found[key] = value
        return Fitted(found, dropped=tables, notes=(_KEYS, _WINDOWS))


_BIASES = ".qkv.bias"
_KEYS = "the middle third of each qkv.bias is left out: torchvision's network does not use it"
_WINDOWS = (
    f"torchvision's own network gives the same features for images of {_SIDE} pixels; for other sizes it may shift and "
    "pad its windows otherwise than timm's, which is used here"
)
_TABLES = ("relative_position_index", "relative_coords_table", "attn_mask")
_DOWN = re.compile(r"^layers\.(\d+)\.downsample")
