"""Images a second from the cached pipeline, beside MONAI's default pipeline on the files."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import ROOT, Result, result, target
from fedretina.data.augment import augment
from fedretina.data.manifest import RawRow, write_manifest
from fedretina.data.phantoms.draw import cases_of, draw_cases
from fedretina.data.phantoms.hospital import phantom_hospital
from fedretina.data.site_data import load_site_data
from fedretina.settings.experiment import Experiment
from fedretina.settings.images import FundusSettings
from fedretina.settings.site import SiteDataSettings

_TARGET = 5.0
_REAL = ROOT.parent / "shared" / "data" / "fundus"
_SITES = ("aptos2019", "eyepacs", "idrid", "odir5k")
_A_SITE = 80
# Passes of ours that are timed as one, by size: a single one would be too short.
_PASSES = {64: 20, 128: 8, 256: 3}
_BATCH = 32
_THREADS = 2
_PAIRS = 7


def measure(scratch: Path, quick: bool = False) -> Result:
    """Read the same files through both pipelines in turn, at every size.

    Args:
        scratch: For the manifest, the cache, and phantom files where there are no real ones.
        quick: Few images, one size, one pair.
    """
    torch.set_num_threads(_THREADS)
    count = 3 if quick else _A_SITE
    real = (_REAL / "labels.csv").exists()
    root, rows = (_REAL, _real_rows(count)) if real else (scratch / "jpeg", _phantom_rows(scratch / "jpeg", 4 * count))
    manifest = scratch / "manifest.csv"
    write_manifest(manifest, rows)
    files = [str(root / row.file) for row in rows if row.split == "train"]
    cases = {}
    for size in [64] if quick else _PASSES:
        fundus = FundusSettings(image_size=size)
        settings = SiteDataSettings(manifest=manifest, images=root, scheme="icdr5", cache=scratch / "cache")
        load_site_data("site", settings, fundus, 1, scratch)  # builds the cache
        images = load_site_data("site", settings, fundus, 1, scratch).split("train").images
        if len(images) != len(files):
            raise RuntimeError(f"{len(files)} files gave {len(images)} images: the two pipelines would not be equal.")
        cases[f"{size} px"] = _case(images, files, size, 1 if quick else _PAIRS)
    settings_used = {"torch threads": _THREADS, "batch size": _BATCH, "images": len(files)}
    kind = "real fundus JPEG files of four sites" if real else "JPEG files of phantoms, 256 px"
    return result(
        "Image pipeline",
        "Images a second from a valid cache to float batches (memory map, scaling) against MONAI's default pipeline to "
        "float batches (`LoadImage`, `EnsureChannelFirst`, `Resize`, `ScaleIntensity`) on the same JPEG files each "
        "time, both in one process; the target is theirs. Ours with flip and rotation on top, which MONAI's side "
        "then lacks, stands beside it.",
        cases,
        [target("ours / MONAI", "at least", _TARGET)],
        {**settings_used, "data": kind},
        ["The cache is built once before and is not timed; files and cache lie in the page cache for both."],
    )


def _case(images: torch.Tensor, files: list[str], size: int, pairs: int) -> dict[str, list[float]]:
    from monai.transforms import Compose, EnsureChannelFirst, LoadImage, Resize, ScaleIntensity

    monai = Compose([LoadImage(), EnsureChannelFirst(), Resize((size, size)), ScaleIntensity()])
    settings = Experiment().augment

    def cached(samples: np.ndarray) -> torch.Tensor:
        return images[samples].float().div_(255).to(memory_format=torch.channels_last)

    def augmented(samples: np.ndarray) -> torch.Tensor:
        return augment(images[samples], samples, settings, (1,)).to(memory_format=torch.channels_last)

    def theirs(samples: np.ndarray) -> torch.Tensor:
        return torch.stack([monai(files[at]) for at in samples])

    speed: dict[str, list[float]] = {"ours": [], "ours, augmented": [], "MONAI": []}
    for turn in range(1 + pairs):
        for name, read in (("ours", cached), ("ours, augmented", augmented), ("MONAI", theirs)):
            seconds = _timed(read, len(files), 1 if name == "MONAI" else _PASSES[size])
            if turn > 0:
                speed[name].append(len(files) / seconds)
    ratios = {
        f"{name} / MONAI": [a / b for a, b in zip(speed[name], speed["MONAI"], strict=True)]
        for name in ("ours", "ours, augmented")
    }
    return {**ratios, **{f"{name}, images/s": values for name, values in speed.items()}}


def _timed(read: Callable[[np.ndarray], torch.Tensor], images: int, passes: int) -> float:
    """Seconds of a pass."""
    began = time.perf_counter()
    for number in range(passes):
        order = np.random.default_rng(number).permutation(images)
        for first in range(0, images, _BATCH):
            read(order[first : first + _BATCH])
    return (time.perf_counter() - began) / passes


def _real_rows(count: int) -> list[RawRow]:
    """The first images of each split of each site; a site's name keeps its patients apart from the others'."""
    with open(_REAL / "labels.csv", encoding="utf-8", newline="") as handle:
        table = list(csv.DictReader(handle))
    chosen: list[RawRow] = []
    for site in _SITES:
        for split, most in (("train", count), ("val", 2), ("test", 2)):
            found = [row for row in table if row["site"] == site and row["split"] == split][:most]
            chosen += [RawRow(row["file"], row["grade"], f"{site} {row['group']}", split) for row in found]
    return chosen


def _phantom_rows(folder: Path, count: int) -> list[RawRow]:
    return list(_write_phantoms(folder, {"train": count, "val": 5, "test": 5}))


def _write_phantoms(folder: Path, counts: dict[str, int]) -> Iterator[RawRow]:
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    hospital = phantom_hospital("site-1")
    for split, count in counts.items():
        cases = cases_of(np.arange(count) % 5)
        for case, image in zip(cases, draw_cases(hospital, cases, 256, (1, "benchmark", split)), strict=True):
            name = f"{split}-{case.patient:04d}.jpg"
            cv2.imwrite(str(folder / name), np.ascontiguousarray(image[..., ::-1]))
            yield RawRow(name, str(case.label), name, split)
