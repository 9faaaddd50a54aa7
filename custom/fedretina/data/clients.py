"""One site's images divided into clients whose classes are skewed, whole patients at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ConfigDict, field_validator

from fedretina.data.check.rows import CheckSource
from fedretina.data.manifest import SPLITS, RawRow, raw_rows, read_manifest, write_manifest
from fedretina.data.splits import patient_classes
from fedretina.errors import DataError, SettingsError
from fedretina.seeds import derive_seed, generator
from fedretina.settings.choice import ReadBy, ReadSettings
from fedretina.settings.scheme import GradingScheme
from fedretina.storage import filled_folder, write_json, write_text
from fedretina.version import __version__

_DRAWS = 1000


class ClientSkew(ReadSettings):
    """How the classes of the clients differ.

    Attributes:
        name: "dirichlet": each class goes to the clients in shares drawn from a Dirichlet distribution; "even": in
            equal shares.
        alpha: Of the Dirichlet distribution, 0.01 to 1000; the smaller, the more a class lies with one client;
            refused with "even".
        minimum: Training images that every client gets at the least, 1 or more; of val and test it gets at the least
            the same proportion, and one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["dirichlet", "even"] = "dirichlet"
    alpha: Annotated[float, ReadBy("name", ("dirichlet",))] = 0.5
    minimum: int = 32

    @field_validator("alpha")
    @classmethod
    def _check_alpha(cls, value: float) -> float:
        if not 0.01 <= value <= 1000:
            raise ValueError(f"alpha is {value}: give 0.01 to 1000; 0.5 is skewed, 100 is close to even.")
        return value

    @field_validator("minimum")
    @classmethod
    def _check_minimum(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"minimum is {value}: every client needs at least one training image.")
        return value


class Division(NamedTuple):
    """Who gets what.

    Attributes:
        homes: Client of each image, 0 to clients - 1, int64 [N].
        shares: Share of each class that was drawn for each client, [K][clients]; what whole patients made of it is in
            the homes.
        draw: Number of the draw that gave every client enough, from 0.
    """

    homes: NDArray[np.int64]
    shares: tuple[tuple[float, ...], ...]
    draw: int


def divide(
    patients: Sequence[str], labels: Sequence[int], splits: Sequence[str], clients: int, skew: ClientSkew, seed: int
) -> Division:
    """Divide a site's images into clients.

    For each class the clients' shares are drawn from Dir(alpha), as in Yurochkin et al., ICML 2019; train, val and
    test use the same shares. A patient moves whole and counts for the class of most of its images. Patients
    are placed class by class, the largest first, each with the client that lacks most images of the class. Where a
    client is left with too few images, the shares are drawn again. The order of rows changes nothing.

    Args:
        patients: Patient of each image.
        labels: Class of each image, 0 or more.
        splits: Split of each image; those that hold none stay empty.
        clients: How many, 2 or more.
        skew: How they differ.
        seed: Any integer.

    Raises:
        SettingsError: There are fewer than two clients, or the lengths differ.
        DataError: A patient stands in two splits, a split has fewer patients than there are clients, or no draw gave
            every client enough.
    """
    if clients < 2:
        raise SettingsError(f"found {clients} clients: divide into two or more.")
    if not len(patients) == len(labels) == len(splits):
        raise SettingsError(
            f"found {len(patients)} patients and {len(splits)} splits for {len(labels)} labels: give one each an image."
        )
    images = Counter(splits)
    parts = [split for split in SPLITS if images[split]]
    people = _people(patients, labels, splits, seed)
    _require(people, images, parts, clients, skew)
    classes = max(labels) + 1
    for draw in range(_DRAWS if skew.name == "dirichlet" else 1):
        shares = _shares(classes, clients, skew, seed, draw)
        homes: dict[str, int] = {}
        enough = True
        for split in parts:
            held = _place(people[split], shares, homes)
            enough = min(held) >= _least(skew, images, split)
            if not enough:
                break
        if enough:
            found = np.array([homes[patient] for patient in patients], dtype=np.int64)
            return Division(found, tuple(tuple(row) for row in shares.tolist()), draw)
    raise DataError(
        f"no division into {clients} clients gave each of them {skew.minimum} training images and its part of val and "
        f"test: lower the minimum, take fewer clients{', or raise alpha' if skew.name == 'dirichlet' else ''}."
    )


