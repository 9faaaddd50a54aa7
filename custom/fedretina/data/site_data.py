"""The data of one site as tensors: from its manifest through the image cache, or of a phantom hospital without one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedretina.data.feature_cache import FeaturePlace
from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED, Manifest, Record, read_manifest
from fedretina.data.modalities import require_modality
from fedretina.errors import DataError
from fedretina.seeds import derive_seed
from fedretina.settings.images import ImageSettings
from fedretina.settings.scalars import MIN_COUNT
from fedretina.settings.scheme import GradingScheme
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.settings.site import UNUSUAL, PromiseSettings, SiteDataSettings, site_modality, site_scheme


class Split(NamedTuple):
    """One split.

    Attributes:
        images: uint8 [N, 3, H, W]: RGB, three equal channels of an OCT scan or a spectrogram, or the three axes of a
            sensor with H 1; may be a map of the cache's file, so it must not be written to.
        labels: int64 [N], the class; -1 throughout for "pretrain".
        patients: Patient of each image.
        files: Name of each image at the site; like the patient it never leaves.
        digests: SHA-256 of the pixels of each image; empty where nobody has computed them (`pixel_digests`).
    """

    images: torch.Tensor
    labels: torch.Tensor
    patients: tuple[str, ...]
    files: tuple[str, ...]
    digests: tuple[str, ...] = ()

    def pixel_digests(self) -> tuple[str, ...]:
        """SHA-256 of the pixels of each image, computed where it is not known."""
        if self.digests or not len(self.images):
            return self.digests
        return tuple(
            hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in self.images.numpy()
        )


@dataclass(frozen=True)
class SiteData:
    """A site's data; nothing of a split is read before it is asked for.

    Attributes:
        name: The site.
        grading: Its grades; None where it only pre-trains and has told none.
        counts: Images per split: the labelled ones of "train", "val" and "test"; "pretrain" counts all of train,
            labelled or not.
        synthetic: Whether there are phantoms among the images, drawn here or read from files that say so.
        bad_files: How many images could not be read and were left out.
        fingerprint: SHA-256 over pixels, labels and splits: equal for equal data, whatever the order of rows.
        min_count: Fewest patients behind any count, figure or sum that leaves the site.
        listed: SHA-256 over the manifest's files, labels, patients and splits, those of files that cannot be read
            among them; "" where nothing is listed, for phantoms.
        changes: What becomes of a run whose site comes with another list later; see `SiteDataSettings`.
        public_sets: Names of the public sets that the images are of; empty for a hospital's own.
        features: Where what frozen stages make of the images is kept; None where it is not.
        promise: What the site asks of its referral; None asks nothing.
        columns: Optional columns of the manifest that the site has read, by name: the value of each file, "" where it
            is not known. Like the files they never leave.
        unusual: Largest share of the site's own patients that a doctor is to see for an unusual photograph alone.
    """

    name: str
    grading: GradingScheme | None
    counts: Mapping[str, int]
    synthetic: bool
    bad_files: int
    fingerprint: str
    _read: Callable[[str], Split]
    min_count: int = MIN_COUNT
    listed: str = ""
    changes: Literal["refuse", "accept"] = "refuse"
    public_sets: tuple[str, ...] = ()
    features: FeaturePlace | None = None
    promise: PromiseSettings | None = None
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unusual: float = UNUSUAL

    @property
    def scheme(self) -> GradingScheme:
        """The site's grades.

        Raises:
            DataError: It has told none.
        """
        if self.grading is None:
            raise scheme_not_set(self.name)
        return self.grading

    @property
    def graded(self) -> dict[str, int]:
        """Labelled images of train, val and test."""
        return {split: self.counts[split] for split in SPLITS}

    def may_be_told(self, name: str) -> bool:
        """Whether figures and sums of a split may leave the site: at least `min_count` patients stand behind them."""
        return len(set(self.split(name).patients)) >= self.min_count

    def column(self, name: str, files: Sequence[str]) -> list[str]:
        """What an optional column says of some images; "" where nothing is known."""
        return [self.columns[name].get(file, "") for file in files]

    def split(self, name: str) -> Split:
        """Read "train", "val" or "test", or "pretrain", whose labels are all -1.

        Raises:
            DataError: There is no such split.
        """
        if name not in self.counts:
            raise DataError(f"there is no split {name!r}: use one of {[*SPLITS, PRETRAIN]}.")
        return self._read(name)


def require_splits(site: str, labels: Mapping[str, Sequence[int]], bad_files: int, grades: int = 2) -> None:
    """Refuse data that a job could not use.

    Args:
        site: Name of the site.
        labels: Class of each image by split, those to pre-train on among them where no labels are needed.
        bad_files: How many images could not be read.
        grades: Fewest classes that train must show; 0 where no labels are needed.

    Raises:
        DataError: A split that the job needs is empty, or train has one class only and two are needed.
    """
    left_out = f" ({bad_files} images could not be read)" if bad_files else ""
    if not grades:
        if not labels[PRETRAIN]:
            raise DataError(
                f"{site} has no image in train to pre-train on{left_out}: list some, with labels or without."
            )
        return
    for split in SPLITS:
        if not labels[split]:
            raise DataError(
                f"{site} has no labelled image in {split}{left_out}: each of train, val and test needs some."
            )
    if len(set(labels["train"])) < grades:
        raise DataError(
            f"all {len(labels['train'])} training images of {site} have one grade{left_out}: "
            "a network cannot learn to tell grades apart; add images of another grade."
        )


def fingerprint(scheme: GradingScheme | None, lines: Sequence[str]) -> str:
    """SHA-256 over a site's grades and what decides its pixels, labels and splits.

    Args:
        scheme: The grades; None where the site has told none.
        lines: What decides the rest, in an order that does not depend on the manifest's.
    """
    # Which grades threaten sight says how figures are read, and changes no label.
    plain = None if scheme is None else scheme.model_copy(update={"vision_threatening": ()})
    text = "\n".join(["" if plain is None else plain.model_dump_json(), *lines])
    return hashlib.sha256(text.encode()).hexdigest()


def scheme_not_set(site: str) -> DataError:
    """What is said where a site has told no grades and a job needs them."""
    return DataError(f"the grading scheme of {site} is not set: name one of {', '.join(SCHEMES)}, or list the grades.")


def load_site_data(
    site: str,
    settings: SiteDataSettings,
    images: ImageSettings,
    seed: int,
    default_cache: Path,
    needs_labels: bool = True,
    tell: Callable[[int, int], None] = lambda done, of: None,
    trains: bool = True,
) -> SiteData:
    """Open a site's data; builds the image cache when it is stale.

    Args:
        site: Name of the site.
        settings: Where the data lie.
        images: The deterministic transforms; a phantom's picture takes only its modality and its size from them.
        seed: Of the phantoms; real data do not depend on it.
        default_cache: Folder of the cache where the settings name none.
        needs_labels: Whether the job uses labels. One that only pre-trains does not: then the scheme may be missing,
            and train, val and test may be empty as long as there is an image to pre-train on.
        tell: Called after each image while the cache is built: how many are in it, and of how many.
        trains: Whether a network learns from the labels, so that train must show two grades or more; sums may be of one
            alone.

    Raises:
        DataError: The manifest or the image root is missing, the scheme is not set, a row or a file is refused,
            a split that the job needs is empty, train has one class only and a network learns from it, or no image can
            be read.
        SettingsError: The site's images are of another modality than the job's; it names nothing of the site.
    """
    require_modality(site_modality(settings), images)
    scheme = site_scheme(settings)
    if settings.manifest is None:
        from fedretina.data.phantoms.draw import phantom_site_data

        cache = settings.cache or default_cache
        drawn = phantom_site_data(site, settings, scheme, images, seed, cache)
        place = _features(settings, cache, "phantoms", None)
        return replace(drawn, features=place, promise=settings.promise, unusual=settings.unusual)
    if scheme is None and needs_labels:
        raise scheme_not_set(site)
    manifest = read_manifest(settings.manifest, scheme, settings.columns)
    root = settings.manifest.parent if settings.images is None else settings.images
    if not root.is_dir():
        raise DataError(f"the image root {root} is no folder: mount it, or mend the path.")
    grades = (2 if trains else 1) if needs_labels else 0
    return _from_cache(site, settings, manifest, root, images, settings.cache or default_cache, grades, tell)


def _from_cache(
    site: str,
    settings: SiteDataSettings,
    manifest: Manifest,
    root: Path,
    transforms: ImageSettings,
    cache: Path,
    grades: int,
    tell: Callable[[int, int], None],
) -> SiteData:
    from fedretina.data.cache import build_cache
    from fedretina.data.decode import is_phantom

    chosen = {split: _limited(manifest.of(split), split, settings) for split in SPLITS}
    chosen[PRETRAIN] = _limited([*chosen["train"], *manifest.unlabelled()], PRETRAIN, settings)
    without = [record for record in chosen[PRETRAIN] if record.label == UNLABELLED]
    # Those without a label stand beside train's, so that "pretrain" is one stretch of the file.
    records = [*chosen["train"], *without, *chosen["val"], *chosen["test"]]
    # A limited run has a cache of its own, so that it does not throw the whole set's away.
    limit = "" if settings.limit is None else f"-{derive_seed(json.dumps(settings.limit, sort_keys=True)):016x}"
    folder = cache / f"{transforms.digest()[:16]}{limit}"
    found = build_cache([record.file for record in records], root, transforms, folder, settings.bad_files, tell)
    if not found.kept and records:
        raise DataError(
            f"none of the {len(records)} images under {root} can be read, such as {', '.join(found.bad[:5])}: "
            "mount the image root, or mend the file names."
        )
    kept = [records[at] for at in found.kept]
    row_of = {record.file: row for row, record in enumerate(kept)}
    places = {
        split: [row_of[record.file] for record in wanted if record.file in row_of] for split, wanted in chosen.items()
    }
    labels = {split: [kept[row].label for row in rows] for split, rows in places.items()}
    require_splits(site, labels, len(found.bad), grades)

    try:
        # A private map gives torch the writable memory that it asks for, and no write could reach the file.
        # It is taken now: it outlives the file's name, which goes when another process rebuilds the cache.
        images = np.load(found.path, mmap_mode="c") if found.path else found.images
    except OSError as error:
        raise DataError(f"the image cache {folder} was rebuilt by another process: start again.") from error

    def read(split: str) -> Split:
        rows = places[split]
        # Rows of a split are neighbours in the file, unless a limit takes some of train for "pretrain".
        whole = rows == list(range(rows[0], rows[-1] + 1)) if rows else False
        return Split(
            torch.from_numpy(images[rows[0] : rows[-1] + 1] if whole else np.asarray(images[rows])),
            torch.tensor([UNLABELLED if split == PRETRAIN else kept[row].label for row in rows], dtype=torch.int64),
            tuple(kept[row].patient for row in rows),
            tuple(kept[row].file for row in rows),
            tuple(found.digests[row] for row in rows),
        )

    lines = sorted(
        f"{record.split} {record.label} {digest}" for record, digest in zip(kept, found.digests, strict=True)
    )
    counts = {split: len(rows) for split, rows in places.items()}
    # Phantoms that were written to disk and read back stay synthetic; one among patients is enough to say so.
    synthetic = any(is_phantom(root / record.file) for record in kept if record.file.lower().endswith((".png", ".wav")))
    identity = fingerprint(manifest.scheme, lines)
    return SiteData(
        site,
        manifest.scheme,
        counts,
        synthetic,
        len(found.bad),
        identity,
        read,
        settings.min_count,
        manifest.digest(),
        settings.changes,
        () if settings.public_set is None else (settings.public_set,),
        _features(settings, cache, folder.name, frozenset(found.digests)),
        settings.promise,
        manifest.columns,
        settings.unusual,
    )


def _features(
    settings: SiteDataSettings, cache: Path, images: str, listed: frozenset[str] | None
) -> FeaturePlace | None:
    if not settings.feature_cache_gb:
        return None
    return FeaturePlace(cache / "features", images, listed, round(settings.feature_cache_gb * 1e9))


def _limited(records: Sequence[Record], split: str, settings: SiteDataSettings) -> list[Record]:
    count = settings.most(split)
    if count is None or count >= len(records):
        return list(records)
    chosen = set(sorted((derive_seed("limit", record.file), record.file) for record in records)[:count])
    return [record for record in records if (derive_seed("limit", record.file), record.file) in chosen]


class Pool(NamedTuple):
    """Sites taken as one.

    Attributes:
        data: All their images; the name of the only member where there is one.
        members: Their names, in alphabetical order.
    """

    data: SiteData
    members: tuple[str, ...]


def pools(sites: Mapping[str, SiteData], by_grades: bool) -> list[Pool]:
    """Put sites with the very same grades together, or all; a site whose grades are its own else stays alone.

    Grades are the same when their names and order are, whatever words stand for them in a site's files: grade 3 of one
    scheme is not grade 3 of another, and labels of different schemes are never mixed. Splits keep their sides: an image
    that a site tests on is tested on in the pool.

    Args:
        sites: Data by the site's name.
        by_grades: False where no label is read: all sites are one pool, which has no grades unless all have the same.

    Returns:
        The pools, in the order of their first members.
    """
    alike: dict[tuple[tuple[str, ...], str | None] | None, list[str]] = {}
    for name in sorted(sites):
        scheme = sites[name].scheme if by_grades else None
        alike.setdefault(_grades(scheme), []).append(name)
    found = []
    for names in alike.values():
        data = sites[names[0]] if len(names) == 1 else _joined(f"pool-of-{names[0]}", [sites[name] for name in names])
        found.append(Pool(data, tuple(names)))
    return found


def _grades(scheme: GradingScheme | None) -> tuple[tuple[str, ...], str | None] | None:
    return None if scheme is None else (scheme.grades, scheme.ungradable)


def _joined(name: str, parts: Sequence[SiteData]) -> SiteData:
    def read(split: str) -> Split:
        found = [part.split(split) for part in parts]
        return Split(
            torch.cat([one.images for one in found]),
            torch.cat([one.labels for one in found]),
            tuple(f"{part.name}/{who}" for part, one in zip(parts, found, strict=True) for who in one.patients),
            tuple(f"{part.name}/{file}" for part, one in zip(parts, found, strict=True) for file in one.files),
            tuple(digest for one in found for digest in one.pixel_digests()),
        )

    place = parts[0].features
    return SiteData(
        name=name,
        grading=parts[0].grading if len({_grades(part.grading) for part in parts}) == 1 else None,
        counts={split: sum(part.counts[split] for part in parts) for split in parts[0].counts},
        synthetic=any(part.synthetic for part in parts),
        bad_files=sum(part.bad_files for part in parts),
        fingerprint=hashlib.sha256("\n".join(part.fingerprint for part in parts).encode()).hexdigest(),
        _read=read,
        min_count=max(part.min_count for part in parts),
        listed=hashlib.sha256("\n".join(part.listed for part in parts).encode()).hexdigest(),
        changes="accept" if all(part.changes == "accept" for part in parts) else "refuse",
        public_sets=tuple(sorted({one for part in parts for one in part.public_sets})),
        # In the first one's folder; under a name of its own, so that neither takes the other's rows for stale.
        features=None if place is None else place._replace(images=f"{name}-{place.images}", listed=None),
        unusual=max(part.unusual for part in parts),
        # A site that has not read a column says nothing of its images.
        columns={
            column: {
                f"{part.name}/{file}": value for part in parts for file, value in part.columns.get(column, {}).items()
            }
            for column in sorted({column for part in parts for column in part.columns})
        },
    )
