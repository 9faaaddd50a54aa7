"""A site's images split anew by patient, so that a benchmark's spread holds the luck of the split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import torch

from fedretina.data.manifest import PRETRAIN, SPLITS, UNLABELLED
from fedretina.data.site_data import SiteData, Split
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError
from fedretina.seeds import derive_seed
from fedretina_papers.choices import SplitSettings


def resplit(data: SiteData, settings: SplitSettings, seed: int) -> SiteData:
    """Put a site's splits together and divide them again, whole patients at a time.

    Every grade is spread by the fractions. A limit drops whole patients in the order of a seeded hash, so the images
    that stay are the same for all rows with this seed. Images without a label stay out: their patients have no side.

    Args:
        data: The site.
        settings: Shares and limits; "given" leaves the site as it is.
        seed: Of the split.

    Raises:
        DataError: Too few patients, or a training split of one grade.
    """
    if settings.kind == "given":
        return data
    parts = [data.split(name) for name in SPLITS]
    patients = [who for part in parts for who in part.patients]
    labels = torch.cat([part.labels for part in parts])
    homes = split_by_patient(patients, labels.tolist(), settings.fractions, derive_seed("resplit", data.name, seed))
    limits: Mapping[str, int] = {str(name): most for name, most in settings.limit.items()}
    rows = {
        name: _within(
            [at for at, home in enumerate(homes) if home == name], patients, limits.get(name), (data.name, seed)
        )
        for name in SPLITS
    }
    if len(set(labels[rows["train"]].tolist())) < 2:
        raise DataError(f"the split of {data.name} with seed {seed} trains on one grade: raise the limit or the share.")
    files = [file for part in parts for file in part.files]
    starts = torch.tensor([0, *(len(part.labels) for part in parts)]).cumsum(0).tolist()

    def read(name: str) -> Split:
        at = rows["train" if name == PRETRAIN else name]
        # Picked part by part: the parts are maps of the cache's file, and one row of it is one image.
        images = torch.stack([_pick(parts, starts, row) for row in at])
        told = torch.full((len(at),), UNLABELLED) if name == PRETRAIN else labels[at]
        return Split(images, told, tuple(patients[row] for row in at), tuple(files[row] for row in at))

    told = f"{data.fingerprint} {settings.model_dump_json()} {seed}"
    return replace(
        data,
        counts={name: len(at) for name, at in rows.items()} | {PRETRAIN: len(rows["train"])},
        fingerprint=hashlib.sha256(told.encode()).hexdigest(),
        _read=read,
    )


def _within(rows: list[int], patients: list[str], most: int | None, purpose: tuple[str, int]) -> list[int]:
    if most is None or len(rows) <= most:
        return rows
    order = sorted({patients[row] for row in rows}, key=lambda who: (derive_seed("limit", *purpose, who), who))
    of: dict[str, list[int]] = {}
    for row in rows:
        of.setdefault(patients[row], []).append(row)
    kept: list[int] = []
    for who in order:
        if len(kept) + len(of[who]) <= most:
            kept += of[who]
    return sorted(kept)


def _pick(parts: list[Split], starts: list[int], row: int) -> torch.Tensor:
    part = max(number for number in range(len(parts)) if starts[number] <= row)
    return parts[part].images[row - starts[part]]
