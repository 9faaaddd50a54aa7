"""Vision transformers with a class token and learned positions, as RETFound and DINOv2 publish them; timm's blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedretina.errors import TrainingError
from fedretina.networks.encoder import Encoder, encoder
from fedretina.networks.layout import Fitted, Layout, published
from fedretina.settings.encoder import (
    DinoV2BaseTraits,
    DinoV2LargeTraits,
    DinoV2SmallTraits,
    EncoderTraits,
    RetFoundDinoV2Traits,
    RetFoundGreenTraits,
    RetFoundMaeTraits,
)

_QUARTERS = 4
_POSITIONS = "pos_embed"
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+\.)")
Features = Literal["class_token", "mean_of_patches", "norm_of_mean"]


def resampled(positions: Tensor, old: tuple[int, int], new: tuple[int, int], prefix: int) -> Tensor:
    """Learned positions for another grid of patches, by timm's bicubic resampling; the same ones for the same grid.

    Args:
        positions: `[1, prefix + old rows * old columns, C]`.
        old: Rows and columns that they were learned for.
        new: Rows and columns that they are needed for.
        prefix: How many of them belong to the class token and registers, which are kept as they are.
    """
    if old == new:
        return positions
    from timm.layers import resample_abs_pos_embed

    found: Tensor = resample_abs_pos_embed(positions, list(new), list(old), num_prefix_tokens=prefix)
    return found


class TokenEmbedding(nn.Module):
    """Cuts images into patches and puts class token and registers before them, each with its learned position.

    The positions are those of the grid that the published weights learned; an image of another size gets them resampled
    in each pass, so that one set of weights serves images of any size.

    Attributes:
        grid: Rows and columns of patches that the positions were learned for.
        prefix: How many tokens stand before the patches.

    Args:
        net: timm's network, whose tensors are taken.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.proj: nn.Conv2d = net.patch_embed.proj
        self.cls_token: nn.Parameter = net.cls_token
        self.reg_token: nn.Parameter | None = net.reg_token
        self.pos_embed: nn.Parameter = net.pos_embed
        self.grid: tuple[int, int] = tuple(net.patch_embed.grid_size)
        self.prefix: int = net.num_prefix_tokens
        self._placed = 0 if net.no_embed_class else self.prefix  # how many of the prefix have a position, too

    @property
    def positioned(self) -> int:
        """How many tokens before the patches have a position."""
        return self._placed

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens of images `[B, 3, H, W]` as a map of one row, `[B, C, 1, T]`.

        Raises:
            TrainingError: The images are not RGB, or a side is not a whole number of patches.
        """
        patch = self.proj.kernel_size[0]
        if x.dim() != 4 or x.shape[1] != 3 or x.shape[2] % patch or x.shape[3] % patch:
            raise TrainingError(
                f"The encoder cuts RGB images [B, 3, H, W] into patches of {patch} x {patch} pixels, but got "
                f"{tuple(x.shape)}; set images.image_size to a multiple of {patch}."
            )
        patches: Tensor = self.proj(x)
        positions = resampled(self.pos_embed, self.grid, (patches.shape[2], patches.shape[3]), self._placed)
        tokens = patches.flatten(2).transpose(1, 2)
        ahead = [self.cls_token] if self.reg_token is None else [self.cls_token, self.reg_token]
        before = [one.to(tokens.dtype).expand(x.shape[0], -1, -1) for one in ahead]
        if self._placed:
            return as_map(torch.cat([*before, tokens], 1) + positions)
        return as_map(torch.cat([*before, tokens + positions], 1))


class TokenStage(nn.Module):
    """Transformer blocks between maps of one row.

    Args:
        blocks: Each takes and gives tokens `[B, T, C]`.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map `[B, C, 1, T]` of a map of the same shape."""
        return as_map(self.blocks(as_tokens(x)))


class TokenEncoder(Encoder):
    """A vision transformer in five stages: the patch embedding, then a quarter of the blocks each.

    What goes from stage to stage are all tokens as a map of one row, `[B, C, 1, T]`: class token and registers first,
    then the patches. An early exit reads the mean of the patches.

    Attributes:
        norm: The final LayerNorm.

    Args:
        stages: The stages; the first is a `TokenEmbedding`.
        norm: The final LayerNorm.
        features: What the features are, as whoever published the weights takes them: the class token, normalised; the
            mean of the patches, normalised before; or their mean, normalised after.
    """

    def __init__(self, stages: Sequence[nn.Module], norm: nn.Module, features: Features) -> None:
        embedding = stages[0]
        assert isinstance(embedding, TokenEmbedding)
        super().__init__(stages, (embedding.proj.out_channels,) * len(stages))
        self.norm = norm
        self._prefix = embedding.prefix
        self._features = features

    def average(self, seen: Tensor) -> Tensor:
        """See `Encoder.average`: the mean of the patches alone."""
        return as_tokens(seen)[:, self._prefix :].mean(1)

    def pool(self, last: Tensor) -> Tensor:
        """See `Encoder.pool`."""
        if self._features == "norm_of_mean":
            normed: Tensor = self.norm(self.average(last))
            return normed
        tokens: Tensor = self.norm(as_tokens(last))
        return tokens[:, 0] if self._features == "class_token" else tokens[:, self._prefix :].mean(1)


def as_map(tokens: Tensor) -> Tensor:
    """Tokens `[B, T, C]` as a map of one row, `[B, C, 1, T]`, without a copy."""
    return tokens.transpose(1, 2).unsqueeze(2)


def as_tokens(seen: Tensor) -> Tensor:
    """A map of one row as its tokens."""
    return seen.squeeze(2).transpose(1, 2)


@encoder(RetFoundMaeTraits)
def retfound_mae_encoder() -> Encoder:
    """Return an untrained encoder for RETFound's weights (F = 1024, 303 million weights).

    Source: Zhou et al., Nature 2023: ViT-L/16 of masked autoencoders, blocks by timm. As its authors do, the features
    are the mean of the patches and a LayerNorm after it, which starts as 1 and 0: pre-training had another, over all
    tokens, which they leave out. No dropout and no stochastic depth, as in all encoders here.
    """
    return _tokens(RetFoundMaeTraits, "norm_of_mean", embed_dim=1024, depth=24, num_heads=16)


@encoder(RetFoundDinoV2Traits)
def retfound_dinov2_encoder() -> Encoder:
    """Return an untrained encoder for RETFound-DINOv2's weights (F = 1024, 303 million weights): ViT-L/14."""
    return _tokens(RetFoundDinoV2Traits, "class_token", embed_dim=1024, depth=24, num_heads=16, init_values=1e-5)


