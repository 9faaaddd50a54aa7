"""What the arrays of a message are, where each lies among the message's bytes, and where these lie in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedretina.errors import RefusedError

TYPES = frozenset({"<f2", "<f4", "<f8", "|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"})
"""Of the arrays that travel plainly, as NumPy writes them."""
_MANY = 100_000  # arrays of one message


class PlainArray(np.ndarray):
    """An array whose bytes travel plainly."""


class Form(NamedTuple):
    """An array without its numbers.

    Attributes:
        dtype: Its type.
        shape: Its shape.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def read(cls, words: object) -> Form:
        """Read what a peer says of an array.

        Raises:
            RefusedError: No such array travels.
        """
        if isinstance(words, list) and len(words) == 2 and words[0] in TYPES and isinstance(words[1], list):
            shape = words[1]
            fit = len(shape) <= 32 and all(type(length) is int and length >= 0 for length in shape)
            if (
                fit and math.prod(max(1, length) for length in shape) < 2**48
            ):  # NumPy takes no more, even of an empty one
                return cls(np.dtype(words[0]), tuple(shape))
        raise RefusedError("the message holds an array of a type or shape that does not travel.")

    @property
    def size(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class Table:
    """Where each array of a message lies among the message's bytes.

    Those of the largest numbers come first, so that each lies where its type may.

    Attributes:
        forms: The arrays, in the order of the message.
        order: Their numbers, in the order of their bytes.
        begins: The first byte of each.
        size: Bytes of all.

    Args:
        forms: The arrays, in the order of the message.
    """

    def __init__(self, forms: Sequence[Form]) -> None:
        self.forms = tuple(forms)
        self.order = sorted(range(len(forms)), key=lambda at: -forms[at].dtype.itemsize)
        self.begins = [0] * len(forms)
        self.size = 0
        for at in self.order:
            self.begins[at] = self.size
            self.size += forms[at].size

    @classmethod
    def of(cls, arrays: Sequence[np.ndarray]) -> Table:
        """The table of some arrays."""
        return cls([Form(array.dtype, array.shape) for array in arrays])

    @classmethod
    def read(cls, words: object) -> Table:
        """Read what a peer says of its arrays.

        Raises:
            RefusedError: It is no such list.
        """
        if not isinstance(words, list) or len(words) > _MANY:
            raise RefusedError("the message does not say what its arrays are.")
        return cls([Form.read(one) for one in words])

    def words(self) -> list[list[Any]]:
        """The table for the wire."""
        return [[form.dtype.str, list(form.shape)] for form in self.forms]

    def parts(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The bytes of the table's arrays, uint8, in their order; none that are empty."""
        flat = (np.ascontiguousarray(arrays[at]).reshape(-1).view(np.uint8) for at in self.order)
        return [part for part in flat if part.size]

    def views(self, buffer: np.ndarray) -> list[np.ndarray]:
        """The arrays in a buffer of their bytes, uint8 [size]."""
        return [
            buffer[begin : begin + form.size].view(form.dtype).reshape(form.shape).view(PlainArray)
            for form, begin in zip(self.forms, self.begins, strict=True)
        ]


def joined(parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Parts of bytes, uint8; those that follow one another in one buffer as one."""
    last: np.ndarray | None = None
    for part in parts:
        root = root_of(part)
        follows = last is not None and root_of(last) is root and address_of(last) + last.size == address_of(part)
        if last is not None and follows and root.flags.c_contiguous:
            whole, begin = root.reshape(-1).view(np.uint8), address_of(last) - address_of(root)
            last = whole[begin : begin + last.size + part.size]
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def root_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory another one shows, or itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def address_of(array: np.ndarray) -> int:
    """Where its first byte lies in memory."""
    return int(array.__array_interface__["data"][0])
