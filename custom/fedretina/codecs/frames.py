"""One encoded tensor on its way: what it stands on, and its bytes, packed."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from fedretina.errors import RefusedError

_SUM = 4  # bytes of the checksum
_SLACK = 64


def sealed(body: Tensor, base: Tensor) -> Tensor:
    """A frame: a checksum of the tensor that the numbers are to be added to, then the body under a Huffman code.

    Args:
        body: uint8 [n], of a codec.
        base: What the other end must hold already.

    Returns:
        uint8 [bytes].
    """
    packer = zlib.compressobj(level=1, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    packed = packer.compress(body.numpy().data) + packer.flush()
    return torch.from_numpy(np.frombuffer(_checksum(base) + packed, dtype=np.uint8).copy())


def opened(frame: Tensor, base: Tensor, size: int) -> Tensor:
    """The body of a frame; never more memory than a sound one takes, whatever it claims.

    Args:
        frame: As it came.
        base: What this end holds.
        size: Bytes that the body must have.

    Raises:
        RefusedError: It stands on another tensor, or is no frame of such a body; without the tensor's name.
    """
    require_form(frame, size)
    data = frame.numpy().tobytes()
    if data[:_SUM] != _checksum(base):
        raise RefusedError("it is the change of another model than the one that this end holds")
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(data[_SUM:], size + 1)
    except zlib.error as error:
        raise RefusedError("its bytes cannot be unpacked") from error
    if len(body) != size or not unpacker.eof or unpacker.unused_data:
        raise RefusedError(f"it unpacks to another number of bytes than {size}")
    return torch.from_numpy(np.frombuffer(body, dtype=np.uint8).copy())


def require_form(frame: Tensor, size: int) -> None:
    """Refuse what cannot be a frame, by its type, shape and length.

    Args:
        frame: As it came.
        size: Bytes of its body before packing.

    Raises:
        RefusedError: It cannot; without the tensor's name.
    """
    if frame.dtype != torch.uint8 or frame.dim() != 1:
        raise RefusedError(f"it must travel encoded, got {frame.dtype} of shape {tuple(frame.shape)}")
    most = _SUM + size + size // 8 + _SLACK  # zlib's own bound on what it makes of bytes that cannot be packed
    if not _SUM < frame.numel() <= most:
        raise RefusedError(f"it holds {frame.numel()} bytes, expected {_SUM + 1} to {most}")


def _checksum(base: Tensor) -> bytes:
    return zlib.crc32(base.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data).to_bytes(_SUM, "little")
