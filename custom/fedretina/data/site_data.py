"""The data of one site: its splits as tensors, from its manifest or from a phantom hospital."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedretina.data.fundus_settings import FundusSettings
from fedretina.data.manifest import SPLITS, Record, read_manifest
from fedretina.data.scheme import GradingScheme, preset
from fedretina.errors import DataError, SettingsError
from fedretina.evaluation.min_count import MIN_COUNT
from fedretina.seeds import derive_seed


class Split(NamedTuple):
    """One split.

    Attributes:
        images: uint8 [N, 3, S, S], RGB; may be a map of the cache's file, so it must not be written to.
        labels: int64 [N], the class.
        patients: Patient of each image.
        files: Name of each image at the site; like the patient it never leaves.
    """

    images: torch.Tensor
    labels: torch.Tensor
    patients: tuple[str, ...]
    files: tuple[str, ...]


class SiteDataSettings(BaseModel):
    """Where a site's data lie and how they are graded; the site's own, never a job's.

    Attributes:
        manifest: The manifest; without one the site is a phantom hospital.
        images: Image root; by default the manifest's folder.
        scheme: The grading scheme or a preset's name; must be given with a manifest.
        cache: Folder of the image cache.
        bad_files: Whether images that cannot be read are left out or stop the site.
        limit: At most so many images of a split, chosen by a hash of the file's name, for short runs.
        min_count: Fewest patients behind any count of answers that leaves the site; more than it has, and none leaves.
        phantom_images: Training images of an average phantom hospital.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: Path | None = None
    images: Path | None = None
    scheme: GradingScheme | str | None = None
    cache: Path | None = None
    bad_files: Literal["skip", "refuse"] = "skip"
    limit: dict[Literal["train", "val", "test"], int] | None = None
    min_count: int = Field(default=MIN_COUNT, ge=2)
    phantom_images: int = Field(default=160, ge=1)

    @field_validator("limit")
    @classmethod
    def _check_limit(cls, limit: dict[str, int] | None) -> dict[str, int] | None:
        low = {split: count for split, count in (limit or {}).items() if count < 1}
        if low:
            raise ValueError(f"limit is {low}: allow at least one image a split, or leave the split out.")
        return limit

    def resolved_scheme(self) -> GradingScheme | None:
        """The scheme itself where a preset is named.

        Raises:
            DataError: There is no such preset.
        """
        if not isinstance(self.scheme, str):
            return self.scheme
        try:
            return preset(self.scheme)
        except SettingsError as error:
            raise DataError(str(error)) from error


@dataclass(frozen=True)
class SiteData:
    """A site's data; nothing of a split is read before it is asked for.

    Attributes:
        name: The site.
        scheme: Its grades.
        counts: Images a split.
        synthetic: Whether there are phantoms among the images, drawn here or read from files that say so.
        bad_files: How many images could not be read and were left out.
        fingerprint: SHA-256 over pixels, labels and splits: equal for equal data, whatever the order of rows.
        min_count: Fewest patients behind any count of answers that leaves the site.
    """

    name: str
    scheme: GradingScheme
    counts: Mapping[str, int]
    synthetic: bool
    bad_files: int
    fingerprint: str
    _read: Callable[[str], Split]
    min_count: int = MIN_COUNT

    def split(self, name: str) -> Split:
        """Read "train", "val" or "test".

        Raises:
            DataError: There is no such split.
        """
        if name not in self.counts:
            raise DataError(f"there is no split {name!r}: use one of {list(SPLITS)}.")
        return self._read(name)


def load_site_data(
    site: str, settings: SiteDataSettings, fundus: FundusSettings, seed: int, default_cache: Path
) -> SiteData:
    """Open a site's data; builds the image cache when it is stale.

    Args:
        site: Name of the site.
        settings: Where the data lie.
        fundus: The deterministic transforms; a phantom takes only its size from them.
        seed: Of the phantoms; real data do not depend on it.
        default_cache: Folder of the cache where the settings name none.

    Raises:
        DataError: The manifest or the image root is missing, the scheme is not set, a row or a file is refused,
            a split is empty, train has one class only, or no image can be read.
    """
    scheme = settings.resolved_scheme()
    if settings.manifest is None:
        if settings.images is not None:
            raise DataError("images are set but no manifest: name the manifest that lists and grades them.")
        return _phantom(site, settings, scheme, fundus.image_size, seed)
    if scheme is None:
        raise DataError(
            f"the grading scheme of {site} is not set: name 'icdr5', 'icdr5_ungradable' or 'normal_3stages', "
            "or list the grades."
        )
    manifest = read_manifest(settings.manifest, scheme)
    root = settings.manifest.parent if settings.images is None else settings.images
    if not root.is_dir():
        raise DataError(f"the image root {root} is no folder: mount it, or mend the path.")
    records = [record for split in SPLITS for record in _limited(manifest.of(split), split, settings)]
    return _from_cache(site, settings, scheme, records, root, fundus, settings.cache or default_cache)


