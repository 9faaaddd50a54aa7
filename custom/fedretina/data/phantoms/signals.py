"""Phantom signals: heart sounds, and the motions of a wrist."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.kind import Case, PhantomKind, Preset
from fedretina.settings.images import ActivitySettings, HeartSoundSettings

if TYPE_CHECKING:
    from fedretina.data.phantoms.hospital import PhantomHospital

HEARTS = ("normal", "abnormal")
RATE, SECONDS = 2000, 5
_PEAK = 24_000  # of 16 bits


def draw_heart(style: StethoscopeStyle, heart: str, amount: float, rng: np.random.Generator) -> NDArray[np.int16]:
    """Five seconds of a heart.

    Args:
        style: The clinic's stethoscope.
        heart: One of `HEARTS`.
        amount: How loud the murmur is, 0 to 1; nothing of a normal heart.
        rng: Of this recording.

    Returns:
        int16 [10,000], 2000 samples per second.
    """
    time = np.arange(RATE * SECONDS) / RATE
    beat = 60 / (style.pulse * rng.lognormal(0, 0.1))
    systole = 0.34 * beat**0.5 * rng.normal(1, 0.04)
    first_pitch, second_pitch = rng.uniform(38, 55), rng.uniform(52, 75)
    second_loudness = rng.uniform(0.5, 0.95)
    low, high = rng.uniform(90, 130), rng.uniform(240, 420)
    murmur = _band(rng.standard_normal(len(time)), low, high)
    murmur *= (0.12 + 0.45 * amount) / max(float(np.std(murmur)), 1e-9)
    peak = rng.uniform(0.35, 0.65)  # where in systole the murmur is loudest

    sound = np.zeros(len(time))
    begin = -rng.uniform(0, beat)
    while begin < SECONDS:
        length = systole * rng.normal(1, 0.02)
        sound += _tone(time, begin, first_pitch, 0.022)
        sound += second_loudness * _tone(time, begin + length, second_pitch, 0.016)
        if heart == "abnormal":
            inside = np.clip((time - begin - 0.04) / max(length - 0.06, 0.05), 0, 1)
            sound += murmur * np.interp(inside, [0, peak, 1], [0, 0.5, 0])
        begin += beat * rng.normal(1, 0.03)

    sound += style.noise * rng.lognormal(0, 0.4) * _room(rng, len(time))
    sound += style.hum * np.sin(2 * np.pi * style.mains * time + rng.uniform(0, 2 * np.pi))
    for at in rng.uniform(0, SECONDS, rng.poisson(style.clicks)):
        sound += rng.uniform(0.3, 1.2) * _tone(time, at, rng.uniform(80, 400), rng.uniform(0.002, 0.01))
    heard = _band(sound, 15, style.cut)
    loudness = rng.uniform(0.4, 1.0) * _PEAK / max(float(np.max(np.abs(heard))), 1e-9)
    return np.round(heard * loudness).astype(np.int16)


def _tone(time: NDArray[np.float64], at: float, pitch: float, wide: float) -> NDArray[np.float64]:
    """A tone that swells and fades within about four times a standard deviation in seconds."""
    return np.asarray(np.exp(-0.5 * ((time - at) / wide) ** 2) * np.sin(2 * np.pi * pitch * (time - at)))


def _band(sound: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """What of a sound lies between two frequencies, with soft edges."""
    frequency = np.fft.rfftfreq(len(sound), 1 / RATE)
    gain = 1 / (1 + (frequency / high) ** 6) / (1 + (low / np.maximum(frequency, 1e-3)) ** 6)
    return np.asarray(np.fft.irfft(np.fft.rfft(sound) * gain, len(sound)))


def _room(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Noise whose power falls with frequency, of deviation 1."""
    frequency = np.fft.rfftfreq(count, 1 / RATE)
    noise = np.fft.irfft(np.fft.rfft(rng.standard_normal(count)) / np.sqrt(np.maximum(frequency, 20)), count)
    return np.asarray(noise / max(float(np.std(noise)), 1e-9))


_GRAVITY = 9.81


class _Motion(NamedTuple):
    """What a wrist does: where up is in its own axes, cycles per second, m/s2 of the swing by axis, and sharpness."""

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
        rate: Samples per second.

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


