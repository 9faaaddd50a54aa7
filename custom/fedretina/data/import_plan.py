"""What an import will write: each image of a set with its label, its patient and its split, or the reason why not."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedretina.data.manifest import SPLITS, RawRow, one_spelling, require_inside
from fedretina.data.patient_keys import SALT, keyed, site_salt
from fedretina.data.readers import reader, readers
from fedretina.data.readers.survey import ImportSettings, LeftOut, Photograph, PublicSet, Survey
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError, SettingsError
from fedretina.settings.columns import COLUMNS, Column
from fedretina.settings.scheme import GradingScheme, preset

_NAMED = 5


class Plan(NamedTuple):
    """An import before anything of it is written.

    Attributes:
        rows: The manifest's rows.
        survey: What the reader found.
        scheme: What the labels mean; None where no image has one.
        named: The same, by its name where it has one.
        official: Whether official parts were kept where the set has some.
        left_out: All images that are not imported.
        warnings: Sentences for the site's staff.
        columns: Optional columns of which the set tells something.
        stayed: Patients who keep the split that they had before.
    """

    rows: tuple[RawRow, ...]
    survey: Survey
    scheme: GradingScheme | None
    named: GradingScheme | str | None
    official: bool
    left_out: tuple[LeftOut, ...]
    warnings: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    stayed: int = 0


def plan_import(
    name: str,
    root: Path,
    out: Path,
    settings: ImportSettings,
    tell: Callable[[str, int, int], None] = lambda what, done, of: None,
    before: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Read a set and decide on each image; of the readers those alone that convert files write to `out`.

    Args:
        name: As `import_set`.
        root: As `import_set`.
        out: As `import_set`.
        settings: As `import_set`.
        tell: As `import_set`.
        before: Patients of an earlier import, by their names in its manifest, and their splits, which they keep.

    Raises:
        DataError: As `import_set`.
        SettingsError: As `import_set`.
    """
    public_set = reader(name)
    _check_options(public_set, settings)
    official = public_set.official if settings.official is None else settings.official
    survey = public_set.survey(root, settings, out, lambda done, of: tell("files converted", done, of))
    images = survey.images or root
    spelling = one_spelling(photograph.patient for photograph in survey.photographs)
    photographs = [photograph._replace(patient=spelling[photograph.patient]) for photograph in survey.photographs]
    left_out = list(survey.left_out)
    steps: list[Callable[[Sequence[Photograph]], tuple[list[Photograph], list[LeftOut]]]] = [
        without_repeats,
        lambda found: _present(images, found, settings, public_set),
    ]
    if settings.copies == "skip":
        steps.append(lambda found: without_copies(images, found, lambda done, of: tell("files compared", done, of)))
    if official:
        steps.append(_one_part_a_patient)
    for step in steps:
        photographs, gone = step(photographs)
        left_out += gone
    if not photographs:
        raise DataError(f"no image of {root} is left to import: {_reasons(left_out)}.")
    names = _names(spelling, out, settings, public_set, before)
    if public_set.keyed:  # dealt out by their keys
        photographs = [photograph._replace(patient=names[photograph.patient]) for photograph in photographs]
        names = {key: key for key in names.values()}

    named = settings.scheme or survey.scheme
    scheme = survey.grading() if settings.scheme is None else preset(settings.scheme)
    labelled = [photograph for photograph in photographs if photograph.label]
    labels = [] if scheme is None else [scheme.index(photograph.label) for photograph in labelled]
    homes = _homes(names, before)
    splits = _splits(labelled, labels, settings, official, homes) if labelled else []
    unlabelled = [photograph for photograph in photographs if not photograph.label]
    without, gone = to_train(unlabelled, labelled, splits, homes)
    photographs = labelled + without
    left_out += gone
    patients = [photograph.patient for photograph in photographs]
    splits += ["train"] * len(without)
    stayed = sum(homes.get(patient) == split for patient, split in set(zip(patients, splits, strict=True)))
    warnings = list(survey.warnings)
    twice = len(spelling) - len(set(spelling.values()))
    if twice:
        warnings.append(
            f"{twice} names of patients differ from another in capital letters or blanks alone: they count as one "
            "patient."
        )
    hidden = {patient for patient, name in names.items() if name != patient}
    if any(photograph.patient in hidden and photograph.patient in photograph.file for photograph in photographs):
        warnings.append("patients are hashed, but the names of the files still tell them: keep the manifest at home.")
    columns = tuple(name for name in COLUMNS if any(photograph.beside.get(name) for photograph in photographs))
    rows = [
        RawRow(
            require_inside(photograph.file),
            photograph.label,
            names[patient],
            split,
            tuple(photograph.beside.get(name, "") for name in columns),
        )
        for photograph, patient, split in zip(photographs, patients, splits, strict=True)
    ]
    if scheme is not None and labelled:
        warnings += _absent(scheme, labels, splits[: len(labels)])
    return Plan(tuple(rows), survey, scheme, named, official, tuple(left_out), tuple(warnings), columns, stayed)


