"""Small copies of photographs for a page that must hold everything itself."""

from __future__ import annotations

import base64
from pathlib import Path

from fedretina.data.decode import decode_image
from fedretina.errors import DataError

SIDE = 176
_QUALITY = 80


def thumbnail(path: Path) -> str | None:
    """A JPEG of at most `SIDE` pixels a side as a data URI, about 7 kB; None where the photograph cannot be read.

    It shows the photograph as it was taken, in its own shape, and not what the network was fed.
    """
    import cv2

    try:
        pixels = decode_image(path)
    except DataError:
        return None
    height, width = pixels.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA) if scale < 1 else pixels
    done, coded = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    return f"data:image/jpeg;base64,{base64.b64encode(coded.tobytes()).decode()}" if done else None