class _Person(NamedTuple):
    name: str
    label: int
    images: int


def _people(
    patients: Sequence[str], labels: Sequence[int], splits: Sequence[str], seed: int
) -> Mapping[str, list[_Person]]:
    """The patients of each split with the class of most of their images, the largest first, else by a seeded hash."""
    where: dict[str, str] = {}
    for patient, split in zip(patients, splits, strict=True):
        if where.setdefault(patient, split) != split:
            raise DataError(
                f"patient {patient!r} is in {where[patient]} and in {split}: put a patient's images into one split."
            )
    sizes = Counter(patients)
    found: dict[str, list[_Person]] = {split: [] for split in SPLITS}
    for patient, label in patient_classes(patients, labels).items():
        found[where[patient]].append(_Person(patient, label, sizes[patient]))
    rank = {patient: derive_seed(seed, "divide", patient) for patient in sizes}
    return {
        split: sorted(persons, key=lambda person: (-person.images, rank[person.name], person.name))
        for split, persons in found.items()
    }


def _require(
    people: Mapping[str, list[_Person]], images: Mapping[str, int], parts: Sequence[str], clients: int, skew: ClientSkew
) -> None:
    """Refuse at once what no draw can give."""
    if "train" not in parts:
        raise DataError("no image is in train: there is nothing to divide.")
    for split in parts:
        if len(people[split]) < clients:
            raise DataError(
                f"found {len(people[split])} patients in {split} for {clients} clients, and a patient moves whole: "
                "take fewer clients, or split the images by patient anew."
            )
        needed = clients * _least(skew, images, split)
        if images[split] < needed:
            raise DataError(
                f"found {images[split]} images in {split}, and {clients} clients need {needed}: take fewer clients or "
                f"lower the minimum, which is {skew.minimum} training images per client."
            )


def _least(skew: ClientSkew, images: Mapping[str, int], split: str) -> int:
    """The minimum, in val and test by their size against train's."""
    return max(1, skew.minimum * images[split] // images["train"])


def _shares(classes: int, clients: int, skew: ClientSkew, seed: int, draw: int) -> NDArray[np.float64]:
    """Share of each class for each client, float64 [classes, clients]; rows sum to 1."""
    if skew.name == "even":
        return np.full((classes, clients), 1 / clients)
    return generator(seed, "divide", clients, draw).dirichlet(np.full(clients, skew.alpha), size=classes)


def _place(people: Sequence[_Person], shares: NDArray[np.float64], homes: dict[str, int]) -> list[int]:
    """Give each patient of a split a client; returns the images of each client."""
    clients = shares.shape[1]
    totals: Counter[int] = Counter()
    for person in people:
        totals[person.label] += person.images
    lack = {label: [share * total for share in shares[label].tolist()] for label, total in totals.items()}
    held = [0] * clients
    for person in sorted(people, key=lambda person: person.label):  # stable: within a class the order stays
        mine = lack[person.label]
        client = max(range(clients), key=lambda at: (mine[at], -held[at], -at))
        mine[client] -= person.images
        held[client] += person.images
        homes[person.name] = client
    return held


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
    written = [row for _, row in raw_rows(source.manifest, source.columns)]
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
            mine = [(record, written[at]) for at, record in enumerate(records) if found.homes[at] == client]
            rows = [
                RawRow(
                    record.file,
                    row["label"],
                    record.patient,
                    record.split,
                    tuple(row[column] for column in source.columns),
                )
                for record, row in mine
            ]
            write_manifest(half / name / MANIFEST, rows, source.columns)
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
    raw: dict[str, Any] = {
        "manifest": MANIFEST,
        "images": str(source.images.resolve()),
        "scheme": scheme.model_dump(mode="json"),
        **({} if source.stated is None else {"modality": source.stated}),
        **({"columns": list(source.columns)} if source.columns else {}),
        "bad_files": source.bad_files,
    }
    head = "# Written by `fedretina data divide`. It names a folder of this site and stays here.\n"
    return head + yaml.safe_dump({"data": raw}, sort_keys=False, allow_unicode=True)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
