"""What a reader is: the set that it reads, the settings that it gets, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedretina.errors import SettingsError
from fedretina.settings.columns import Column
from fedretina.settings.scheme import GradingScheme, preset

NO_PATIENTS = "none named: each image is its own"
ALL_BY_SEED = "none: all by seed"


class Photograph(NamedTuple):
    """An image of a set.

    Attributes:
        file: Relative to the image root, with '/'.
        label: The raw label as text; "" where it has none.
        patient: The patient; the image itself where the set names none.
        part: The official split, "train", "val" or "test"; None where the set has none.
        beside: What the set says of it in optional columns of a manifest, in their words; "" where it does not know.
    """

    file: str
    label: str
    patient: str
    part: str | None = None
    beside: Mapping[Column, str] = MappingProxyType({})


class LeftOut(NamedTuple):
    """An image that is not imported, and why; a reason names no path and no patient."""

    name: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """What a reader found.

    Attributes:
        photographs: In the order of the set's own lists.
        scheme: A preset's name, or the scheme itself where no preset fits; None where no image has a label.
        left_out: Images that a rule of the reader leaves out.
        warnings: Sentences for the site's staff; they name no path and no patient.
        images: Image root where it is not the set's own folder.
    """

    photographs: tuple[Photograph, ...]
    scheme: GradingScheme | str | None
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    images: Path | None = None

    def grading(self) -> GradingScheme | None:
        """The scheme itself."""
        return preset(self.scheme) if isinstance(self.scheme, str) else self.scheme


class ImportSettings(BaseModel):
    """How a set is imported.

    Attributes:
        seed: Of the split by patient.
        fractions: Shares of train, val and test. Where the official test part is kept, only the ratio of val to train
            counts; where the official val part is kept as well, none does.
        official: Whether official parts are kept; else all images are pooled and split by patient. None leaves it to
            the set: they are kept unless they share patients.
        bad_files: Whether a labelled image that is not there, or a damaged DICOM file, stops the import or is left out.
        copies: Whether images that are byte for byte the same are left out but for one, or kept as published.
        hash_patients: Whether patients stand in the manifest under a keyed hash. Those of DICOM photographs and
            OCT volumes always do.
        salt: The key of that hash, a file; by default `patient_salt` beside the manifest, made when missing.
        scheme: A preset instead of the reader's own choice.
        unlabelled: Whether images without a label are left out, or go to train, where they count for label-free
            pre-training alone; for `class_folders`, `own_table`, `dicom` and `oct_volumes`.
        grades: Names of the grades in order, the healthy one first, for the same.
        ungradable: The one of `grades` that stands for images that nobody can grade.
        labels: Table of the labels, for `own_table`, `dicom` and `oct_volumes`.
        columns: Titles that a table has for file, label, patient, split or an optional column of a manifest, for
            `own_table`.
        patient_pattern: Regular expression with a group named `patient`, searched in the path of a file
            relative to the set's folder, for `class_folders` and `own_table`.
        client: Which of a set's natural clients is imported: a centre, "0" to "5", of `isic2019`; a database, "a" to
            "f", of `physionet2016`; a subject, "101" to "109", of `pamap2`. None takes all there are.
        segments: Whether the first five seconds of a recording are taken or all whole five seconds of it, which are
            then written into the folder of the import; for `physionet2016`.
        as_published: Whether the public fold stands although lesions are on both of its sides, for comparison with
            published figures; for `isic2019`, with `official`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=1, ge=0)
    fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    official: bool | None = None
    bad_files: Literal["refuse", "skip"] = "refuse"
    copies: Literal["skip", "keep"] = "skip"
    hash_patients: bool = False
    salt: Path | None = None
    scheme: str | None = None
    unlabelled: Literal["skip", "train"] = "skip"
    grades: tuple[str, ...] = ()
    ungradable: str | None = None
    labels: Path | None = None
    columns: dict[str, str] = {}
    patient_pattern: str | None = None
    client: str | None = None
    segments: Literal["first", "all"] = "first"
    as_published: bool = False

    @field_validator("scheme")
    @classmethod
    def _check_scheme(cls, scheme: str | None) -> str | None:
        if scheme is not None:
            preset(scheme)  # refuses what it does not know
        return scheme

    @field_validator("fractions")
    @classmethod
    def _check_fractions(cls, fractions: tuple[float, float, float]) -> tuple[float, float, float]:
        if not min(fractions) > 0 or not abs(sum(fractions) - 1) <= 1e-6:
            raise ValueError(f"fractions are {list(fractions)}: give three shares above 0 that sum to 1.")
        return fractions

    @model_validator(mode="after")
    def _as_published_is_official(self) -> Self:
        if self.as_published and not self.official:
            raise ValueError("as_published keeps the public fold as it is: give --official with it.")
        return self

    @classmethod
    def of(cls, **raw: Any) -> ImportSettings:
        """Check settings.

        Raises:
            SettingsError: A setting is unknown or out of range.
        """
        try:
            return cls(**raw)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            why = first["msg"].removeprefix("Value error, ")
            raise SettingsError(why if why.startswith(name) else f"{name}: {why}") from error  # many name it themselves


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public set and its reader, as a file of this folder ends with.

    Attributes:
        name: What `fedretina data import` calls it.
        survey_of: `survey_of(root, settings, out)` reads the set in the folder `root` and gives what it holds; it looks
            at its own options of the settings only. One that writes files anew, into `out`, may take a fourth argument
            `tell`, to be called with how many files are done and of how many. It raises DataError where the layout is
            another or the set's lists are damaged, SettingsError where an option cannot be used.
        title: The set.
        layout: The files that it expects.
        grades: The scheme that it proposes.
        patients: How it tells patients.
        splits: Which official splits it keeps.
        rules: What it decides where the set leaves it open.
        options: Settings of `ImportSettings` that only some readers know.
        official: Whether official parts are kept where the settings do not say.
        keyed: Whether patients always stand under a keyed hash. The reader names them as its set does, and the import
            makes the hash: two spellings of a patient can be joined only before it.
        modality: What its images are; None where any may lie in such folders.
        published: Whether it is one set that people know by its name, and not a layout that anybody's files may have.
    """

    name: str
    survey_of: Callable[..., Survey]
    title: str
    layout: str
    grades: str
    patients: str
    splits: str
    rules: str
    options: tuple[str, ...] = ()
    official: bool = True
    keyed: bool = False
    modality: str | None = "fundus"
    published: bool = True

    @property
    def converts(self) -> bool:
        """Whether it writes files anew and tells how far it is, which takes its time."""
        return "tell" in signature(self.survey_of).parameters

    def survey(
        self,
        root: Path,
        settings: ImportSettings,
        out: Path,
        tell: Callable[[int, int], None] = lambda done, of: None,
    ) -> Survey:
        """Return what the set holds.

        Args:
            root: The set's folder.
            settings: How it is imported.
            out: Folder of the import, for readers that convert images.
            tell: Called by these after each file: how many are done, and of how many.

        Raises:
            DataError: The layout is another, or its lists are damaged.
            SettingsError: An option cannot be used.
        """
        return self.survey_of(root, settings, out, tell) if self.converts else self.survey_of(root, settings, out)
