"""What codecs do to numbers, against a slow form; and what comes of bytes that none of them gives."""

import math
import struct
import zlib

import numpy as np
import pytest
import torch

from fedretina.codecs.codec import build_codec
from fedretina.codecs.frames import opened, sealed
from fedretina.errors import RefusedError
from fedretina.settings.codec import Bf16Settings, CodecSettings, Int4Settings, Int8Settings
from fedretina.testing import check_codec

CODECS = [Bf16Settings(), Int8Settings(block=16), Int4Settings(block=16)]


def numbers(count):
    return torch.randn(count, generator=torch.Generator().manual_seed(0)) * 0.01


def slowly(values, bits, block):
    """Number by number: q s, s the bfloat16 at or above the largest of the block over 2^(bits - 1) - 1."""
    levels, found = 2 ** (bits - 1) - 1, []
    for begin in range(0, len(values), block):
        part = [float(one) for one in values[begin : begin + block]]
        top = np.float32(max(map(abs, part))) / np.float32(levels)
        upper = struct.unpack("<I", struct.pack("<f", top))[0]
        upper = (upper + 0xFFFF) & 0xFFFF0000  # towards infinity
        scale = struct.unpack("<f", struct.pack("<I", upper))[0]
        found += [math.floor(one / scale + 0.5) * scale for one in part]
    return np.array(found, dtype=np.float32)


@pytest.mark.parametrize("settings", CODECS[1:], ids=lambda one: one.name)
def test_blocks_round_as_a_slow_form_does(settings):
    codec, values = build_codec(settings), numbers(53)
    found = codec.decode(codec.encode(values), 53).numpy()
    assert np.allclose(found, slowly(values, settings.bits, 16), rtol=1e-6, atol=1e-9)


def test_bfloat16_keeps_the_upper_half_of_each_number():
    codec, values = build_codec(Bf16Settings()), numbers(7)
    body = codec.encode(values)
    upper = values.to(torch.bfloat16).to(torch.float32).numpy().view(np.uint32) >> 16
    assert body.tolist() == [*(upper >> 8).tolist(), *(upper & 255).tolist()]


def test_a_codec_does_what_one_must_numbers_and_run(little_encoder, tmp_path):
    check_codec(Int4Settings(), tmp_path)


@pytest.mark.parametrize("settings", CODECS, ids=lambda one: one.name)
@pytest.mark.parametrize("value", [0.0, 0.3, -1e6, 1e-38, 1e-45])
@pytest.mark.parametrize("count", [1, 15, 33])
def test_constants_come_back_within_a_step_and_zeros_as_zeros(settings, value, count):
    codec, values = build_codec(settings), torch.full((count,), value)
    body = codec.encode(values)
    assert body.shape == (codec.size(count),)
    assert float((codec.decode(body, count) - values).abs().max()) <= max(abs(value) / 7 * 1.01, 2.0**-97)


def test_a_codec_is_named_and_its_settings_are_its_own():
    assert CodecSettings.of("int4") == Int4Settings()
    with pytest.raises(ValueError, match="'bf16' does not read it, 'int8' and 'int4' do"):
        CodecSettings.of({"name": "bf16", "block": 32})


def frame(body=None, base=None, settings=CODECS[2]):
    base = torch.zeros(100) if base is None else base
    codec = build_codec(settings)
    return sealed(codec.encode(numbers(100)) if body is None else body, base)


def packed(content, base=None):
    base = torch.zeros(100) if base is None else base
    sum_ = zlib.crc32(base.numpy().tobytes()).to_bytes(4, "little")
    return torch.from_numpy(np.frombuffer(sum_ + content, dtype=np.uint8).copy())


def body_with(at, value):
    body = build_codec(CODECS[2]).encode(numbers(100))
    body[at : at + len(value)] = torch.tensor(value, dtype=torch.uint8)
    return body


SIZE = build_codec(CODECS[2]).size(100)  # 7 scales and 50 bytes


@pytest.mark.attack(
    "a hostile site",
    "encoded tensors of another length, bytes that unpack to gigabytes, scales that are no numbers",
    "refused by a sentence before more memory is taken than a sound one needs",
)
@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (lambda: frame()[:4], "expected 5 to"),
        (lambda: torch.zeros(10_000, dtype=torch.uint8), "holds 10000 bytes, expected 5 to"),
        (lambda: frame().float(), "must travel encoded, got torch.float32"),
        (lambda: frame().reshape(1, -1), "must travel encoded"),
        (lambda: frame()[:-9], "unpacks to another number of bytes|cannot be unpacked"),
        (lambda: torch.cat([frame(), torch.zeros(3, dtype=torch.uint8)]), "unpacks to another number of bytes"),
        (lambda: packed(b"no stream at all"), "cannot be unpacked"),
        (lambda: packed(zlib.compress(bytes(SIZE + 1))), "another number of bytes"),
        (lambda: packed(zlib.compress(bytes(40_000))), "another number of bytes"),
        (lambda: frame(base=torch.ones(100)), "the change of another model"),
        (lambda: frame(body_with(0, [0x80, 0x7F])), "scale is not a finite number"),  # infinity
        (lambda: frame(body_with(0, [0xC0, 0x7F])), "scale is not a finite number"),  # NaN
        (lambda: frame(body_with(0, [0x80, 0xBF])), "scale is not a finite number of 0 or more"),  # -1
        (lambda: frame(body_with(20, [0])), "below the smallest"),
    ],
)
def test_what_no_codec_gives_is_refused(sent, said):
    base, codec = torch.zeros(100), build_codec(CODECS[2])
    with pytest.raises(RefusedError, match=said):
        codec.decode(opened(sent(), base, SIZE), 100)