def _present(
    root: Path, photographs: Sequence[Photograph], settings: ImportSettings, public_set: PublicSet
) -> tuple[list[Photograph], list[LeftOut]]:
    there = [(root / photograph.file).is_file() for photograph in photographs]
    missing = [photograph.file for photograph, is_there in zip(photographs, there, strict=True) if not is_there]
    if missing and settings.bad_files == "refuse":
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        cure = "Unpack the set again" if public_set.published else "Copy them there, mend their names in the list"
        raise DataError(
            f"{len(missing)} of {len(photographs)} labelled images are missing under {root}: "
            f"{', '.join(missing[:_NAMED])}{more}. {cure}, or leave them out (--bad-files skip)."
        )
    kept = [photograph for photograph, is_there in zip(photographs, there, strict=True) if is_there]
    return kept, [LeftOut(file, "the image is missing") for file in missing]


def _one_part_a_patient(photographs: Sequence[Photograph]) -> tuple[list[Photograph], list[LeftOut]]:
    """Where official parts share a patient, the test part keeps its images before val, and val before train."""
    home: dict[str, int] = {}
    for photograph in photographs:
        if photograph.part is not None:
            rank = SPLITS.index(photograph.part)
            home[photograph.patient] = max(rank, home.get(photograph.patient, rank))
    kept, left_out = [], []
    for photograph in photographs:
        if photograph.part is None or SPLITS.index(photograph.part) == home[photograph.patient]:
            kept.append(photograph)
        else:
            part = SPLITS[home[photograph.patient]]
            left_out.append(LeftOut(photograph.file, f"its patient is in the official {part} part too"))
    return kept, left_out


def to_train(
    without: Sequence[Photograph],
    labelled: Sequence[Photograph],
    splits: Sequence[str],
    before: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Photograph], list[LeftOut]]:
    """Images without a label go to train, save those of patients whose labelled images are, or were, in val or test."""
    homes = {**before, **{photograph.patient: split for photograph, split in zip(labelled, splits, strict=True)}}
    kept, left_out = [], []
    for photograph in without:
        home = homes.get(photograph.patient, photograph.part or "train")
        if home == "train":
            kept.append(photograph)
        else:
            left_out.append(LeftOut(photograph.file, f"it has no label, and its patient is in {home}"))
    return kept, left_out


def _names(
    spelling: Mapping[str, str], out: Path, settings: ImportSettings, public_set: PublicSet, before: Mapping[str, str]
) -> dict[str, str]:
    """Each patient, to the name in the manifest: where that is a key, the one that an earlier manifest knows.

    A key does not tell how the name was spelled, so the key of every spelling is looked for.
    """
    if not (settings.hash_patients or public_set.keyed):
        return {patient: patient for patient in spelling.values()}
    salt = site_salt(settings.salt or out / SALT)
    keys: dict[str, list[str]] = {}
    for spelled, patient in sorted(spelling.items()):
        keys.setdefault(patient, []).append(keyed(salt, "patient", spelled))

    def rank(key: str) -> int:
        return SPLITS.index(before[key]) if key in before else len(SPLITS)

    # An older manifest may have one patient under two keys: who was in train stays there, as no test may be on them.
    return {patient: min(own, key=rank) for patient, own in keys.items()}


