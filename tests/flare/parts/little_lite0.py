"""EfficientNet-Lite0 of timm's blocks, but few and narrow: 15 convolutions for 49, 24,000 weights for 3.4 million."""

from __future__ import annotations

from functools import partial

from torch import nn

_GROUPS = (
    "ds_r1_k3_s1_e1_c16",
    "ds_r2_k3_s2_e1_c24",
    "ir_r1_k5_s2_e2_c40",
    "ds_r1_k3_s2_e1_c112",
    "ds_r1_k3_s2_e1_c64",
)


def little_lite0() -> nn.Module:
    """Five stages; the second has a shortcut, the third a block that expands."""
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet

    return EfficientNet(
        decode_arch_def([[group] for group in _GROUPS]),
        num_classes=0,
        num_features=32,
        fix_stem=True,
        pad_type="same",
        act_layer=nn.ReLU6,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
    )
