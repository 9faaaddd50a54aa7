"""Bring a public set to a site: a manifest with splits by patient, a site file, and a record of what was done."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from fedretina.data.import_plan import Plan, plan_import
from fedretina.data.manifest import SPLITS, Manifest, read_manifest, write_manifest
from fedretina.data.patient_keys import is_key
from fedretina.data.readers import reader
from fedretina.data.readers.survey import ImportSettings, LeftOut
from fedretina.errors import DataError, SettingsError, StateError
from fedretina.settings.faults import settings_faults
from fedretina.settings.scheme import GradingScheme, preset, whole_label
from fedretina.storage import erase_half_written, read_json, write_json, write_output
from fedretina.version import __version__
from fedretina.yaml_file import YamlFileError, read_yaml

FORMAT = 1
MANIFEST, SITE_FILE, RECORD, LEFT_OUT = "manifest.csv", "site.yaml", "import.json", "left_out.csv"
_OF_THE_SET = frozenset({"columns", "public_set"})
"""What a site file says of the set itself under `data`: of another set it may not stay."""


class _Earlier(NamedTuple):
    """What stays of an import that is written over.

    Attributes:
        homes: The split of each patient of its manifest; none where all are to be dealt out anew.
        settings: The hospital's own settings at the top of its site file.
        data: Those under `data`, where an import writes some itself.
        scheme: The grades under `data`; None where it names none.
    """

    homes: Mapping[str, str]
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    scheme: GradingScheme | None


def import_set(
    name: str,
    root: Path,
    out: Path,
    settings: ImportSettings,
    replace: bool = False,
    tell: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, Any]:
    """Read a set and write `manifest.csv`, `site.yaml`, `left_out.csv` and `import.json` into a folder.

    The same set, settings and salt give the same bytes. The record is written last, so a folder with one is whole.
    All files stay at the site; the record alone names no path, no file and no patient.

    Written over an earlier import with the same seed and shares, every patient of it keeps its split, so that a run
    that goes on is not tested on those whom it has trained on; with others all are dealt out anew. The site file keeps
    every setting that no import writes, such as the hospital's `policy`, and its grading scheme, where the hospital
    says which grades are referable.

    Args:
        name: One of `readers()`.
        root: The set's folder; nothing is written to it.
        out: Made when missing.
        settings: How it is imported.
        replace: Whether an import that stands in `out` may be written over.
        tell: Called as it goes on: what is counted, such as "files compared", how many, and of how many.

    Returns:
        The record: reader, version, scheme, settings, images per split and grade, what was left out and why, warnings,
        and what was kept of an import that it was written over.

    Raises:
        DataError: The set cannot be read as it stands; `out` holds an import already or cannot be written; what that
            import should leave cannot be read; or its site file has other grades.
        SettingsError: There is no such reader, or it does not know a setting.
        StateError: The record cannot be written.
    """
    reader(name)
    if not root.is_dir():
        raise DataError(f"{root} is no folder: unpack the set, and give the path of its folder.")
    if not replace and any((out / file).exists() for file in (MANIFEST, SITE_FILE, RECORD)):
        raise DataError(f"{out} holds an import already: choose another folder, or write over it (--replace).")
    earlier = _earlier(name, out, settings)
    before = [path for path in (out / file for file in (MANIFEST, SITE_FILE, LEFT_OUT)) if path.exists()]
    _make(out)
    erase_half_written(out, MANIFEST)  # it names patients
    if reader(name).converts:
        _forget(out / RECORD)  # the files that it speaks of are about to be written anew
    plan, own_scheme = _keep_scheme(plan_import(name, root, out, settings, tell, earlier.homes), out, earlier)
    try:
        _forget(out / RECORD)
        if plan.survey.images is not None:
            os.sync()  # thousands of images in one go: a power cut must not leave a whole list beside empty ones
        write_manifest(out / MANIFEST, plan.rows, plan.columns)
        manifest = read_manifest(out / MANIFEST, plan.scheme, plan.columns)
        _write_left_out(out / LEFT_OUT, plan.left_out)
        own, kept = _site_file(name, root, plan, earlier)
        write_output(out / SITE_FILE, own)
        if plan.survey.images is not None:
            _sweep(plan.survey.images, {row.file for row in plan.rows})
        record = _record(name, settings, plan, manifest, (out / MANIFEST).read_bytes())
        if before:
            record["kept"] = {"patients": plan.stayed, "settings": [*own_scheme, *kept]}
        write_json(out / RECORD, record)
    except BaseException:  # half an import would stand in the way of the next try
        for path in (out / file for file in (MANIFEST, SITE_FILE, LEFT_OUT)):
            if path not in before:
                path.unlink(missing_ok=True)
        raise
    return record


def _earlier(name: str, out: Path, settings: ImportSettings) -> _Earlier:
    """What stays of an import in `out`; nothing where there is none.

    Raises:
        DataError: Its manifest or its site file cannot be read, so what it says would be lost.
    """
    own: dict[str, Any] = {}
    if (out / SITE_FILE).exists():
        try:
            own = read_yaml(out / SITE_FILE, "the site file")
        except YamlFileError as error:
            raise DataError(
                f"{error} An import writes it anew and keeps the hospital's own settings: mend it, or move it away."
            ) from error
    found = own.pop("data", None)
    data = found if isinstance(found, Mapping) else {}
    scheme = _scheme(out, data.get("scheme"))
    homes: dict[str, str] = {}
    if (out / MANIFEST).exists() and _deals_alike(name, out, settings):
        try:
            homes = {record.patient: record.split for record in read_manifest(out / MANIFEST, None).records}
        except DataError as error:
            raise DataError(
                f"{error} Each patient of it is to keep its split: mend it, or move it away to deal all out anew."
            ) from error
    return _Earlier(homes, own, data, scheme)


def _scheme(out: Path, raw: Any) -> GradingScheme | None:
    try:
        return preset(raw) if isinstance(raw, str) else None if raw is None else GradingScheme.model_validate(raw)
    except (SettingsError, ValidationError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            why = f"{settings_faults(error, 'data.scheme', GradingScheme, 'data.scheme.')}."
        raise DataError(
            f"the grading scheme of {out / SITE_FILE} cannot be used: {why} An import keeps what the hospital says of "
            "its grades: mend it, or take it out."
        ) from error


def _keep_scheme(plan: Plan, out: Path, earlier: _Earlier) -> tuple[Plan, list[str]]:
    """The plan with the site file's own grading scheme, and that setting's name where the import has another.

    Labels that the import meets and the site file does not know are added to it, with the import's meaning.

    Raises:
        DataError: The site file has other grades, or another that nobody can grade, so what else it says of them would
            be lost.
    """
    own, new = earlier.scheme, plan.scheme
    if own is None:
        return plan, []
    cure = (
        "Import with the same grades, or into another folder; where the new grades are meant, take `scheme` out of the "
        "site file, and afterwards write into it again which of them are referable and vision-threatening."
    )
    if new is None or new.grades != own.grades:
        has = "none" if new is None else ", ".join(map(repr, new.grades))
        raise DataError(
            f"{out / SITE_FILE} has the grades {', '.join(map(repr, own.grades))}, and this import has {has}: {cure}"
        )
    if new.ungradable not in (None, own.ungradable):
        raise DataError(
            f"in {out / SITE_FILE} {own.ungradable!r} stands for images that nobody can grade, and this import says "
            f"{new.ungradable!r}: {cure}"
        )
    met = sorted({row.label for row in plan.rows} - {""})
    unknown = [label for label in met if not {label, whole_label(label)} & own.labels.keys()]
    added = {label: new.grades[new.index(label)] for label in unknown}
    scheme = own.model_copy(update={"labels": own.labels | added}) if added else own
    raw = earlier.data["scheme"]
    named = raw if isinstance(raw, str) and not added else scheme
    return plan._replace(scheme=scheme, named=named), ["data.scheme"] if scheme != new else []


def _deals_alike(name: str, out: Path, settings: ImportSettings) -> bool:
    """Whether the splits of the import in `out` are asked for again; so also where its record is not there."""
    try:
        record = read_json(out / RECORD)
    except StateError:
        return True
    official = reader(name).official if settings.official is None else settings.official
    same = record.get("seed") == settings.seed and record.get("fractions") == list(settings.fractions)
    return same and (official or not record.get("official_parts"))


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}): choose another folder.") from error


def _forget(record: Path) -> None:
    try:
        record.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{record} cannot be removed ({error.strerror}): choose another folder.") from error


def _record(name: str, settings: ImportSettings, plan: Plan, manifest: Manifest, written: bytes) -> dict[str, Any]:
    parts = plan.official and all(photograph.part for photograph in plan.survey.photographs)
    grades = () if plan.scheme is None else plan.scheme.grades
    return {
        "format": FORMAT,
        "fedretina": __version__,
        "reader": name,
        "scheme": _named(plan),
        "seed": settings.seed,
        "fractions": list(settings.fractions),
        "official_parts": parts,
        "copies": settings.copies,
        "bad_files": settings.bad_files,
        "patients_hashed": settings.hash_patients or reader(name).keyed,
        "columns": list(plan.columns),
        "grades": list(grades),
        "images": {split: dict(zip(grades, counts, strict=True)) for split, counts in manifest.counts().items()},
        "unlabelled": len(manifest.unlabelled()),
        "patients": {
            split: len({record.patient for record in manifest.records if record.split == split}) for split in SPLITS
        },
        "left_out": dict(sorted(Counter(row.reason for row in plan.left_out).items())),
        "warnings": list(plan.warnings),
        "manifest_sha256": hashlib.sha256(written).hexdigest(),
    }


def _named(plan: Plan) -> str | dict[str, Any] | None:
    return plan.named.model_dump(mode="json") if isinstance(plan.named, GradingScheme) else plan.named


def _site_file(name: str, root: Path, plan: Plan, earlier: _Earlier) -> tuple[str, list[str]]:
    """The site file, and the names of the settings in it that an earlier one held and no import writes."""
    images = plan.survey.images.name if plan.survey.images is not None else str(root.resolve())
    scheme = {} if plan.named is None else {"scheme": _named(plan)}
    said = reader(name).modality
    kind = {} if said is None else {"modality": said}
    known = {"public_set": name} if reader(name).published else {}
    told = {"columns": list(plan.columns)} if plan.columns else {}
    data = {"manifest": MANIFEST, "images": images, **scheme, **kind, **known, **told}
    kept = {word: value for word, value in earlier.data.items() if word not in data.keys() | _OF_THE_SET}
    raw = {"data": {**data, **kept}, **earlier.settings}
    head = f"# Written by `fedretina data import {name}`. It names a folder of this site and stays here.\n"
    text = head + yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    return text, [*(f"data.{word}" for word in kept), *map(str, earlier.settings)]


def _write_left_out(path: Path, rows: Sequence[LeftOut]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LeftOut._fields)
    writer.writerows(rows)
    write_output(path, text.getvalue())


def _sweep(folder: Path, named: set[str]) -> None:
    """Remove images of an earlier import that this one does not name; whatever else lies there is not ours.

    Half of an image that a killed import was writing is a patient's, too.
    """
    erase_half_written(folder, "*")
    for path in folder.glob("*.png"):
        if path.name not in named and is_key(path.stem):
            path.unlink(missing_ok=True)
