"""How the numbers of a model travel: the settings of each codec."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedretina.settings.choice import Choice


class CodecSettings(Choice):
    """How the numbers of a model travel."""

    default: ClassVar[str | None] = "none"
    name: str


class NoCodecSettings(CodecSettings):
    """Every number travels as it is, in float32.

    Attributes:
        name: "none".
    """

    name: Literal["none"] = "none"


class EncodingSettings(CodecSettings):
    """Numbers travel in fewer bits, as what changed since the last round; what is lost is made up for in the next.

    Attributes:
        smallest: Fewest numbers of a tensor that travels encoded. A smaller one, BatchNorm's statistics and counters
            stay as they are.
    """

    name: str
    smallest: int = Field(default=256, ge=1, le=2**20)


class Bf16Settings(EncodingSettings):
    """bfloat16: 16 bits a number, some 11 after entropy coding.

    Attributes:
        name: "bf16".
    """

    name: Literal["bf16"] = "bf16"


class BlockCodecSettings(EncodingSettings):
    """Whole numbers of few bits, in blocks that share a scale.

    Attributes:
        bits: Of a number, before entropy coding.
        block: Numbers that share a scale of 16 bits. Larger blocks take fewer bytes; in smaller ones a number far from
            all others spoils fewer of them.
    """

    bits: ClassVar[int]
    name: str
    block: int = Field(default=1024, ge=16, le=2**16)


class Int8Settings(BlockCodecSettings):
    """8 bits a number, some 7 after entropy coding.

    Attributes:
        name: "int8".
    """

    bits: ClassVar[int] = 8
    name: Literal["int8"] = "int8"


class Int4Settings(BlockCodecSettings):
    """4 bits a number, some 3 after entropy coding.

    Attributes:
        name: "int4".
    """

    bits: ClassVar[int] = 4
    name: Literal["int4"] = "int4"