class StethoscopeStyle(NamedTuple):
    """The electronic stethoscope of a clinic.

    Attributes:
        pulse: Usual beats a minute.
        cut: Frequency above which it hears little, Hz.
        noise: Loudness of the room in parts of the first heart sound's.
        hum: Loudness of the mains in the same parts.
        mains: Its frequency, Hz.
        clicks: Knocks and rubs a recording, on average.
    """

    pulse: float = 72.0
    cut: float = 500.0
    noise: float = 0.03
    hum: float = 0.0
    mains: float = 50.0
    clicks: float = 0.5


class WearerStyle(NamedTuple):
    """A wearer of an accelerometer, who is a client of their own.

    Attributes:
        tilt: How the sensor sits on the wrist: turns about its three axes, degrees.
        pace: Cadence in parts of the usual one.
        vigour: Size of movements in parts of the usual.
        noise: Standard deviation of the sensor's noise and of tremor, m/s2.
    """

    tilt: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pace: float = 1.0
    vigour: float = 1.0
    noise: float = 0.4


# Heart sounds: the recordings of PhysioNet/CinC 2016's six databases, normal and abnormal, as the challenge lists them.
HEART_SOUND = (
    Preset("heart2", 1.0, (117, 292), StethoscopeStyle(74, 500, 0.03, 0.0, 60, 0.6), 0.04),
    Preset("heart2", 1.1, (386, 104), StethoscopeStyle(70, 250, 0.05, 0.0, 50, 1.0), 0.06),
    Preset("heart2", 0.3, (7, 24), StethoscopeStyle(76, 700, 0.02, 0.02, 50, 0.3), 0.02),
    Preset("heart2", 0.4, (27, 28), StethoscopeStyle(80, 600, 0.04, 0.03, 50, 1.0), 0.04),
    Preset("heart2", 1.6, (1958, 183), StethoscopeStyle(72, 800, 0.06, 0.01, 50, 1.5), 0.03),
    Preset("heart2", 0.5, (80, 34), StethoscopeStyle(68, 900, 0.08, 0.0, 50, 0.5), 0.05),
)
# Activity: eight wearers, whose activities last about as long as in PAMAP2's protocol, minutes over all its subjects.
ACTIVITY = tuple(Preset("activity8", 1.0, (32, 31, 32, 40, 20, 17, 29, 40), None, 0.0) for _ in range(8))


def _stethoscope(rng: np.random.Generator) -> StethoscopeStyle:
    """A stethoscope that no preset describes."""
    return StethoscopeStyle(
        pulse=rng.uniform(62, 88),
        cut=float(rng.choice([250.0, 500.0, 900.0])),
        noise=rng.uniform(0.01, 0.08),
        hum=float(rng.choice([0.0, 0.02, 0.05])),
        mains=float(rng.choice([50.0, 60.0])),
        clicks=rng.uniform(0, 2),
    )


def _wearer(rng: np.random.Generator) -> WearerStyle:
    """A wearer whom no preset describes."""
    across, along, about = (float(rng.uniform(-25, 25)) for _ in range(3))
    return WearerStyle((across, along, about), rng.uniform(0.85, 1.15), rng.uniform(0.7, 1.3), rng.uniform(0.2, 0.7))


def _heart_wave(
    hospital: PhantomHospital, case: Case, rng: np.random.Generator, settings: HeartSoundSettings
) -> tuple[int, NDArray[np.int16]]:
    """See `PhantomKind.wave`."""
    amount = float(np.clip(0.55 + 0.25 * rng.normal(), 0.05, 1))
    return RATE, draw_heart(hospital.style, hospital.diseases()[case.truth], amount, rng)


def _activity_wave(
    hospital: PhantomHospital, case: Case, rng: np.random.Generator, settings: ActivitySettings
) -> tuple[int, NDArray[np.float32]]:
    """See `PhantomKind.wave`."""
    shown = hospital.diseases()[case.truth]
    return settings.rate, draw_motion(hospital.style, shown, rng, settings.length, settings.rate)


HEART_PHANTOMS = PhantomKind(presets=HEART_SOUND, drawn_style=_stethoscope, shown=HEARTS, wave=_heart_wave)
ACTIVITY_PHANTOMS = PhantomKind(presets=ACTIVITY, drawn_style=_wearer, shown=ACTIVITIES, wave=_activity_wave)