def _homes(names: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The split that a patient had, of those whom an earlier manifest names, however it spelled them."""
    spelling = one_spelling([*before, *names.values()])
    splits = {spelling[name]: split for name, split in before.items()}
    return {patient: splits[spelling[name]] for patient, name in names.items() if spelling[name] in splits}


def _splits(
    photographs: Sequence[Photograph],
    labels: Sequence[int],
    settings: ImportSettings,
    official: bool,
    homes: Mapping[str, str],
) -> list[str]:
    patients = [photograph.patient for photograph in photographs]
    parts = [photograph.part if official else None for photograph in photographs]
    if None in parts:
        return split_by_patient(patients, labels, settings.fractions, settings.seed, homes)
    found = [str(part) for part in parts]
    if "train" not in found or "test" not in found:
        raise DataError(
            f"the official parts are {sorted(set(found))}: a site needs train and test at least; add the missing one, "
            "or split anew (--no-official)."
        )
    if "val" not in found:
        rest = settings.fractions[0] + settings.fractions[1]
        shares = (settings.fractions[0] / rest, settings.fractions[1] / rest, 0.0)
        rows = [at for at, part in enumerate(found) if part == "train"]
        own, classes = [patients[at] for at in rows], [labels[at] for at in rows]
        carved = split_by_patient(own, classes, shares, settings.seed, homes)
        for at, split in zip(rows, carved, strict=True):
            found[at] = split
    return found


def _absent(scheme: GradingScheme, labels: Sequence[int], splits: Sequence[str]) -> list[str]:
    found = []
    for split in SPLITS:
        have = {label for label, place in zip(labels, splits, strict=True) if place == split}
        lacks = [grade for at, grade in enumerate(scheme.grades) if at not in have]
        if lacks:
            found.append(f"{split} has no image of {', '.join(lacks)}.")
    return found


def _check_options(public_set: PublicSet, settings: ImportSettings) -> None:
    options = ("labels", "columns", "patient_pattern", "grades", "ungradable", "unlabelled", "client", "segments")
    for option in (*options, "as_published"):
        given = getattr(settings, option) not in (None, (), {}, "", "skip", "first", False)
        if given and option not in public_set.options:
            users = [other for other, entry in readers().items() if option in entry.options]
            raise SettingsError(
                f"{option} means nothing to the reader {public_set.name}: leave it out; it is for {users}."
            )
    if settings.salt is not None and not (public_set.keyed or settings.hash_patients):
        raise SettingsError(
            f"salt is the key of hashed patients, and the import of {public_set.name} hashes none: set "
            "hash_patients, or leave it out."
        )
    if settings.ungradable is not None and settings.ungradable not in settings.grades:
        raise SettingsError("ungradable must be one of the grades: name them all in grades, in order.")


def _reasons(left_out: Sequence[LeftOut]) -> str:
    return "; ".join(f"{count}: {reason}" for reason, count in Counter(row.reason for row in left_out).most_common())


def without_repeats(photographs: Sequence[Photograph]) -> tuple[list[Photograph], list[LeftOut]]:
    """Keep one row of each file, a labelled one before others; none where its rows have different labels."""
    rows: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        rows.setdefault(photograph.file, []).append(photograph)
    return _resolve(rows.values(), "the list names it twice", "the list names it twice, with different labels")


def without_copies(
    root: Path, photographs: Sequence[Photograph], tell: Callable[[int, int], None] = lambda done, of: None
) -> tuple[list[Photograph], list[LeftOut]]:
    """Keep one of several files of the same bytes; none where their labels differ.

    Public sets hold the same picture under several names, as several patients; one in train and one in test would
    be training on the test. Only equal bytes are found, not the same picture stored anew. A copy with a label
    stays before one without, then that in an official test part before that in val and train, and the first in the list
    before others. Empty files are left to the image
    cache, which names them.

    Args:
        root: Image root.
        photographs: Each file once.
        tell: Called after each file that had to be read: how many were, and of how many.

    Raises:
        DataError: A file cannot be read.
    """
    copies: dict[str, str] = {}
    alike = [file for files in _same_size(root, photographs) for file in files]
    for done, file in enumerate(alike, start=1):
        copies[file] = _digest(root / file)
        tell(done, len(alike))
    groups: dict[str, list[Photograph]] = {}
    for photograph in photographs:
        groups.setdefault(copies.get(photograph.file, photograph.file), []).append(photograph)
    return _resolve(groups.values(), "a copy of another image", "a copy of another image, with a different label")


def _resolve(groups: Iterable[list[Photograph]], same: str, different: str) -> tuple[list[Photograph], list[LeftOut]]:
    kept, left_out = [], []
    for group in groups:
        if len({photograph.label for photograph in group} - {""}) > 1:
            left_out += [LeftOut(photograph.file, different) for photograph in group]
            continue
        best = max(
            range(len(group)), key=lambda at: (group[at].label != "", SPLITS.index(group[at].part or "train"), -at)
        )
        kept.append(group[best])
        left_out += [LeftOut(photograph.file, same) for at, photograph in enumerate(group) if at != best]
    return kept, left_out


def _same_size(root: Path, photographs: Sequence[Photograph]) -> list[list[str]]:
    sizes: dict[int, list[str]] = {}
    for photograph in photographs:
        try:
            sizes.setdefault((root / photograph.file).stat().st_size, []).append(photograph.file)
        except OSError as error:
            raise DataError(f"{photograph.file} cannot be read ({error.strerror}): copy it again.") from error
    return [files for size, files in sizes.items() if size and len(files) > 1]


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): copy it again.") from error
