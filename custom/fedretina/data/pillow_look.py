"""What Pillow finds where OpenCV reads what it can and says nothing: damage in TIFF files, and further pictures."""

from __future__ import annotations

import io
import struct
import zlib
from typing import NamedTuple

from PIL import GifImagePlugin, Image, TiffImagePlugin, WebPImagePlugin

_SUBFILE, _OLD_SUBFILE, _WIDTH, _COMPRESSION = 254, 255, 256, 259
_PLACES = ((273, 279), (324, 325))  # tags of where the strips, or the tiles, begin, and how long they are
_SMALLER, _MASK, _OLD_SMALLER = 1, 4, 2
_DEFLATE = frozenset((8, 32946))
_READ = frozenset((1, 5, 7, 32773)) | _DEFLATE  # none, LZW, JPEG, PackBits: both libraries read them
_CHUNK = 1 << 20
# What Pillow raises for bytes that make no sense; `Image.open` expects most of these too.
_CANNOT = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    struct.error,
    Image.DecompressionBombError,
)


class FileFacts(NamedTuple):
    """What is known of a file that holds one picture or more.

    Attributes:
        fault: What is wrong with it; empty when nothing is, or where Pillow does not know its kind.
        several: Whether it holds more than one picture. Smaller copies of the first and masks do not count.
    """

    fault: str
    several: bool


class _Pixels(TiffImagePlugin.TiffImageFile):
    """A TIFF file of whose orientation and EXIF nothing is asked: a fault there is none of the pixels."""

    def load_end(self) -> None:
        pass


def look_at_tiff(data: bytes) -> FileFacts:
    """Look for damage and for further pages by Pillow, which stops at an error where OpenCV goes on.

    Deflated strips are inflated here besides, since libtiff leaves out their checksum. Damage inside strips that have
    neither a checksum nor a code that can break (uncompressed, PackBits, JPEG) cannot be told from a picture.

    Args:
        data: The whole file.
    """
    try:
        return _examined(_Pixels(io.BytesIO(data)), data)
    except _CANNOT:
        # Damaged in its head, or of a kind that Pillow does not read, such as JPEG 2000: OpenCV decides.
        return FileFacts("", False)


def look_at_animation(data: bytes) -> FileFacts:
    """Look for further pictures in a GIF or a WebP file; of damage OpenCV's own decoders tell.

    Args:
        data: The whole file.
    """
    try:
        if data.startswith(b"GIF8"):
            return FileFacts("", GifImagePlugin.GifImageFile(io.BytesIO(data)).is_animated)
        return FileFacts("", WebPImagePlugin.WebPImageFile(io.BytesIO(data)).n_frames > 1)
    except _CANNOT:
        return FileFacts("", False)


def _examined(image: _Pixels, data: bytes) -> FileFacts:
    packed = image.tag_v2.get(_COMPRESSION, 1)
    if packed in _DEFLATE and not _inflates(image, data):
        return FileFacts("is damaged (a strip of the TIFF fails its checksum)", False)
    try:
        image.load()
    except Image.DecompressionBombError:
        pass  # over 179 megapixels, which Pillow refuses and OpenCV reads
    except _CANNOT as error:
        if packed in _READ:
            return FileFacts(f"is cut off or damaged (a strip of the TIFF cannot be read: {error})", False)
    return _pages(image)


def _inflates(image: _Pixels, data: bytes) -> bool:
    view = memoryview(data)
    for begins, sizes in _PLACES:
        for begin, size in zip(image.tag_v2.get(begins, ()), image.tag_v2.get(sizes, ()), strict=False):
            stream = zlib.decompressobj()
            try:
                for at in range(begin, min(begin + size, len(view)), _CHUNK):
                    stream.decompress(view[at : min(at + _CHUNK, begin + size)])
            except zlib.error:
                return False
            if not stream.eof:
                return False
    return True


def _pages(image: _Pixels) -> FileFacts:
    at = 0
    while True:
        at += 1
        try:
            image.seek(at)
        except EOFError:
            return FileFacts("", False)
        except _CANNOT:
            pass  # its tags are read before its kind is refused
        tags = image.tag_v2
        if _WIDTH not in tags:
            return FileFacts("is cut off or damaged (the TIFF's list of pages leads nowhere)", False)
        if not tags.get(_SUBFILE, 0) & (_SMALLER | _MASK) and tags.get(_OLD_SUBFILE) != _OLD_SMALLER:
            return FileFacts("", True)