@encoder(RetFoundGreenTraits)
def retfound_green_encoder() -> Encoder:
    """Return an untrained encoder for RETFound-Green's weights (F = 384, 22 million weights).

    Source: Engelmann and Bernabeu, Nature Communications 2025: ViT-S/14 with four registers, positions of the patches
    alone, features by the mean of the patches after the final LayerNorm.
    """
    more = {"reg_tokens": 4, "no_embed_class": True}
    return _tokens(
        RetFoundGreenTraits, "mean_of_patches", embed_dim=384, depth=12, num_heads=6, init_values=1e-5, **more
    )


@encoder(DinoV2SmallTraits)
def dinov2_small_encoder() -> Encoder:
    """Return an untrained encoder for DINOv2's ViT-S/14 (F = 384, 22 million weights; Oquab et al., TMLR 2024)."""
    return _tokens(DinoV2SmallTraits, "class_token", embed_dim=384, depth=12, num_heads=6, init_values=1e-5)


@encoder(DinoV2BaseTraits)
def dinov2_base_encoder() -> Encoder:
    """Return an untrained encoder for DINOv2's ViT-B/14 (F = 768, 86 million weights; Oquab et al., TMLR 2024)."""
    return _tokens(DinoV2BaseTraits, "class_token", embed_dim=768, depth=12, num_heads=12, init_values=1e-5)


