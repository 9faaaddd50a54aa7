"""How a phantom heart sounds: two tones a beat, a murmur between them where it is ill, the room and the stethoscope."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedretina.data.phantoms.style import StethoscopeStyle

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
        int16 [10,000], 2000 samples a second.
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
