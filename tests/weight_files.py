"""Files of weights as others publish them, with random weights, and the networks that they are compared with."""

import hashlib

import torch
from safetensors.torch import save_file
from timm.models import vision_transformer

from fedretina.networks.encoder import build_encoder
from fedretina.networks.weights import load_encoder_weights
from fedretina.settings.network import WeightsSettings

TINY = {"embed_dim": 48, "depth": 4, "num_heads": 3}
"""Of vision transformers: 4 blocks of width 48 for 24 of 1024, as the fixture `shallow` makes ours."""
LITTLE = (24, 48, 96, 192)
"""Channels after each stage of ConvNeXt and SwinV2, as the fixture `narrow` makes ours."""


def random_state(net):
    """timm's state with values that are not their start, so that a lost or exchanged tensor is noticed."""
    for parameter in net.parameters():
        parameter.data.normal_(0, 0.05)
    return {key: value.clone() for key, value in net.state_dict().items()}


def written(folder, content, suffix=".pth"):
    file = folder / f"weights{suffix}"
    save_file(content, file) if suffix == ".safetensors" else torch.save(content, file)
    return WeightsSettings(source="file", file=file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())


def loaded(folder, name, content, suffix=".pth"):
    encoder = build_encoder(name).eval()
    return encoder, load_encoder_weights(name, encoder, written(folder, content, suffix))


def images(side, n=2):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def same(encoder, theirs, side):
    x = images(side)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), theirs(x), rtol=1e-5, atol=1e-5)


def dino(side, **sizes):
    net = vision_transformer.VisionTransformer(
        img_size=side, patch_size=14, num_classes=0, init_values=1e-5, dynamic_img_size=True, **sizes
    )
    return net.eval()


def retfound(side=224, **more):
    """RETFound's own network: no LayerNorm before the mean of the patches, one after it."""
    sizes = {"patch_size": 16, "num_classes": 0, "global_pool": "avg", "dynamic_img_size": True, **TINY, **more}
    return vision_transformer.VisionTransformer(img_size=side, **sizes).eval()


DECODER = {
    "mask_token": torch.zeros(1, 1, 32),
    "decoder_pos_embed": torch.zeros(1, 197, 32),
    "decoder_embed.weight": torch.zeros(32, 48),
    "decoder_embed.bias": torch.zeros(32),
    "decoder_blocks.0.attn.qkv.weight": torch.zeros(96, 32),
    "decoder_norm.weight": torch.ones(32),
    "decoder_pred.bias": torch.zeros(768),
}


def microsofts(state):
    """Microsoft's form of timm's SwinV2: downsampling at the end of a stage, and tables that are no weights."""
    renamed = {}
    for key, value in state.items():
        parts = key.split(".")
        if parts[0] == "layers" and parts[2] == "downsample":
            parts[1] = str(int(parts[1]) - 1)
        renamed[".".join(parts)] = value
    tables = {
        "layers.0.blocks.1.attn_mask": torch.zeros(64, 64),
        "layers.0.blocks.0.attn.relative_coords_table": torch.ones(1),
    }
    head = {"head.weight": torch.zeros(1000, 768), "head.bias": torch.zeros(1000)}
    return {"model": {**renamed, **tables, **head}}


def metas(state):
    """Meta's form of timm's ConvNeXt."""
    renamed = {}
    for key, value in state.items():
        new = key.replace(".blocks.", ".").replace("conv_dw", "dwconv").replace("mlp.fc", "pwconv")
        new = new.replace("head.norm", "norm")
        if new.startswith("stem"):
            new = new.replace("stem", "downsample_layers.0")
        elif ".downsample." in new:
            _, stage, _, rest = new.split(".", 3)
            new = f"downsample_layers.{stage}.{rest}"
        renamed[new] = value
    return {"model": {**renamed, "head.weight": torch.zeros(1000, 768), "head.bias": torch.zeros(1000)}}
