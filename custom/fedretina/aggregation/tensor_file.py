"""Tensors of a file that are read stretch by stretch: where each lies, and the bytes from there on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedretina.errors import StateError
from fedretina.storage import open_tensors

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
}


class Place(NamedTuple):
    """Where a tensor's numbers lie in a file, row by row.

    Attributes:
        dtype: Its type.
        shape: Its shape.
        begin: Its first byte.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int


class StoredTensors(NamedTuple):
    """Tensors that lie in a file which nobody writes to any more.

    Attributes:
        path: The file.
        places: By key.
    """

    path: Path
    places: Mapping[str, Place]


class TensorFile:
    """A tensor file that is read stretch by stretch into buffers of the caller; none of its pages stays in memory.

    Its header is read once, where `open_tensors` reads it at each opening; threads may read at the same time.

    Args:
        path: The file.
        places: Where its tensors lie; None reads that from the header that `write_tensors` gives a file.

    Raises:
        StateError: As `open_tensors`; so does `read_into` where the file ends before it should.
    """

    def __init__(self, path: Path, places: Mapping[str, Place] | None = None) -> None:
        self._path = path
        if places is None:
            with open_tensors(path):  # whether it is whole
                self._file = path.open("rb", buffering=0)
            self._places = self._header()
            return
        self._places = dict(places)
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise StateError(f"{path} cannot be read ({error}): restore it from a backup.") from error

    def _header(self) -> dict[str, Place]:
        length = int.from_bytes(self._file.read(8), "little")
        words = json.loads(self._file.read(length))
        return {
            key: Place(getattr(torch, _DTYPES[one["dtype"]]), tuple(one["shape"]), 8 + length + one["data_offsets"][0])
            for key, one in words.items()
            if key != "__metadata__"
        }

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def places(self) -> Mapping[str, Place]:
        """Where each tensor lies."""
        return self._places

    @property
    def keys(self) -> list[str]:
        """The tensors' keys, sorted."""
        return sorted(self._places)

    def dtype(self, key: str) -> torch.dtype:
        """A tensor's type."""
        return self._places[key].dtype

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._places[key].shape

    def begin(self, key: str) -> int:
        """A tensor's first byte in the file."""
        return self._places[key].begin

    def end(self, key: str) -> int:
        """The byte after a tensor's last."""
        dtype, shape, begin = self._places[key]
        return begin + math.prod(shape) * dtype.itemsize

    def tensor(self, key: str) -> torch.Tensor:
        """One tensor, whole."""
        place = self._places[key]
        found = torch.empty(place.shape, dtype=place.dtype)
        if found.numel():
            self.read_into(key, 0, found.view(-1))
        return found

    def read_into(self, key: str, begin: int, values: torch.Tensor) -> None:
        """Read some of a tensor's numbers.

        Args:
            key: The tensor.
            begin: Place of the first of them, counted over the whole tensor, laid flat.
            values: Where they go: contiguous, one dimension, of the tensor's type. More than the tensor has are read
                from what lies behind it.
        """
        room = values.view(torch.uint8).numpy().data
        self.read_bytes(self._places[key].begin + begin * values.element_size(), room)

    def read_bytes(self, begin: int, room: memoryview) -> None:
        """Fill memory with the file's bytes from one on."""
        if os.preadv(self._file.fileno(), [room], begin) != len(room):
            raise StateError(f"{self._path} ends too early: restore it from a backup.")
