"""What `fedretina data check` can be pointed to: a site file, a manifest, or a folder with a folder a class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from fedretina.data.import_plan import to_train
from fedretina.data.manifest import COLUMNS, raw_rows
from fedretina.data.readers.survey import ImportSettings
from fedretina.data.scheme_presets import PRESETS, PRESETS_OF, preset, site_modality, site_scheme
from fedretina.data.site_file import read_site_file
from fedretina.data.splits import split_by_patient
from fedretina.errors import DataError
from fedretina.settings.images import Modality
from fedretina.settings.scheme import GradingScheme


class Row(NamedTuple):
    """A row as it was written, blanks stripped; `place` says where it stands."""

    place: str
    file: str
    label: str
    patient: str
    split: str


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
        manifest: The manifest; None for a phantom, and for a folder a class.
        stated: What the site file says that the images are; None where it does not.
    """

    name: str
    scheme: GradingScheme | None
    images: Path
    rows: tuple[Row, ...]
    bad_files: Literal["skip", "refuse"] = "skip"
    limited: bool = False
    phantom: bool = False
    manifest: Path | None = None
    stated: Modality | None = None

    @property
    def modality(self) -> Modality:
        """What the site file says; else that of the preset whose grades these are; else fundus photographs."""
        if self.stated is not None:
            return self.stated
        grades = None if self.scheme is None else self.scheme.grades
        kinds = (kind for kind, names in PRESETS_OF.items() for name in names if preset(name).grades == grades)
        return next(kinds, "fundus")


def open_source(
    path: Path,
    settings: ImportSettings,
    images: Path | None = None,
    site: str | None = None,
    out: Path | None = None,
    modality: Modality = "fundus",
) -> CheckSource:
    """Open what the user pointed to.

    A folder that holds `site.yaml` or `manifest.csv` stands for that file; any other folder is one with a folder a
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
            f"the grading scheme is not set: give --scheme {', '.join(PRESETS)}, or name the grades in order, the "
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
    modality: Modality,
) -> CheckSource:
    settings = read_site_file(path, site)
    chosen = site_scheme(settings) or scheme
    if settings.manifest is None:
        from fedretina.data.phantoms.hospital import phantom_hospital

        drawn = chosen or phantom_hospital(name, modality=modality).scheme
        return CheckSource(name, drawn, path.parent, (), phantom=True)
    rows = _csv_rows(settings.manifest)
    if chosen is None and any(row.label for row in rows):
        raise DataError(f"{path} names no grading scheme: write `scheme: icdr5` below `data:`, or list the grades.")
    root = _root(images or settings.images or settings.manifest.parent)
    limited = settings.limit is not None
    said = site_modality(settings)
    return CheckSource(name, chosen, root, rows, settings.bad_files, limited, manifest=settings.manifest, stated=said)


def _csv_rows(path: Path) -> tuple[Row, ...]:
    rows = tuple(Row(f"row {number}", *(row[column] for column in COLUMNS)) for number, row in raw_rows(path))
    if not rows:
        raise DataError(f"{path} has a header but no rows: list at least one image a split.")
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
