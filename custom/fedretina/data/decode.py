"""Image files to RGB pixels, never of one that is cut off; and the mark in the files of phantoms."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.errors import DataError, SeveralPagesError

_JPEG = b"\xff\xd8"
_PNG = b"\x89PNG\r\n\x1a\n"
_KEYWORD, _TEXT = b"Synthetic", b"fedretina phantom, not a patient"
PNG_MARK = b"tEXt" + _KEYWORD + b"\0" + _TEXT
"""A phantom's chunk in its PNG file, less length and checksum."""
WAVE_MARK = _KEYWORD + b": " + _TEXT
"""A phantom's words in the list of information of its WAV file."""
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]")  # stuffed zeros and restart marks belong to the scan


def decode_image(path: str | Path) -> NDArray[np.uint8]:
    """Read an image file as `read_pixels` does, with 16 bits scaled from their full range to 8.

    Never from the range that an image happens to use: that would change the brightness image by image. Pictures of 12
    bits in 16 therefore come out nearly black, which the data check finds.

    Returns:
        uint8 [H, W, 3], RGB, contiguous.

    Raises:
        DataError: As `read_pixels`.
    """
    return eight_bits(read_pixels(path))


def read_pixels(path: str | Path) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Read an image file with the bits that it has.

    Grey is repeated over the channels, alpha is dropped, and the EXIF orientation is applied. OpenCV's decoders fill
    what is cut off or damaged with something and tell the caller nothing, so the file is looked at first: a JPEG must
    reach its end marker, a PNG its end chunk with every checksum right, and a TIFF must be read by Pillow too.

    Bytes that are changed or missing within the picture of a JPEG that has its end are not noticed. It has no checksum;
    of the decoders here none gives libjpeg's warnings to its caller, and libjpeg does not see all such damage.

    Returns:
        uint8 or uint16 [H, W, 3], RGB, contiguous.

    Raises:
        DataError: The file cannot be opened (its cause is then an OSError), is cut off, damaged or no image.
        SeveralPagesError: It holds more than one picture.
    """
    import cv2

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}).") from error
    fault, several = _look(data)
    if fault:
        raise DataError(f"{path} {fault}: copy it again from its source.")
    if several:
        raise SeveralPagesError(f"{path} holds more than one picture: export each as a file of its own.")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:
        raise DataError(f"{path} cannot be decoded ({error.err}): copy it again from its source.") from error
    if pixels is None:
        raise DataError(f"{path} is damaged or no image that OpenCV reads: use JPEG, PNG or TIFF.")
    if pixels.dtype not in (np.uint8, np.uint16):
        raise DataError(f"{path} has pixels of type {pixels.dtype}: use 8 or 16 bits per channel.")
    rgb: NDArray[np.uint8] | NDArray[np.uint16] = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return rgb


def eight_bits(pixels: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Pixels of 16 bits scaled from 0 to 65535 to 0 to 255; those of 8 bits as they are."""
    if pixels.dtype == np.uint16:
        return ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return pixels.astype(np.uint8, copy=False)


def is_phantom(path: Path) -> bool:
    """Whether a file is a PNG or a WAV with the phantoms' mark; False also where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            head = handle.read(1024)
    except OSError:
        return False
    if head.startswith(b"RIFF"):
        return WAVE_MARK in head
    return head.startswith(_PNG) and PNG_MARK in head


def _look(data: bytes) -> tuple[str, bool]:
    """What is wrong with the file, empty when nothing is, and whether it holds more than one picture."""
    if not data:
        return "is empty", False
    if data.startswith(_JPEG):
        return "" if _jpeg_is_whole(data) else "is cut off (a JPEG without its end marker)", False
    if data.startswith(_PNG):
        whole = "" if _png_is_whole(data) else "is cut off or damaged (a PNG chunk is short or fails its checksum)"
        told = data.find(b"acTL", 0, data.find(b"IDAT"))  # how many pictures an animated one has
        return whole, told > 0 and int.from_bytes(data[told + 4 : told + 8], "big") > 1
    if data.startswith((*_TIFF, b"GIF8", b"RIFF")):
        from fedretina.data.pillow_look import look_at_animation, look_at_tiff

        return look_at_tiff(data) if data.startswith(_TIFF) else look_at_animation(data)
    return "", False


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
