"""Opens the data of one site: what its manifest lists, through the image cache, or a phantom hospital without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED, Manifest, Record, read_manifest
from fedretina.data.modality import require_modality
from fedretina.data.scheme_presets import site_modality, site_scheme
from fedretina.data.site_data import SiteData, Split, fingerprint, require_splits, scheme_not_set
from fedretina.errors import DataError
from fedretina.seeds import derive_seed
from fedretina.settings.images import ImageSettings
from fedretina.settings.site import SiteDataSettings


def load_site_data(
    site: str,
    settings: SiteDataSettings,
    images: ImageSettings,
    seed: int,
    default_cache: Path,
    needs_labels: bool = True,
    tell: Callable[[int, int], None] = lambda done, of: None,
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

    Raises:
        DataError: The manifest or the image root is missing, the scheme is not set, a row or a file is refused,
            a split that the job needs is empty, train has one class only, or no image can be read.
        SettingsError: The site's images are of another modality than the job's; it names nothing of the site.
    """
    require_modality(site_modality(settings), images.modality)
    scheme = site_scheme(settings)
    if settings.manifest is None:
        if settings.images is not None:
            raise DataError("images are set but no manifest: name the manifest that lists and grades them.")
        from fedretina.data.phantoms.site_data import phantom_site_data

        return phantom_site_data(site, settings, scheme, images, seed)
    if scheme is None and needs_labels:
        raise scheme_not_set(site)
    manifest = read_manifest(settings.manifest, scheme)
    root = settings.manifest.parent if settings.images is None else settings.images
    if not root.is_dir():
        raise DataError(f"the image root {root} is no folder: mount it, or mend the path.")
    return _from_cache(site, settings, manifest, root, images, settings.cache or default_cache, needs_labels, tell)


def _from_cache(
    site: str,
    settings: SiteDataSettings,
    manifest: Manifest,
    root: Path,
    transforms: ImageSettings,
    cache: Path,
    needs_labels: bool,
    tell: Callable[[int, int], None],
) -> SiteData:
    from fedretina.data.cache import build_cache
    from fedretina.data.phantoms.mark import is_phantom

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
    require_splits(site, labels, len(found.bad), needs_labels)

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
    )


def _limited(records: Sequence[Record], split: str, settings: SiteDataSettings) -> list[Record]:
    count = settings.most(split)
    if count is None or count >= len(records):
        return list(records)
    chosen = set(sorted((derive_seed("limit", record.file), record.file) for record in records)[:count])
    return [record for record in records if (derive_seed("limit", record.file), record.file) in chosen]
