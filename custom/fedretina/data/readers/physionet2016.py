"""PhysioNet/CinC Challenge 2016: heart sounds in six databases, training-a to training-f."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedretina.data.manifest import csv_lines
from fedretina.data.readers.survey import ALL_BY_SEED, ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.readers.written import own_folder, write_file
from fedretina.data.wav import read_wave, wave_bytes
from fedretina.errors import DataError, SettingsError

SEGMENTS = "segments"
SECONDS = 5
_DATABASES = "abcdef"
_LABELS = ("-1", "1")


def survey(
    root: Path, settings: ImportSettings, out: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> Survey:
    """Read REFERENCE.csv of each database; raw labels are -1 (normal) and 1 (abnormal).

    With `segments` "first" a recording is one sample, and its file stays where it is: the transforms take its first
    five seconds. With "all" each whole five seconds of it are written as a file of their own, OUT/segments/a0001-00.wav
    and so on, so that a file is a sample everywhere else: in manifests, in caches, in checks. All of a recording are
    one patient's, so they are in one split. What is left at a recording's end is dropped, as in FedEE.

    Args:
        root: The folder that holds training-a to training-f or some of them, or one of them itself.
        settings: `client`, a letter, of which database alone; `segments`; `bad_files`.
        out: Where segments go.
        tell: Called with how many files are done, and of how many.

    Raises:
        DataError: There is no database, its list is missing or damaged, or a recording that must be cut is.
        SettingsError: There is no such database.
    """
    if settings.client is not None and (len(settings.client) != 1 or settings.client not in _DATABASES):
        raise SettingsError(f"client is {settings.client!r}: write the letter of a database, a to f.")
    wanted = settings.client or _DATABASES
    folders = [f"training-{letter}" for letter in wanted if (root / f"training-{letter}").is_dir()]
    if not folders and (root / "REFERENCE.csv").is_file():
        folders = [""]
    if not folders:
        names = ", ".join(f"training-{letter}" for letter in wanted)
        raise DataError(f"{root} holds none of the folders {names}: unpack the set again, or name another client.")
    found: list[Photograph] = []
    left_out: list[LeftOut] = []
    for folder in folders:
        for name, label in _references(root / folder / "REFERENCE.csv"):
            file = f"{folder}/{name}.wav" if folder else f"{name}.wav"
            found.append(Photograph(file, label, name))
    told = "the set does not say which recordings are of one patient: each is its own, and figures may be too good."
    if settings.segments == "first":
        return Survey(tuple(found), "heart2", warnings=(told,))
    own_folder(out / SEGMENTS)
    cut: list[Photograph] = []
    for done, recording in enumerate(found):
        tell(done, len(found))
        try:
            cut += _cut(root / recording.file, recording, out / SEGMENTS)
        except DataError:
            if settings.bad_files == "refuse":
                raise
            left_out.append(LeftOut(recording.file, "the recording is missing, damaged or shorter than a segment"))
    return Survey(tuple(cut), "heart2", tuple(left_out), (told,), out / SEGMENTS)


def _references(path: Path) -> list[tuple[str, str]]:
    """Names and labels of a list, which has no header."""
    try:
        lines = [(number, [cell.strip() for cell in cells]) for number, cells in csv_lines(path, ())[1]]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): unpack the set again and point to its folder.") from error
    for number, line in lines:
        if len(line) < 2 or line[1] not in _LABELS or not line[0]:
            raise DataError(f"{path}, line {number}: expected a recording and -1 or 1, found {','.join(line)!r}.")
    if not lines:
        raise DataError(f"{path} lists no recording: unpack the set again.")
    return [(line[0], line[1]) for _, line in lines]


def _cut(path: Path, recording: Photograph, folder: Path) -> list[Photograph]:
    """Write the whole segments of a recording, as 16-bit samples at its own rate."""
    rate, samples = read_wave(path)
    long = SECONDS * rate
    count = len(samples) // long
    if count == 0:
        raise DataError(f"{path} is shorter than {SECONDS} s: leave its row out.")
    found = []
    for number in range(count):
        name = f"{recording.patient}-{number:02d}.wav"
        sound = np.clip(np.round(samples[number * long : (number + 1) * long, 0]), -(2**15), 2**15 - 1)
        write_file(folder / name, wave_bytes(rate, sound.astype(np.int16)))
        found.append(Photograph(name, recording.label, recording.patient))
    return found


SET = PublicSet(
    name="physionet2016",
    survey_of=survey,
    title="PhysioNet/CinC Challenge 2016, heart sounds",
    layout="`training-a/` to `training-f/` with `REFERENCE.csv` (recording, -1 or 1) and `a0001.wav`",
    grades="heart2",
    patients="the recording",
    splits=ALL_BY_SEED,
    rules=(
        "`--client a` to `f` is one database; the first 5 s of a recording, or all whole 5 s (`--segments all`), "
        "which are then written as WAV files"
    ),
    options=("client", "segments"),
    modality="heart_sound",
)
