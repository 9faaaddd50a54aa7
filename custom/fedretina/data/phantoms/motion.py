"""How a phantom wrist moves: where gravity points, and swings of a few frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.style import WearerStyle

_GRAVITY = 9.81


class _Motion(NamedTuple):
    """What a wrist does: where up is in its own axes, cycles a second, m/s2 of the swing by axis, and sharpness."""

    up: tuple[float, float, float]
    cadence: float = 0.0
    swing: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sharp: float = 0.0


_MOTIONS: Mapping[str, _Motion] = MappingProxyType(
    {
        "lying": _Motion((0.2, 0.3, 0.93)),
        "sitting": _Motion((-0.4, 0.3, 0.86)),
        "standing": _Motion((-0.9, 0.3, 0.3)),
        "ironing": _Motion((-0.35, 0.35, 0.87), 0.55, (2.4, 1.2, 0.6)),
        "vacuum_cleaning": _Motion((-0.6, 0.4, 0.7), 0.45, (3.2, 1.5, 1.8)),
        "ascending_stairs": _Motion((-0.93, 0.2, 0.3), 0.75, (2.4, 1.4, 2.2), 0.4),
        "walking": _Motion((-0.95, 0.15, 0.25), 0.95, (3.4, 1.6, 2.8), 0.6),
        "descending_stairs": _Motion((-0.92, 0.2, 0.3), 1.05, (4.6, 2.4, 3.0), 1.2),
    }
)
ACTIVITIES = tuple(_MOTIONS)


def draw_motion(
    style: WearerStyle, activity: str, rng: np.random.Generator, length: int, rate: int
) -> NDArray[np.float32]:
    """A window of an activity.

    Args:
        style: The wearer.
        activity: One of `ACTIVITIES`.
        rng: Of this window.
        length: Samples.
        rate: Samples a second.

    Returns:
        float32 [length, 3], m/s2, gravity included.
    """
    motion = _MOTIONS[activity]
    time = np.arange(length) / rate
    up = np.array(motion.up) + rng.normal(0, 0.12, 3)
    drift = np.cumsum(rng.normal(0, 0.25 / rate**0.5, (length, 3)), axis=0)
    moved = _GRAVITY * up / np.linalg.norm(up) + 0.5 * drift
    if motion.cadence:
        cadence = motion.cadence * style.pace * rng.lognormal(0, 0.06)
        phase = 2 * np.pi * cadence * time + rng.uniform(0, 2 * np.pi) + 0.15 * drift[:, 0]
        size = style.vigour * rng.lognormal(0, 0.15)
        for axis, swing in enumerate(motion.swing):
            lead = rng.normal(0, 0.4)
            wave = np.sin(phase + lead) + 0.5 * np.sin(2 * phase + rng.normal(0, 0.4))
            blow = motion.sharp * np.exp(8 * (np.cos(2 * phase + lead) - 1))  # the foot strikes twice a cycle
            moved[:, axis] += size * swing * (wave + blow)
    moved += rng.normal(0, style.noise, (length, 3))
    return np.asarray(moved @ _turned(style.tilt).T, dtype=np.float32)


def _turned(degrees: tuple[float, float, float]) -> NDArray[np.float64]:
    """Turns about the first, second and third axis, one after the other, as a matrix."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.radians(degrees)):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[first, first] = turn[second, second] = np.cos(angle)
        turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    return matrix