@encoder(DinoV2LargeTraits)
def dinov2_large_encoder() -> Encoder:
    """Return an untrained encoder for DINOv2's ViT-L/14 (F = 1024, 304 million weights; Oquab et al., TMLR 2024)."""
    return _tokens(DinoV2LargeTraits, "class_token", embed_dim=1024, depth=24, num_heads=16, init_values=1e-5)


def _tokens(traits: type[EncoderTraits], features: Features, **sizes: Any) -> Encoder:
    """Build timm's class itself, not its named models: nothing in it can ask a hub for weights."""
    from timm.models.vision_transformer import VisionTransformer

    net = VisionTransformer(img_size=traits.side, patch_size=traits.patch, num_classes=0, fc_norm=False, **sizes)
    each = len(net.blocks) // _QUARTERS
    quarters = [TokenStage(list(net.blocks)[at * each : (at + 1) * each]) for at in range(_QUARTERS)]
    return TokenEncoder([TokenEmbedding(net), *quarters], net.norm, features)


class TokensLayout(Layout):
    """The names that timm, Meta and RETFound share (`blocks.3.attn.qkv.weight`, ...).

    Positions for another grid than the encoder's are resampled, unless `exact`.

    Attributes:
        exact: Whether positions for another grid are left as they are, and then do not fit.
    """

    exact: ClassVar[bool] = False
    marks: ClassVar[tuple[str, ...]] = ("cls_token", _POSITIONS, "patch_embed.proj.weight")
    dropped: ClassVar[tuple[str, ...]] = ("head", "mask_token")

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        own = [name for name, _ in encoder.stages[0].named_parameters(recurse=False)]
        homes = {"patch_embed.proj": "stages.0.proj", "norm": "norm", **{name: f"stages.0.{name}" for name in own}}
        number = 0
        for stage in range(1, len(encoder.stages)):
            for at in range(len(encoder.stages[stage].get_submodule("blocks"))):  # type: ignore[arg-type]
                homes[f"blocks.{number}"] = f"stages.{stage}.blocks.{at}"
                number += 1
        return homes

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`."""
        embedding, found = encoder.stages[0], dict(state)
        assert isinstance(embedding, TokenEmbedding)
        positions, notes = found.get(_POSITIONS), []
        _, _, width = embedding.pos_embed.shape
        # Only another number of positions is another grid. Any other shape is left as it is, and then does not fit.
        if positions is not None and (*positions.shape[:1], *positions.shape[2:]) == (1, width) and not self.exact:
            side = math.isqrt(max(0, positions.shape[1] - embedding.positioned))
            rows, columns = embedding.grid
            if side and (side, side) != embedding.grid and side**2 == positions.shape[1] - embedding.positioned:
                found[_POSITIONS] = resampled(positions, (side, side), embedding.grid, embedding.positioned)
                notes.append(f"positions of {side} x {side} patches were resampled to {rows} x {columns}")
        return Fitted(found, notes=tuple(notes))


RETFOUND_LICENCE = "CC BY-NC 4.0: no commercial use, and derived models carry it on"


@published(RetFoundMaeTraits)
class RetFoundMae(TokensLayout):
    """RETFound's checkpoints: of pre-training, with the decoder beside the encoder, or of fine-tuning, with a head."""

    title = "RETFound (MAE)"
    pretrained_on = (
        "ImageNet-1k, then 904,170 fundus photographs (Moorfields MEH-MIDAS and 88,702 of Kaggle's EyePACS) or 736,442 "
        "OCT scans (MEH-MIDAS and Kermany's public set); later files of its authors: Moorfields or Shanghai alone. No "
        "key tells which file this is"
    )
    sets = frozenset({"eyepacs", "kermany"})
    licence = RETFOUND_LICENCE
    dropped = (
        "head",
        "mask_token",
        *("decoder_embed", "decoder_pos_embed", "decoder_blocks", "decoder_norm", "decoder_pred"),
    )

    def recognises(self, state: Mapping[str, Tensor]) -> bool:
        """See `Layout.recognises`; without decoder and head's LayerNorm it is another's ViT-L/16."""
        return super().recognises(state) and bool({"decoder_embed.weight", "fc_norm.weight"} & state.keys())

    def homes(self, encoder: Encoder) -> Mapping[str, str]:
        """See `Layout.homes`."""
        return {**super().homes(encoder), "fc_norm": "norm"}

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`: pre-training's LayerNorm is left out, as its authors do."""
        found, dropped, notes = super().prepare(encoder, state)
        norm = tuple(key for key in ("norm.weight", "norm.bias") if key in found)
        found = {key: value for key, value in found.items() if key not in norm}
        if "fc_norm.weight" in found:
            notes = (*notes, "it was fine-tuned by whoever gave it, on what they must say")
        else:
            like = found["cls_token"].flatten()
            found |= {"fc_norm.weight": torch.ones_like(like), "fc_norm.bias": torch.zeros_like(like)}
            notes = (*notes, "the LayerNorm of the features starts as 1 and 0, as with RETFound's authors")
        return Fitted(found, (*dropped, *norm), notes)


