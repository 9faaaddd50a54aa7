"""From cases to pictures and signals: in memory for a site without data, and on disk for rehearsals."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED, RawRow, write_manifest
from fedretina.data.phantoms.canvas import Canvas, stamp, write_png, write_wave
from fedretina.data.phantoms.fundus import draw_fundus
from fedretina.data.phantoms.hospital import PHANTOM_VERSION, SHOWN, Case, PhantomHospital, phantom_hospital
from fedretina.data.phantoms.oct import draw_oct
from fedretina.data.phantoms.signals import RATE, draw_heart, draw_motion
from fedretina.data.phantoms.skin import draw_skin
from fedretina.data.phantoms.style import FundusStyle, OctStyle, SkinStyle, StethoscopeStyle, WearerStyle
from fedretina.data.scheme_presets import PRESETS, preset
from fedretina.data.site_data import SiteData, Split, fingerprint, require_splits
from fedretina.errors import DataError
from fedretina.seeds import generator
from fedretina.settings.images import SIGNALS, ActivitySettings, HeartSoundSettings, ImageSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import filled_folder

_SPREAD = 0.3  # of the severity around a grade, so that neighbouring grades overlap as they do between doctors
_ICDR = tuple(str(grade) for grade in range(5))


def phantom_samples(
    hospital: PhantomHospital, cases: Sequence[Case], settings: ImageSettings, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Draw the samples of cases as a network takes them: uint8 [n, *settings.shape].

    Pictures are drawn at their size, without the transforms of files; of signals the transforms are part.
    """
    samples = np.empty((len(cases), *settings.shape), np.uint8)
    if isinstance(settings, HeartSoundSettings):
        from fedretina.data.heart_sound_transforms import spectrogram_picture

        for number, (rate, wave) in enumerate(draw_waves(hospital, cases, seed)):
            samples[number] = spectrogram_picture(wave.astype(np.float64), rate, settings)
    elif isinstance(settings, ActivitySettings):
        from fedretina.data.activity_transforms import window_bytes

        waves = draw_waves(hospital, cases, seed, settings.length, settings.rate)
        for number, (_, wave) in enumerate(waves):
            samples[number] = window_bytes(wave.astype(np.float64), settings)
    else:
        return phantom_images(hospital, cases, settings.image_size, seed)
    return torch.from_numpy(samples)


def draw_waves(
    hospital: PhantomHospital,
    cases: Sequence[Case],
    seed: tuple[int | str, ...],
    length: int = 1000,
    rate: int = 100,
) -> Iterator[tuple[int, NDArray[np.generic]]]:
    """Draw the signals of cases one by one.

    Args:
        hospital: Whose.
        cases: What they hold.
        seed: What they are for.
        length: Samples of a window of activity.
        rate: Samples of activity per second.

    Returns:
        Samples per second, and int16 [n] of a heart, or float32 [length, 3] of a wrist.
    """
    shown = hospital.diseases()
    for case in cases:
        rng = generator(*seed, "signal", case.patient)
        if isinstance(hospital.style, StethoscopeStyle):
            amount = float(np.clip(0.55 + 0.25 * rng.normal(), 0.05, 1))
            yield RATE, draw_heart(hospital.style, shown[case.truth], amount, rng)
        elif isinstance(hospital.style, WearerStyle):
            yield rate, draw_motion(hospital.style, shown[case.truth], rng, length, rate)