def _from_cache(
    site: str,
    settings: SiteDataSettings,
    scheme: GradingScheme,
    records: list[Record],
    root: Path,
    fundus: FundusSettings,
    cache: Path,
) -> SiteData:
    from fedretina.data.cache import build_cache
    from fedretina.data.phantoms.mark import is_phantom

    # A limited run has a cache of its own, so that it does not throw the whole set's away.
    limit = "" if settings.limit is None else f"-{derive_seed(json.dumps(settings.limit, sort_keys=True)):016x}"
    folder = cache / f"{fundus.digest()[:16]}{limit}"
    found = build_cache([record.file for record in records], root, fundus, folder, settings.bad_files)
    if not found.kept:
        raise DataError(
            f"none of the {len(records)} images under {root} can be read, such as {', '.join(found.bad[:5])}: "
            "mount the image root, or mend the file names."
        )
    kept = [records[at] for at in found.kept]
    places = {split: [row for row, record in enumerate(kept) if record.split == split] for split in SPLITS}
    _check(site, {split: [kept[row].label for row in rows] for split, rows in places.items()}, len(found.bad))

    try:
        # A private map gives torch the writable memory that it asks for, and no write could reach the file.
        # It is taken now: it outlives the file's name, which goes when another process rebuilds the cache.
        images = np.load(found.path, mmap_mode="c") if found.path else found.images
    except OSError as error:
        raise DataError(f"the image cache {folder} was rebuilt by another process: start again.") from error

    def read(split: str) -> Split:
        # Records are sorted by split, so a split is one stretch of the file.
        first, last = places[split][0], places[split][-1] + 1
        labels = torch.tensor([record.label for record in kept[first:last]], dtype=torch.int64)
        patients = tuple(record.patient for record in kept[first:last])
        files = tuple(record.file for record in kept[first:last])
        return Split(torch.from_numpy(images[first:last]), labels, patients, files)

    lines = sorted(
        f"{record.split} {record.label} {digest}" for record, digest in zip(kept, found.digests, strict=True)
    )
    counts = {split: len(rows) for split, rows in places.items()}
    # Phantoms that were written to disk and read back stay synthetic; one among patients is enough to say so.
    synthetic = any(is_phantom(root / record.file) for record in kept if record.file.lower().endswith(".png"))
    return SiteData(
        site, scheme, counts, synthetic, len(found.bad), _fingerprint(scheme, lines), read, settings.min_count
    )


def _phantom(site: str, settings: SiteDataSettings, scheme: GradingScheme | None, size: int, seed: int) -> SiteData:
    from fedretina.data.phantoms.draw import phantom_images
    from fedretina.data.phantoms.hospital import PHANTOM_VERSION, phantom_hospital

    hospital = phantom_hospital(site, settings.phantom_images, scheme, "fundus")
    purposes = {split: (seed, "phantom", site, split) for split in SPLITS}
    limits = {str(name): most for name, most in (settings.limit or {}).items()}
    cases = {split: hospital.cases(at, purposes[split])[: limits.get(split)] for at, split in enumerate(SPLITS)}
    _check(site, {split: [case.label for case in chosen] for split, chosen in cases.items()}, 0)
    drawn: dict[str, Split] = {}

    def read(split: str) -> Split:
        if split not in drawn:
            chosen = cases[split]
            drawn[split] = Split(
                phantom_images(hospital, chosen, size, purposes[split]),
                torch.tensor([case.label for case in chosen], dtype=torch.int64),
                tuple(case.patient_name(split) for case in chosen),
                tuple(case.file_name(split) for case in chosen),
            )
        return drawn[split]

    counts = {split: len(chosen) for split, chosen in cases.items()}
    lines = [f"phantom {PHANTOM_VERSION} {site} {seed} {size} {list(hospital.mix)} {sorted(counts.items())}"]
    fingerprint = _fingerprint(hospital.scheme, lines)
    return SiteData(site, hospital.scheme, counts, True, 0, fingerprint, read, settings.min_count)


def _limited(records: Sequence[Record], split: str, settings: SiteDataSettings) -> list[Record]:
    count = {str(name): most for name, most in (settings.limit or {}).items()}.get(split)
    if count is None or count >= len(records):
        return list(records)
    chosen = set(sorted((derive_seed("limit", record.file), record.file) for record in records)[:count])
    return [record for record in records if (derive_seed("limit", record.file), record.file) in chosen]


def _check(site: str, labels: Mapping[str, Sequence[int]], bad: int) -> None:
    left_out = f" ({bad} images could not be read)" if bad else ""
    for split in SPLITS:
        if not labels[split]:
            raise DataError(f"{site} has no image in {split}{left_out}: each of train, val and test needs some.")
    if len(set(labels["train"])) == 1:
        raise DataError(
            f"all {len(labels['train'])} training images of {site} have one grade{left_out}: "
            "a network cannot learn to tell grades apart; add images of another grade."
        )


def _fingerprint(scheme: GradingScheme, lines: Sequence[str]) -> str:
    text = "\n".join([scheme.model_dump_json(), *lines])
    return hashlib.sha256(text.encode()).hexdigest()
