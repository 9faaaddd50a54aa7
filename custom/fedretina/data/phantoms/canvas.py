"""What phantoms are drawn on: a square with x and y from -1 to 1, larger than the picture that is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float32]
Path = NDArray[np.float64]  # points in units, [..., 2]
Values = float | NDArray[np.float64] | NDArray[np.int64]
_LEAST = 1.0  # half the thickness of the smallest spot, in pixels of the finished picture
_SHIFT = 4  # fractional bits of cv2's coordinates


class Canvas:
    """A square grid of pixels in units of half its side; x grows to the right, y downwards.

    Everything is placed and sized in units, so that the same draws give the same scene at any resolution.

    Args:
        size: Side of the finished picture in pixels.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.side = max(size, min(2 * size, 192))  # thin vessels need more pixels than a small picture has
        axis = ((np.arange(self.side, dtype=np.float32) + 0.5) / self.side) * 2 - 1
        self.x = axis[None, :]
        self.y = axis[:, None]
        self.radius2 = self.x**2 + self.y**2

    def pixels(self, units: float) -> float:
        """A length in pixels."""
        return units / 2 * self.side

    def fixed(self, points: Path) -> NDArray[np.int32]:
        """Points in units to cv2's fixed-point pixels, same shape."""
        return np.asarray(np.round(((points + 1) / 2 * self.side - 0.5) * 2**_SHIFT), dtype=np.int32)

    def empty(self) -> NDArray[np.uint8]:
        """A mask of zeros, uint8 [side, side]."""
        return np.zeros((self.side, self.side), np.uint8)

    def blob(self, x: float, y: float, wide: float, high: float | None = None) -> Plane:
        """A Gaussian bump of height 1 at a point, float32 [side, side]."""
        column = np.exp(np.square(self.x - np.float32(x)) * np.float32(-0.5 / wide**2))
        row = np.exp(np.square(self.y - np.float32(y)) * np.float32(-0.5 / (high or wide) ** 2))
        return np.asarray(column * row, dtype=np.float32)

    def smooth_noise(self, rng: np.random.Generator, columns: int, rows: int | None = None) -> Plane:
        """Smooth noise with about unit variance at its knots, float32 [side, side]."""
        import cv2

        knots = rng.standard_normal((rows or columns, columns), dtype=np.float32)
        return np.asarray(cv2.resize(knots, (self.side, self.side), interpolation=cv2.INTER_CUBIC), dtype=np.float32)

    def ellipses(
        self, mask: NDArray[np.uint8], points: Path, axes: Path, turns: Values = 0.0, values: Values = 255
    ) -> None:
        """Fill ellipses; none is thinner than two pixels of the finished picture.

        So a thumbnail keeps the smallest lesions, larger than life.

        Args:
            mask: uint8 [side, side], changed in place.
            points: Their centres in units, [B, 2].
            axes: Their half axes in units, [B, 2].
            turns: Angle of the first axis in degrees, [B] or one for all.
            values: Weight of each, 0 to 255, [B] or one for all.
        """
        import cv2

        half = np.maximum(self.pixels(1) * np.asarray(axes), _LEAST * self.side / self.size)
        shape = np.round(half * 2**_SHIFT).astype(int).tolist()
        weights = np.broadcast_to(values, len(shape)).tolist()
        angles = np.broadcast_to(turns, len(shape)).tolist()
        for point, axis, angle, weight in zip(self.fixed(points).tolist(), shape, angles, weights, strict=True):
            cv2.ellipse(mask, point, axis, angle, 0, 360, weight, -1, cv2.LINE_AA, _SHIFT)

    def lines(self, mask: NDArray[np.uint8], paths: Sequence[NDArray[np.int32]], width: float, value: int) -> None:
        """Draw paths of fixed points in one width; those finer than a pixel are a pixel wide with less weight."""
        import cv2

        wide = self.pixels(width)
        weight = int(value * min(1.0, wide) + 0.5)
        cv2.polylines(mask, paths, False, weight, max(1, int(wide + 0.5)), cv2.LINE_AA, _SHIFT)

    def polygon(self, mask: NDArray[np.uint8], points: Path, value: int) -> None:
        """Fill a polygon, [P, 2] in units."""
        import cv2

        cv2.fillPoly(mask, [self.fixed(points)], value, cv2.LINE_AA, _SHIFT)


def soften(mask: NDArray[np.uint8], pixels: float) -> Plane:
    """A mask as weights 0 to 1, blurred by a Gaussian of so many pixels."""
    import cv2

    soft = cv2.GaussianBlur(mask, (0, 0), pixels) if pixels >= 0.3 else mask
    return np.asarray(soft, dtype=np.float32) * np.float32(1 / 255)