@published(RetFoundDinoV2Traits)
class RetFoundDinoV2(TokensLayout):
    """RETFound-DINOv2's checkpoint: the teacher of DINOv2's training, `backbone.` before each name, heads beside it."""

    title = "RETFound-DINOv2"
    pretrained_on = "DINOv2's images, then retinal images of Moorfields (`_meh`) or of Shanghai (`_shanghai`)"
    licence = RETFOUND_LICENCE
    marks = ("backbone.cls_token", "backbone.pos_embed")
    dropped = ("mask_token", "dino_head", "ibot_head")

    def prepare(self, encoder: Encoder, state: Mapping[str, Tensor]) -> Fitted:
        """See `Layout.prepare`.

        DINOv2 may save its blocks in chunks, `blocks.1.6.` for the seventh: the second number counts through.
        """
        named = {
            re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", k.removeprefix("backbone.")): v for k, v in state.items()
        }
        return super().prepare(encoder, named)


@published(RetFoundDinoV2Traits)
class FineTunedDinoV2(TokensLayout):
    """The same network under timm's names at the same size, as a fine-tuned RETFound-DINOv2 is saved."""

    title = "timm, ViT-L/14 at 224 px"
    pretrained_on = "what whoever gave the file must say: no key tells"
    licence = "what its owner says; of RETFound's weights CC BY-NC 4.0 stays"
    exact = True


@published(RetFoundGreenTraits)
class RetFoundGreen(TokensLayout):
    """RETFound-Green's file, under timm's names."""

    title = "RETFound-Green"
    pretrained_on = "DINOv2's images, then 75,000 fundus photographs: AIROGS, DDR and ODIR"
    sets = frozenset({"ddr", "odir5k"})
    licence = "its author's own: research without commercial use, and none in a project with industry involved"
    marks = (*TokensLayout.marks, "reg_token")
    exact = True


DINOV2_LICENCE = "Apache-2.0"
LVD142M = (
    "LVD-142M, 142 million photographs from the web; its authors put no retinal images in on purpose, and whether some "
    "are in it is not known"
)


@published(DinoV2SmallTraits, DinoV2BaseTraits, DinoV2LargeTraits)
class DinoV2(TokensLayout):
    """Meta's file, or timm's copy of it without the mask token."""

    title = "DINOv2"
    pretrained_on = LVD142M
    licence = DINOV2_LICENCE
