"""PAMAP2 (Reiss and Stricker 2012): protocol files of nine subjects, cut into windows of a wrist's accelerometer.

Written from the set's documentation; the set could not be had.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedretina.data.manifest import SPLITS
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.written import own_folder, write_file
from fedretina.data.wav import wave_bytes
from fedretina.errors import DataError, SettingsError
from fedretina.settings.scheme import preset

WINDOWS = "windows"
RATE = 100  # samples per second
LENGTH = 1000  # samples of a window: 10 s, as in FedEE
COLUMNS = 54
BLOCK = 3  # windows: half a minute
_TIME, _ACTIVITY = 0, 1
# Of the 17 columns of the sensor at the wrist: temperature, then the accelerometer of plus and minus 16 g. The
# documentation advises against the other one (6 g), which clips and is not well calibrated.
_WRIST = slice(4, 7)
_FILE = re.compile(r"subject(?P<subject>\d{3})\.dat")
_LONGEST_GAP = 0.1  # share of a window's samples that may be missing
_JUMP = 1.5 / RATE  # seconds between samples from which a stretch ends


def survey(root: Path, settings: ImportSettings, out: Path) -> Survey:
    """Cut the activities that FedEE uses into windows of 10 s that do not overlap: OUT/windows/101-0001.wav and so on.

    A file holds 1000 samples of three channels in m/s2 at 100 Hz, as 32-bit floats. Windows lie within one stretch of
    one activity; the rest of a stretch is dropped, samples that the wireless link lost are interpolated, and a window
    that lacks more than a tenth is left out.

    A subject is a client, so the splits are made in time: of each activity the first half-minutes are train, the next
    val, the last test, by the settings' shares. The manifest's patient is such a half-minute of one activity, so that
    intervals are drawn over them and not over windows, whose neighbours are much alike.

    FedEE has 2869 windows, about 8 h of 10 s each, which is all that the set has of its 18 activities; so its windows
    of 8 of them must overlap, by about half. It draws the split among them by chance: most of its test windows then
    share samples with one of training. Ours share none.

    Args:
        root: The folder that holds Protocol, or that folder itself.
        settings: `client`, a subject, 101 to 109; each site is one. `fractions`.
        out: Where windows go.

    Raises:
        DataError: There is no such file, or it is damaged.
        SettingsError: No subject is named.
    """
    folder = root / "Protocol" if (root / "Protocol").is_dir() else root
    subjects = sorted(match["subject"] for path in folder.glob("subject*.dat") if (match := _FILE.fullmatch(path.name)))
    if not subjects:
        raise DataError(f"{folder} holds no subject101.dat and so on: unpack the set again and point to its folder.")
    if settings.client not in subjects:
        raise SettingsError(f"each subject is a client of its own: give --client, one of {', '.join(subjects)}.")
    table = _read(folder / f"subject{settings.client}.dat")
    numbers = {int(raw): raw for raw in preset("activity8").labels if raw.isdecimal()}
    windows: dict[int, list[NDArray[np.float32]]] = {number: [] for number in numbers}
    left_out = []
    for number, begin, samples in _windows(table, set(numbers)):
        mended = _mended(samples)
        if mended is None:
            left_out.append(LeftOut(f"{settings.client} at {begin:.2f} s", "a tenth of the window is missing"))
        else:
            windows[number].append(mended)
    found = []
    own_folder(out / WINDOWS)
    for number, mine in windows.items():
        for at, (window, part) in enumerate(zip(mine, _parts(len(mine), settings.fractions), strict=True)):
            name = f"{settings.client}-{number:02d}-{at:04d}.wav"
            write_file(out / WINDOWS / name, wave_bytes(RATE, window))
            found.append(Photograph(name, numbers[number], f"{settings.client}-{number:02d}-{at // BLOCK:03d}", part))
    if not found:
        raise DataError(f"subject {settings.client} has no whole window of the eight activities: take another subject.")
    return Survey(tuple(found), "activity8", tuple(left_out), images=out / WINDOWS)


def _read(path: Path) -> NDArray[np.float64]:
    try:
        table = np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the set again.") from error
    if table.shape[1] != COLUMNS:
        raise DataError(f"{path} has {table.shape[1]} columns, expected {COLUMNS}: unpack the set again.")
    return table


def _windows(table: NDArray[np.float64], wanted: set[int]) -> Iterator[tuple[int, float, NDArray[np.float64]]]:
    """Activity, begin in seconds and samples [LENGTH, 3] of each whole window, in order of time."""
    activity, time = table[:, _ACTIVITY], table[:, _TIME]
    ends = np.flatnonzero((np.diff(activity) != 0) | ~(np.abs(np.diff(time)) < _JUMP)) + 1
    for first, last in zip([0, *ends.tolist()], [*ends.tolist(), len(table)], strict=True):
        if first == last or int(activity[first]) not in wanted:
            continue
        for begin in range(first, last - LENGTH + 1, LENGTH):
            yield int(activity[first]), float(time[begin]), table[begin : begin + LENGTH, _WRIST]


def _mended(samples: NDArray[np.float64]) -> NDArray[np.float32] | None:
    """The window with what is missing drawn as straight lines; None where that is too much."""
    there = np.isfinite(samples).all(axis=1)
    if np.mean(~there) > _LONGEST_GAP:
        return None
    at = np.arange(len(samples))
    columns = [np.interp(at, at[there], column[there]) for column in samples.T]
    return np.stack(columns, axis=1).astype(np.float32)


def _parts(count: int, fractions: tuple[float, float, float]) -> list[str]:
    """The split of each window of an activity: whole blocks in order of time; all train where there are under three."""
    blocks = -(-count // BLOCK)
    if blocks < len(SPLITS):
        return ["train"] * count
    val, test = (max(1, round(share * blocks)) for share in fractions[1:])
    train = max(1, blocks - val - test)
    ends = (train, blocks - test if blocks - test > train else train + 1)
    return [SPLITS[sum(at // BLOCK >= end for end in ends)] for at in range(count)]


SET = PublicSet(
    name="pamap2",
    survey_of=survey,
    title="PAMAP2 Physical Activity Monitoring",
    layout="`Protocol/subject101.dat` to `subject109.dat` (54 columns, 100 Hz)",
    grades="activity8",
    patients="half a minute of one activity; a subject is a site (`--client 101`)",
    splits="none: of each activity the first half-minutes are train, the next val, the last test, by `--fractions`",
    rules=(
        "windows of 10 s of the wrist's 16 g accelerometer that do not overlap, written as WAV files of three channels"
    ),
    options=("client",),
    modality="activity",
)
