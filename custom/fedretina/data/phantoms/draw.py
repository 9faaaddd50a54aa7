"""From cases to pictures and signals: in memory for a site without data, and on disk for rehearsals."""

from __future__ import annotations

import hashlib
import inspect
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from fedretina.data.cache import map_pixels
from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED, RawRow, write_manifest
from fedretina.data.modalities import SignalModality, modality, modality_named
from fedretina.data.phantoms.canvas import Canvas, stamp, write_png, write_wave
from fedretina.data.phantoms.hospital import PHANTOM_VERSION, PhantomHospital, phantom_hospital
from fedretina.data.phantoms.kind import Case
from fedretina.data.site_data import SiteData, Split, fingerprint, require_splits
from fedretina.errors import DataError, StateError
from fedretina.seeds import generator
from fedretina.settings.images import ImageSettings, image_settings
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import filled_folder, write_bytes, write_output


def phantom_samples(
    hospital: PhantomHospital, cases: Sequence[Case], settings: ImageSettings, seed: tuple[int | str, ...]
) -> torch.Tensor:
    """Draw the samples of cases as a network takes them: uint8 [n, *settings.shape].

    Pictures are drawn at their size, without the transforms of files; of signals the transforms are part.
    """
    kind = modality.of(settings)
    if not issubclass(kind, SignalModality):
        return phantom_images(hospital, cases, settings.shape[1], seed)
    samples = np.empty((len(cases), *settings.shape), np.uint8)
    for number, (rate, wave) in enumerate(draw_waves(hospital, cases, settings, seed)):
        samples[number] = kind.sample(wave.astype(np.float64), rate, settings)
    return torch.from_numpy(samples)


def draw_waves(
    hospital: PhantomHospital, cases: Sequence[Case], settings: ImageSettings, seed: tuple[int | str, ...]
) -> Iterator[tuple[int, NDArray[np.int16 | np.float32]]]:
    """Draw the signals of cases one by one.

    Args:
        hospital: Whose.
        cases: What they hold.
        settings: Of the modality; they say how long a window is where that may be chosen.
        seed: What they are for.

    Returns:
        Samples per second, and int16 [n] of a heart, or float32 [length, 3] of a wrist.

    Raises:
        DataError: The hospital takes pictures.
    """
    wave = hospital.kind.wave
    if wave is None:
        raise DataError(f"phantoms of {hospital.modality} are pictures and no signals: draw cases of them.")
    for case in cases:
        yield wave(hospital, case, generator(*seed, "signal", case.patient), settings)


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
    picture = hospital.kind.picture
    if picture is None:
        raise DataError(f"phantoms of {hospital.modality} are signals and no pictures: draw waves of them.")
    canvas = Canvas(size)
    for case in cases:
        person = generator(*seed, "patient", case.patient)
        rng = generator(*seed, "eye", case.patient, "left" if case.left else "right")
        # The eyes of a patient share half of the variance of how far the disease has gone.
        drift = (person.normal() + rng.normal()) / 2**0.5
        image = picture(hospital, case, canvas, person, drift, rng)
        stamp(image)
        yield image


def cases_of(labels: Sequence[int] | NDArray[np.int64]) -> tuple[Case, ...]:
    """Cases of given classes: each another patient's right eye, and no grader mistaken."""
    return tuple(Case(int(label), int(label), number, False) for number, label in enumerate(labels))


