"""ViT-Small as an encoder in five stages, with fixed positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedretina.errors import TrainingError
from fedretina.networks.encoder import Encoder, encoder
from fedretina.settings.encoder import ViTSmallTraits

_WIDTH, _DEPTH, _HEADS, _GROUPS = 384, 12, 6, 4
_PATCH = ViTSmallTraits.patch
_WAVELENGTH = 10_000.0
_NORM_EPS = 1e-6


def sine_cosine_positions(width: int, rows: int, columns: int) -> Tensor:
    """Return the fixed positions of a grid of patches, float32 `[1, width, rows, columns]` in [-1, 1].

    The first half of the channels tells the row, the second half the column; of each half, the first half are sines and
    the second half cosines, at wavelengths from 2 pi to 10000 * 2 pi patches in a geometric row. The numbers are timm's
    and follow from the grid alone, so that one set of weights serves images of any size.

    Args:
        width: Channels, divisible by 4.
        rows: Patches from top to bottom.
        columns: Patches from left to right.
    """
    from timm.layers import build_sincos2d_pos_embed

    # timm's order is sines of the row, sines of the column, then their cosines.
    found: Tensor = build_sincos2d_pos_embed([rows, columns], width, _WAVELENGTH, device=torch.device("cpu"))
    return found.T.reshape(1, 4, width // 4, rows, columns)[:, [0, 2, 1, 3]].flatten(1, 2)


class PatchEmbedding(nn.Module):
    """Cuts images into square patches, projects each to a token and adds its position."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Conv2d(3, _WIDTH, _PATCH, stride=_PATCH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens `[B, 384, H / 16, W / 16]` of images `[B, 3, H, W]`.

        Raises:
            TrainingError: The images are not RGB, or a side is not a whole number of patches.
        """
        if x.dim() != 4 or x.shape[1] != 3 or x.shape[2] % _PATCH or x.shape[3] % _PATCH:
            raise TrainingError(
                f"The encoder cuts RGB images [B, 3, H, W] into patches of {_PATCH} x {_PATCH} pixels, but got "
                f"{tuple(x.shape)}; set images.image_size to a multiple of {_PATCH}."
            )
        tokens: Tensor = self.projection(x)
        positions = sine_cosine_positions(_WIDTH, *tokens.shape[2:])
        return tokens + positions.to(tokens.device)


class TokenBlocks(nn.Module):
    """Transformer blocks between maps: `[B, C, h, w]` becomes h * w tokens and a map again.

    Args:
        blocks: Each takes and gives tokens `[B, h * w, C]`.
        norm: What the tokens pass last.
    """

    def __init__(self, blocks: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return the map `[B, C, h, w]` of a map of the same shape."""
        tokens: Tensor = self.norm(self.blocks(x.flatten(2).transpose(1, 2)))
        return tokens.transpose(1, 2).reshape(x.shape)


@encoder(ViTSmallTraits)
def vit_small_encoder() -> Encoder:
    """Return an untrained ViT-Small encoder (F = 384, 21.6 million weights), for sides that are multiples of a patch.

    Stage 0 embeds the patches, stages 1 to 4 are three blocks each; the final LayerNorm ends the last one, and the
    features are the average over the tokens. All maps have side 1 / patch. It has LayerNorm and no BatchNorm: nothing
    of it needs to stay at a site, and `exchange.batchnorm: none` accepts it.

    Source: Dosovitskiy et al., ICLR 2021, in the size of DeiT-S (Touvron et al., ICML 2021): 12 blocks of width 384, 6
    heads, pre-norm, GELU; the blocks are torchvision's. Positions are fixed and the start is Xavier's with query, key
    and value apart, as in MoCo v3 (Chen, Xie and He, ICCV 2021). Three differences: MoCo v3's ViT-Small has 12 heads,
    which changes neither weights nor operations, so the OCT paper's figures fit both; there is no class token; and the
    projection of the patches is trained, where MoCo v3 holds it still. There is no dropout: it would draw from torch's
    global generator. The start is drawn from that generator too; `build_network` seeds it.
    """
    from torchvision.models.vision_transformer import EncoderBlock

    embedding = PatchEmbedding()
    each = _DEPTH // _GROUPS
    stages: list[nn.Module] = [embedding]
    for number in range(1, _GROUPS + 1):
        blocks = [EncoderBlock(_HEADS, _WIDTH, 4 * _WIDTH, 0.0, 0.0) for _ in range(each)]
        stages.append(TokenBlocks(blocks, nn.LayerNorm(_WIDTH, _NORM_EPS) if number == _GROUPS else nn.Identity()))
    encoder = Encoder(stages, (_WIDTH,) * len(stages))
    _start(encoder, embedding)
    return encoder


def _start(encoder: Encoder, embedding: PatchEmbedding) -> None:
    """Draw the weights: Xavier's uniform bounds, with query, key and value as three layers; biases are 0."""
    for module in encoder.modules():
        if isinstance(module, nn.MultiheadAttention):
            bound = math.sqrt(6 / (2 * _WIDTH))
            nn.init.uniform_(module.in_proj_weight, -bound, bound)
            nn.init.zeros_(module.in_proj_bias)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    bound = math.sqrt(6 / (3 * _PATCH**2 + _WIDTH))
    nn.init.uniform_(embedding.projection.weight, -bound, bound)
    if embedding.projection.bias is not None:
        nn.init.zeros_(embedding.projection.bias)