def phantom_images(
    hospital: PhantomHospital, cases: Sequence[Case], size: int, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Draw the pictures of cases.

    A picture depends on the hospital, the seed and its case alone, not on how many others are drawn.

    Args:
        hospital: Whose pictures.
        cases: What they show.
        size: Side S in pixels, 32 or more.
        seed: What the pictures are for.

    Returns:
        uint8 [n, 3, S, S], RGB.
    """
    images = np.empty((len(cases), 3, size, size), np.uint8)
    for number, image in enumerate(draw_cases(hospital, cases, size, seed)):
        images[number] = image.transpose(2, 0, 1)
    return torch.from_numpy(images)


def draw_cases(
    hospital: PhantomHospital, cases: Sequence[Case], size: int, seed: tuple[int | str, ...]
) -> Iterator[NDArray[np.uint8]]:
    """Draw the pictures of cases one by one, uint8 [S, S, 3]; see `phantom_images`."""
    canvas = Canvas(size)
    diseases = hospital.diseases() if hospital.modality in SHOWN else ()
    grades = _icdr_grades(hospital.scheme)
    for case in cases:
        person = generator(*seed, "patient", case.patient)
        rng = generator(*seed, "eye", case.patient, "left" if case.left else "right")
        # The eyes of a patient share half of the variance of how far the disease has gone.
        drift = (person.normal() + rng.normal()) / 2**0.5
        if isinstance(hospital.style, OctStyle):
            amount = float(np.clip(0.62 + 0.24 * drift, 0.12, 1))
            image = draw_oct(canvas, hospital.style, person, case.left, diseases[case.truth], amount, rng)
        elif isinstance(hospital.style, SkinStyle):
            plain = float(np.clip(0.6 + 0.25 * drift, 0, 1))
            image = draw_skin(canvas, hospital.style, diseases[case.truth], plain, rng)
        elif isinstance(hospital.style, FundusStyle):
            bad = case.truth == hospital.scheme.ungradable_class
            grade = rng.uniform(0, 4) if bad else float(rng.choice(grades[case.truth]))
            severity = float(np.clip(grade + _SPREAD * drift, 0, 4.5))
            image = draw_fundus(canvas, hospital.style, person, case.left, severity, bad, rng)
        else:
            raise DataError(f"phantoms of {hospital.modality} are signals and no pictures: draw waves of them.")
        stamp(image)
        yield image


def cases_of(labels: Sequence[int] | NDArray[np.int64]) -> tuple[Case, ...]:
    """Cases of given classes: each another patient's right eye, and no grader mistaken."""
    return tuple(Case(int(label), int(label), number, False) for number, label in enumerate(labels))


def _icdr_grades(scheme: GradingScheme) -> list[tuple[float, ...]]:
    """Grades of the ICDR scale that each class stands for: what its raw labels say, else spread evenly."""
    graded = [label for label in range(scheme.num_classes) if label != scheme.ungradable_class]
    if all(raw in scheme.labels for raw in _ICDR):
        meant = [
            tuple(float(raw) for raw in _ICDR if scheme.index(raw) == label) for label in range(scheme.num_classes)
        ]
        if all(meant[label] for label in graded):
            return meant
    even = {label: 4.0 * at / max(1, len(graded) - 1) for at, label in enumerate(graded)}
    return [(even.get(label, 0.0),) for label in range(scheme.num_classes)]


def phantom_site_data(
    site: str, settings: SiteDataSettings, scheme: GradingScheme | None, transforms: ImageSettings, seed: int
) -> SiteData:
    """The data of a phantom hospital; a split is drawn when it is first asked for.

    Args:
        site: Name of the site.
        settings: How many images there are.
        scheme: Its grades; its own choice where None.
        transforms: Of the samples; a picture takes only its modality and its size from them.
        seed: Of all that is drawn.

    Raises:
        DataError: Phantoms cannot show a grade of the scheme, a split is empty, or train has one class only.
    """
    modality = transforms.modality
    hospital = phantom_hospital(site, settings.phantom_images, scheme, modality)
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    cases = {split: hospital.cases(at, purposes[split])[: settings.most(split)] for at, split in enumerate(SPLITS)}
    require_splits(site, {split: [case.label for case in chosen] for split, chosen in cases.items()}, 0)
    drawn: dict[str, Split] = {}

    def read(split: str) -> Split:
        if split == PRETRAIN:
            train = read("train")
            most = settings.most(PRETRAIN)
            unlabelled = torch.full_like(train.labels, UNLABELLED)
            return Split(train.images[:most], unlabelled[:most], train.patients[:most], train.files[:most])
        if split not in drawn:
            chosen = cases[split]
            drawn[split] = Split(
                phantom_samples(hospital, chosen, transforms, purposes[split]),
                torch.tensor([case.label for case in chosen], dtype=torch.int64),
                tuple(case.patient_name(split) for case in chosen),
                tuple(case.file_name(split, modality) for case in chosen),
            )
        return drawn[split]

    counts = {split: len(chosen) for split, chosen in cases.items()}
    drawing = f"phantom {PHANTOM_VERSION}" if modality == "fundus" else f"phantom {modality} {PHANTOM_VERSION}"
    # Of a signal the transforms are part of what is drawn, of a picture its size alone.
    size = transforms.digest() if modality in SIGNALS else transforms.shape[1]
    lines = [f"{drawing} {site} {seed} {size} {list(hospital.mix)} {sorted(counts.items())}"]
    identity = fingerprint(hospital.scheme, lines)
    counts[PRETRAIN] = min(counts["train"], settings.most(PRETRAIN) or counts["train"])
    return SiteData(site, hospital.scheme, counts, True, 0, identity, read, settings.min_count)


IMAGES, MANIFEST, SITE_FILE, README = "images", "manifest.csv", "site.yaml", "README.txt"


def write_hospital(
    site: str,
    hospital: PhantomHospital,
    folder: Path,
    size: int,
    seed: int,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Draw all pictures of a phantom hospital into a folder, with what a site needs to take part.

    The same site, hospital, size and seed give the same files, and the pictures that a phantom site of that name draws
    in memory. The folder is filled wholly or not at all.

    Args:
        site: Name of the site.
        hospital: What to draw.
        folder: New or empty; made when missing.
        size: Side S of the square pictures in pixels; signals have none.
        seed: Of everything.
        tell: Called after each picture: how many are drawn, and of how many.

    Returns:
        A record: site, modality, grades, size, seed, images per split and grade, patients per split.

    Raises:
        DataError: The folder holds files already or cannot be written.
    """
    grades = hospital.scheme.grades
    record: dict[str, Any] = {
        "site": site,
        "modality": hospital.modality,
        "synthetic": True,
        "phantom_version": PHANTOM_VERSION,
        "grades": list(grades),
        "size": size,
        "seed": seed,
        "images": {},
        "patients": {},
    }
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    cases = {split: hospital.cases(at, purposes[split]) for at, split in enumerate(SPLITS)}
    of, drawn = sum(map(len, cases.values())), itertools.count(1)
    with filled_folder(folder, "the phantoms") as half:
        (half / IMAGES).mkdir()
        rows = []
        for split, some in cases.items():
            names = [case.file_name(split, hospital.modality) for case in some]
            paths = [half / IMAGES / name for name in names]
            _draw(hospital, some, paths, size, purposes[split], lambda: tell(next(drawn), of))
            rows += [
                RawRow(name, grades[case.label], case.patient_name(split), split)
                for name, case in zip(names, some, strict=True)
            ]
            labels = [case.label for case in some]
            record["images"][split] = {grade: labels.count(number) for number, grade in enumerate(grades)}
            record["patients"][split] = len({case.patient for case in some})
        write_manifest(half / MANIFEST, rows)
        _write(half / README, _readme(record))
        _write(half / SITE_FILE, _site_file(hospital))
    return record


def _draw(
    hospital: PhantomHospital,
    cases: Sequence[Case],
    paths: Sequence[Path],
    size: int,
    seed: tuple[int | str, ...],
    done: Callable[[], None],
) -> None:
    if hospital.modality in SIGNALS:
        for path, (rate, wave) in zip(paths, draw_waves(hospital, cases, seed), strict=True):
            write_wave(path, rate, wave)
            done()
        return
    for path, image in zip(paths, draw_cases(hospital, cases, size, seed), strict=True):
        write_png(path, image)
        done()


def _site_file(hospital: PhantomHospital) -> str:
    named = [name for name in PRESETS if preset(name) == hospital.scheme]
    scheme = named[0] if named else hospital.scheme.model_dump(mode="json")
    words = {"data": {"manifest": MANIFEST, "images": IMAGES, "scheme": scheme, "modality": hospital.modality}}
    head = "# SYNTHETIC: a phantom hospital, written by `fedretina data phantom`. For FEDRETINA_SITE_FILE.\n"
    return head + yaml.safe_dump(words, sort_keys=False)


def _readme(record: dict[str, Any]) -> str:
    total = sum(sum(counts.values()) for counts in record["images"].values())
    signals = record["modality"] in SIGNALS
    kind, size = ("signals", "") if signals else ("pictures", f", {record['size']} x {record['size']} pixels")
    mark = (
        """each WAV file carries the comment "Synthetic" in its list of
information. A site that reads them is reported as synthetic."""
        if signals
        else """each PNG carries the text chunk "Synthetic", and pictures of 128 pixels or
more have the word SYNTHETIC in their lower left corner. A site that reads them is reported as synthetic."""
    )
    return f"""SYNTHETIC {"SIGNALS" if signals else "IMAGES"}

The {total} {kind} in this folder were drawn by a program, `fedretina data phantom` (phantoms version \
{record["phantom_version"]}).
They show no patient, and no figure that is computed from them says anything about patients.

Each file's name begins with "phantom-", {mark}

site {record["site"]}, {record["modality"]}, seed {record["seed"]}{size}
{MANIFEST}: file, label, patient, split. {SITE_FILE}: the site file; point FEDRETINA_SITE_FILE to it.
"""


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(f"{path} was not written ({error}): choose a folder that you may write to.") from error
