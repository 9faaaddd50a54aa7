"""Image files to RGB pixels, with no silent half of an image."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError

_JPEG = b"\xff\xd8"
_PNG = b"\x89PNG\r\n\x1a\n"
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")  # stuffed zeros and restart marks belong to the scan


def decode_image(path: str | Path) -> NDArray[np.uint8]:
    """Read an image file.

    Grey is repeated over the channels, alpha is dropped, 16 bits are scaled from their full range to 8, and
    the EXIF orientation is applied. OpenCV's JPEG decoder fills what is cut off with grey and says nothing, so
    the file's own structure is walked first: a JPEG must reach its end marker, a PNG its end chunk with every
    checksum right.

    Returns:
        uint8 [H, W, 3], RGB, contiguous.

    Raises:
        DataError: The file cannot be opened (its cause is then an OSError), is cut off, damaged or no image.
    """
    import cv2

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}).") from error
    fault = _fault(data)
    if fault:
        raise DataError(f"{path} {fault}: copy it again from its source.")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:
        raise DataError(f"{path} cannot be decoded ({error.err}): copy it again from its source.") from error
    if pixels is None:
        raise DataError(f"{path} is damaged or no image that OpenCV reads: use JPEG, PNG or TIFF.")
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise DataError(f"{path} has pixels of type {pixels.dtype}: use 8 or 16 bits a channel.")
    rgb: NDArray[np.uint8] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return rgb


def _fault(data: bytes) -> str:
    """What is wrong with the file's structure; empty when nothing is."""
    if not data:
        return "is empty"
    if data.startswith(_JPEG) and not _jpeg_is_whole(data):
        return "is cut off (a JPEG without its end marker)"
    if data.startswith(_PNG) and not _png_is_whole(data):
        return "is cut off or damaged (a PNG chunk is short or fails its checksum)"
    return ""


def _jpeg_is_whole(data: bytes) -> bool:
    """Walk the segments, so that the end marker of an embedded thumbnail is not taken for the image's own."""
    at = 2
    while True:
        found = _MARKER.search(data, at)
        if found is None:
            return False
        kind, at = data[found.end() - 1], found.end()
        if kind == 0xD9:
            return True
        if kind not in _STANDALONE:
            at += int.from_bytes(data[at : at + 2], "big")


def _png_is_whole(data: bytes) -> bool:
    at = len(_PNG)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data) or zlib.crc32(data[at + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if data[at + 4 : at + 8] == b"IEND":
            return True
        at = end + 4
    return False