def phantom_site_data(
    site: str,
    settings: SiteDataSettings,
    scheme: GradingScheme | None,
    transforms: ImageSettings,
    seed: int,
    cache: Path,
) -> SiteData:
    """The data of a phantom hospital; a split is drawn when it is first asked for, and kept in the site's cache.

    Args:
        site: Name of the site.
        settings: How many images there are.
        scheme: Its grades; its own choice where None.
        transforms: Of the samples; a picture takes only its modality and its size from them.
        seed: Of all that is drawn.
        cache: Folder of the site's cache; where it cannot be written, each process draws for itself.

    Raises:
        DataError: Phantoms cannot show a grade of the scheme, a split is empty, or train has one class only.
    """
    hospital = phantom_hospital(site, settings.phantom_images, scheme, transforms.modality)
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    cases = {split: hospital.cases(at, purposes[split])[: settings.most(split)] for at, split in enumerate(SPLITS)}
    require_splits(site, {split: [case.label for case in chosen] for split, chosen in cases.items()}, 0)
    counts = {split: len(chosen) for split, chosen in cases.items()}
    mark = transforms.modality if hospital.kind.mark is None else hospital.kind.mark
    drawing = " ".join(filter(None, ("phantom", mark, str(PHANTOM_VERSION))))
    # Of a signal the transforms are part of what is drawn, of a picture its size alone.
    size = transforms.digest() if transforms.signal else transforms.shape[1]
    lines = [f"{drawing} {site} {seed} {size} {list(hospital.mix)} {sorted(counts.items())}"]
    identity = fingerprint(hospital.scheme, lines)
    folder = cache / "phantoms" / hashlib.sha256(f"{identity} {_drawn_by(hospital)}".encode()).hexdigest()[:16]
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
                _kept(
                    folder / f"{split}.npy",
                    len(chosen),
                    transforms.shape,
                    lambda: phantom_samples(hospital, chosen, transforms, purposes[split]),
                ),
                torch.tensor([case.label for case in chosen], dtype=torch.int64),
                tuple(case.patient_name(split) for case in chosen),
                tuple(hospital.file_name(case, split) for case in chosen),
            )
        return drawn[split]

    counts[PRETRAIN] = min(counts["train"], settings.most(PRETRAIN) or counts["train"])
    return SiteData(site, hospital.scheme, counts, True, 0, identity, read, settings.min_count)


def _drawn_by(hospital: PhantomHospital) -> str:
    """SHA-256 over the files that draw, and those beside the modality: who changes his phantoms wants to see others."""
    places = {Path(__file__).parent, Path(inspect.getfile(modality_named(hospital.modality))).parent}
    sources = sorted(file for place in places for file in place.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()


def _kept(path: Path, rows: int, sample: tuple[int, int, int], draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Samples that an earlier process drew, else drawn now and kept.

    The simulator may start a process for each task, and a quarter of the last one's time went into drawing.
    """
    with suppress(DataError):
        return torch.from_numpy(np.array(map_pixels(path, rows, sample)))
    samples = draw()
    content = io.BytesIO()
    np.save(content, samples.numpy())
    with suppress(StateError):
        write_bytes(path, content.getvalue(), durable=False)
    return samples


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
            names = [hospital.file_name(case, split) for case in some]
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
        write_output(half / README, _readme(record))
        write_output(half / SITE_FILE, _site_file(hospital))
    return record


def _draw(
    hospital: PhantomHospital,
    cases: Sequence[Case],
    paths: Sequence[Path],
    size: int,
    seed: tuple[int | str, ...],
    done: Callable[[], None],
) -> None:
    if hospital.kind.wave is not None:
        for path, (rate, wave) in zip(
            paths, draw_waves(hospital, cases, image_settings(hospital.modality), seed), strict=True
        ):
            write_wave(path, rate, wave)
            done()
        return
    for path, image in zip(paths, draw_cases(hospital, cases, size, seed), strict=True):
        write_png(path, image)
        done()


def _site_file(hospital: PhantomHospital) -> str:
    named = [name for name in SCHEMES if preset(name) == hospital.scheme]
    scheme = named[0] if named else hospital.scheme.model_dump(mode="json")
    raw = {"data": {"manifest": MANIFEST, "images": IMAGES, "scheme": scheme, "modality": hospital.modality}}
    head = "# SYNTHETIC: a phantom hospital, written by `fedretina data phantom`. For FEDRETINA_SITE_FILE.\n"
    return head + yaml.safe_dump(raw, sort_keys=False)


def _readme(record: dict[str, Any]) -> str:
    total = sum(sum(counts.values()) for counts in record["images"].values())
    signals = image_settings(record["modality"]).signal
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
