"""What `fedretina data check` is pointed to, and all faults of its rows, where `read_manifest` stops at the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import ValidationError

from fedretina.data.check.rules import Findings, Severity
from fedretina.data.import_plan import to_train
from fedretina.data.manifest import SPLITS, cell_value, one_spelling, raw_rows, require_inside
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError
from fedretina.settings.columns import COLUMNS as OPTIONAL
from fedretina.settings.columns import LONGEST, MOST_VALUES, Column
from fedretina.settings.scheme import GradingScheme, preset
from fedretina.settings.scheme_presets import SCHEMES
from fedretina.settings.site import read_data_settings, site_modality, site_scheme


class Row(NamedTuple):
    """A row as it was written, blanks stripped; `place` says where it stands, `beside` holds the optional columns."""

    place: str
    file: str
    label: str
    patient: str
    split: str
    beside: Mapping[Column, str] = MappingProxyType({})


@dataclass(frozen=True)
class CheckSource:
    """A site's data before anything has been checked.

    Attributes:
        name: The site.
        scheme: Its grades; None where no image has a label.
        images: Image root.
        rows: All rows.
        bad_files: What training does about files that it cannot read.
        limited: Whether the site file cuts the splits short.
        phantom: Whether the site file names no manifest.
        manifest: The manifest; None for a phantom, and for a folder per class.
        stated: What the site file says that the images are; None where it does not.
        columns: Optional columns that the site file names.
        promised: Whether the site file asks for a promise (`data.promise`).
    """

    name: str
    scheme: GradingScheme | None
    images: Path
    rows: tuple[Row, ...]
    bad_files: Literal["skip", "refuse"] = "skip"
    limited: bool = False
    phantom: bool = False
    manifest: Path | None = None
    stated: str | None = None
    columns: tuple[Column, ...] = ()
    promised: bool = False

    @property
    def modality(self) -> str:
        """What the site file says; else that of the preset whose grades these are; else fundus photographs."""
        if self.stated is not None:
            return self.stated
        grades = None if self.scheme is None else self.scheme.grades
        kinds = (known.modality for known in SCHEMES.values() if known.grades == grades)
        return next(kinds, "fundus")


def open_source(
    path: Path,
    settings: ImportSettings,
    images: Path | None = None,
    site: str | None = None,
    out: Path | None = None,
    modality: str = "fundus",
) -> CheckSource:
    """Open what the user pointed to.

    A folder that holds `site.yaml` or `manifest.csv` stands for that file; any other folder is one with a folder per
    class, and gets the splits that an import would give it.

    Args:
        path: A site file (.yaml, .yml), a manifest (.csv) or a folder.
        settings: `scheme`, `grades` and `ungradable` count, where the site file does not tell the scheme; for a folder
            also `patient_pattern`, `seed` and `fractions`.
        images: Image root; by default the site file's, else the manifest's folder.
        site: Name of the site; by default taken from the path.
        out: Where the check writes, which is passed over when a folder is read.
        modality: What a site without data or grades of its own draws.

    Raises:
        DataError: The path is missing or cannot be read as what it is, there is no scheme, or the image root is no
            folder.
        SettingsError: A setting cannot be used.
    """
    if path.is_dir():
        found = [path / name for name in ("site.yaml", "manifest.csv") if (path / name).is_file()]
        path = found[0] if found else path
    name = site or (path.parent.resolve().name if path.stem in {"site", "manifest"} else path.resolve().stem)
    scheme = _chosen(settings)
    if path.is_dir():
        return _from_folder(path, name, scheme, settings, out)
    if path.suffix.lower() in {".yaml", ".yml"}:
        return _from_site_file(path, name, scheme, images, site, modality)
    rows = _csv_rows(path)
    if scheme is None and any(row.label for row in rows):
        raise DataError(
            f"the grading scheme is not set: give --scheme {', '.join(SCHEMES)}, or name the grades in order, the "
            "healthy one first (--grades a,b,c)."
        )
    return CheckSource(name, scheme, _root(images or path.parent), rows, manifest=path)


def _chosen(settings: ImportSettings) -> GradingScheme | None:
    if settings.scheme is not None:
        return preset(settings.scheme)
    if not settings.grades:
        return None
    try:
        return GradingScheme(grades=settings.grades, ungradable=settings.ungradable)  # type: ignore[call-arg]
    except ValidationError as error:
        raise DataError(
            f"the grades cannot be used: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
        ) from error


def _from_folder(
    path: Path, name: str, scheme: GradingScheme | None, settings: ImportSettings, out: Path | None
) -> CheckSource:
    from fedretina.data.readers.class_folders import survey

    # With a scheme of the user's own the reader must not stop at a label outside it: that is a finding.
    asked = settings.model_copy(update={"unlabelled": "train"} | ({} if scheme is None else {"scheme": "icdr5"}))
    found = survey(path, asked, out or path / "fedretina_check")
    grades = found.grading() if scheme is None else scheme
    photographs = list(found.photographs)
    splits = [photograph.part or "" for photograph in photographs]
    if not any(splits):
        labelled = [photograph for photograph in photographs if photograph.label]
        classes = [_class(photograph.label, grades) for photograph in labelled]
        patients = [photograph.patient for photograph in labelled]
        splits = split_by_patient(patients, classes, settings.fractions, settings.seed) if labelled else []
        without, _ = to_train([photograph for photograph in photographs if not photograph.label], labelled, splits)
        photographs, splits = labelled + without, splits + ["train"] * len(without)
    rows = (
        Row(photograph.file, photograph.file, photograph.label, photograph.patient, split)
        for photograph, split in zip(photographs, splits, strict=True)
    )
    return CheckSource(name, grades, path, tuple(rows))


def _from_site_file(
    path: Path,
    name: str,
    scheme: GradingScheme | None,
    images: Path | None,
    site: str | None,
    modality: str,
) -> CheckSource:
    settings = read_data_settings(path, site)
    chosen = site_scheme(settings) or scheme
    if settings.manifest is None:
        from fedretina.data.phantoms.hospital import phantom_hospital

        drawn = chosen or phantom_hospital(name, modality=modality).scheme
        return CheckSource(name, drawn, path.parent, (), phantom=True)
    rows = _csv_rows(settings.manifest, settings.columns)
    if chosen is None and any(row.label for row in rows):
        raise DataError(f"{path} names no grading scheme: write `scheme: icdr5` below `data:`, or list the grades.")
    root = _root(images or settings.images or settings.manifest.parent)
    limited = settings.limit is not None
    said = site_modality(settings)
    return CheckSource(
        name,
        chosen,
        root,
        rows,
        settings.bad_files,
        limited,
        manifest=settings.manifest,
        stated=said,
        columns=settings.columns,
        promised=settings.promise is not None,
    )


def _csv_rows(path: Path, columns: Sequence[Column] = ()) -> tuple[Row, ...]:
    rows = tuple(
        Row(
            f"row {number}",
            row["file"],
            row["label"],
            row["patient"],
            row["split"],
            {column: row[column] for column in columns},
        )
        for number, row in raw_rows(path, columns)
    )
    if not rows:
        raise DataError(f"{path} has a header but no rows: list at least one image per split.")
    return rows


def _class(raw: str, scheme: GradingScheme | None) -> int:
    """The class; that after the last for a label outside the scheme, which must stop no split."""
    if scheme is None:
        return 0
    try:
        return scheme.index(raw)
    except DataError:
        return scheme.num_classes


def _root(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"the image root {folder} is no folder: mount it, or mend the path.")
    return folder


NO_LABEL = "no label"  # what images without one are called beside the grades
RARE = 5  # images of a grade in test below which its figures say little


class Image(NamedTuple):
    """A listed image.

    Attributes:
        place: Where its row stands, in words.
        file: Relative to the image root, in plain form.
        label: The class; None where the label is refused or there is none.
        patient: May be empty.
        split: "train", "val" or "test"; None where the split is refused.
        unlabelled: Whether it is of train and has no label, and so counts for pre-training alone.
    """

    place: str
    file: str
    label: int | None
    patient: str
    split: str | None
    unlabelled: bool = False


def check_rows(rows: Sequence[Row], scheme: GradingScheme | None, findings: Findings) -> list[Image]:
    """Check what can be checked without a file, and give each listed image once.

    An image whose label, patient or split is refused is given all the same, so that its file is checked too.
    """
    images: dict[str, Image] = {}
    rows_of: dict[str, list[str]] = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    patients = one_spelling(row.patient for row in rows)
    for row in rows:
        name = f"{row.place}: {row.file!r}" if row.place != row.file else row.file
        label, split = _label(row.label, scheme), row.split if row.split in SPLITS else None
        unlabelled = not row.label and split == "train"
        if unlabelled:
            refused["label_none"].append(name)
        elif label is None:
            refused["label_outside_scheme"].append(f"{name}: label {row.label!r}")
        if split is None:
            refused["split_unknown"].append(f"{name}: split {row.split!r}")
        if not row.patient:
            refused["patient_empty"].append(name)
        try:
            file = require_inside(row.file)
        except DataError:
            refused["file_name_refused"].append(name)
            continue
        rows_of[file].append(row.place)
        images.setdefault(file, Image(row.place, file, label, patients[row.patient], split, unlabelled))
    twice = [f"{file!r}: {', '.join(places)}" for file, places in rows_of.items() if len(places) > 1]
    refused["file_listed_twice"] = twice
    for code, where in refused.items():
        findings.add(code, where)
    listed = list(images.values())
    _check_patients(rows, listed, patients, findings)
    _check_columns(rows, patients, findings)
    return listed


def _check_columns(rows: Sequence[Row], patients: Mapping[str, str], findings: Findings) -> None:
    """Note cells of the optional columns that training would refuse."""
    odd: list[str] = []
    told: dict[tuple[Column, str], tuple[str, str]] = {}
    for row in rows:
        for column, cell in row.beside.items():
            try:
                value = cell_value(column, cell)
            except DataError:
                odd.append(f"{row.place}: {column} {cell[:LONGEST]!r}")
                continue
            before, place = told.setdefault((column, patients[row.patient]), (value, row.place)) if value else ("", "")
            if OPTIONAL[column].of_patient and before != value:
                odd.append(f"{row.place}: {column} {cell!r}, of the same patient another one in {place}")
    for column in rows[0].beside if rows else ():
        many = len({row.beside[column] for row in rows} - {""})
        if not OPTIONAL[column].words and many > MOST_VALUES:
            odd.append(f"{column}: {many} different words, at most {MOST_VALUES} make subgroups")
    findings.add("column_odd", odd)


def check_counts(
    images: Sequence[Image], scheme: GradingScheme | None, findings: Findings, promised: bool = False
) -> dict[str, list[int]]:
    """Check that each split and grade has images among those that can be used; returns images per grade and split.

    A site without a scheme only pre-trains: it needs an image in train and nothing more. One that asks for a promise
    needs referable grades, or nobody is promised anything.
    """
    if scheme is None:
        findings.add("split_empty", [] if any(image.unlabelled for image in images) else ["train"])
        return {split: [] for split in SPLITS}
    counts = {split: [0] * scheme.num_classes for split in SPLITS}
    for image in images:
        if image.split is not None and image.label is not None:
            counts[image.split][image.label] += 1
    filled = [split for split in SPLITS if any(counts[split])]
    findings.add("split_empty", [split for split in SPLITS if split not in filled])
    present = [grade for grade, count in zip(scheme.grades, counts["train"], strict=True) if count]
    findings.add("one_grade_in_train", present if len(present) == 1 else [])
    missing = [
        f"no {grade!r} in {split}"
        for split in filled
        for grade, count in zip(scheme.grades, counts[split], strict=True)
        if not count
    ]
    findings.add("grade_missing", missing)
    rare = [
        f"{count} {grade!r} in test"
        for grade, count in zip(scheme.grades, counts["test"], strict=True)
        if 0 < count < RARE
    ]
    findings.add("grade_rare_in_test", rare)
    grave: Severity = "error" if promised else "note"
    findings.add("referable_not_set", [] if scheme.referable else ["the grading scheme"], severity=grave)
    return counts


def _label(raw: str, scheme: GradingScheme | None) -> int | None:
    try:
        return None if scheme is None else scheme.index(raw)
    except DataError:
        return None


def _check_patients(
    rows: Sequence[Row], images: Sequence[Image], patients: Mapping[str, str], findings: Findings
) -> None:
    """Note patients in several splits, and those who are spelled in several ways and count as one."""
    homes: dict[str, dict[str, str]] = defaultdict(dict)  # of a patient, by split, the place of the first row
    spelled: dict[str, dict[str, str]] = defaultdict(dict)  # of a patient, by spelling, its splits
    for row in rows:
        if row.patient and row.split in SPLITS:
            homes[patients[row.patient]].setdefault(row.split, row.place)
            splits = spelled[patients[row.patient]].setdefault(row.patient, row.split).split("/")
            spelled[patients[row.patient]][row.patient] = "/".join(dict.fromkeys([*splits, row.split]))
    torn = [
        f"{patient!r}: {', '.join(f'{split} ({place})' for split, place in home.items())}"
        for patient, home in homes.items()
        if len(home) > 1
    ]
    findings.add("patient_in_two_splits", torn)
    twice = [
        ", ".join(f"{name!r} in {splits}" for name, splits in names.items())
        for names in spelled.values()
        if len(names) > 1
    ]
    findings.add("patient_spelled_twice", twice)
    alone = len(homes) == len(images) > 1
    findings.add("patients_unknown", [f"{len(images)} images, {len(homes)} patients"] if alone else [])
