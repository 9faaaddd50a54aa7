"""A divided site on disk: a folder a client, with manifest and site file, and a record of the division."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from fedretina.data.check_source import CheckSource
from fedretina.data.clients import ClientSkew, divide
from fedretina.data.manifest import SPLITS, RawRow, raw_rows, read_manifest, write_manifest
from fedretina.errors import DataError
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import filled_folder, write_json, write_text
from fedretina.version import __version__

FORMAT = 1
MANIFEST, SITE_FILE, RECORD = "manifest.csv", "site.yaml", "division.json"


def write_clients(source: CheckSource, out: Path, clients: int, skew: ClientSkew, seed: int) -> dict[str, Any]:
    """Divide a site's manifest and write `client-1`, `client-2`, ... into a folder.

    Rows and images stay as they are: each client's manifest holds its rows, and its site file points to the
    site's own images. The same manifest, skew and seed give the same bytes, but for the path of the images. The folder
    is filled wholly or not at all.

    Args:
        source: The site's manifest, scheme and images.
        out: New or empty; made when missing.
        clients: How many, 2 or more.
        skew: How they differ.
        seed: Of the draws.

    Returns:
        The record: skew, seed, shares as drawn, and images and patients of each client by split and grade. It names no
        path, no file and no patient.

    Raises:
        DataError: There is no manifest, it has a fault, it cannot be divided so, or `out` holds files or cannot be
            written.
        SettingsError: There are fewer than two clients.
    """
    if source.manifest is None:
        raise DataError("there is no manifest to divide: name one, or bring the images in first (data import).")
    scheme = source.scheme
    records = read_manifest(source.manifest, scheme).records
    if scheme is None or any(record.label < 0 for record in records):
        raise DataError("clients are divided by label, and there are images without one: take their rows out first.")
    labels = [row["label"] for _, row in raw_rows(source.manifest)]
    found = divide(
        [record.patient for record in records],
        [record.label for record in records],
        [record.split for record in records],
        clients,
        skew,
        seed,
    )
    names = [f"client-{number}" for number in range(1, clients + 1)]
    grades = scheme.grades
    sites = {}
    with filled_folder(out, "the clients") as half:
        for client, name in enumerate(names):
            (half / name).mkdir()
            mine = [(record, labels[at]) for at, record in enumerate(records) if found.homes[at] == client]
            rows = [RawRow(record.file, label, record.patient, record.split) for record, label in mine]
            write_manifest(half / name / MANIFEST, rows)
            write_text(half / name / SITE_FILE, _site_file(source, scheme))
            counts = read_manifest(half / name / MANIFEST, scheme).counts()
            sites[name] = {
                "images": {split: dict(zip(grades, counts[split], strict=True)) for split in SPLITS},
                "patients": {
                    split: len({record.patient for record, _ in mine if record.split == split}) for split in SPLITS
                },
                "manifest_sha256": _digest(half / name / MANIFEST),
            }
        record = {
            "format": FORMAT,
            "fedretina": __version__,
            "skew": skew.name,
            "alpha": skew.alpha if skew.name == "dirichlet" else None,
            "minimum": skew.minimum,
            "seed": seed,
            "draw": found.draw,
            "grades": list(grades),
            "shares": {grades[label]: dict(zip(names, row, strict=True)) for label, row in enumerate(found.shares)},
            "clients": sites,
            "manifest_sha256": _digest(source.manifest),
        }
        write_json(half / RECORD, record)
    return record


def _site_file(source: CheckSource, scheme: GradingScheme) -> str:
    words: dict[str, Any] = {
        "manifest": MANIFEST,
        "images": str(source.images.resolve()),
        "scheme": scheme.model_dump(mode="json"),
        **({} if source.stated is None else {"modality": source.stated}),
        "bad_files": source.bad_files,
    }
    head = "# Written by `fedretina data divide`. It names a folder of this site and stays here.\n"
    return head + yaml.safe_dump({"data": words}, sort_keys=False, allow_unicode=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
