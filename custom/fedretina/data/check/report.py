"""The check of a site's data before it joins: all faults at once, and what the site looks like."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fedretina.data.check.rows import NO_LABEL, CheckSource, Image, check_counts, check_rows
from fedretina.data.check.rules import EXIT_CODES, Finding, Findings, Severity
from fedretina.data.decode import is_phantom
from fedretina.data.manifest import SPLITS
from fedretina.data.readers.image_folder import is_image
from fedretina.errors import DataError, SeveralPagesError
from fedretina.settings.images import modality_settings
from fedretina.settings.scheme import GradingScheme
from fedretina.version import __version__

if TYPE_CHECKING:
    from fedretina.data.check.pixels import PixelFacts

CHECK_FORMAT = 1
SHEET = "contact_sheet.png"  # of an earlier check
MANY_BAD = 0.05  # share of images that cannot be used above which they stop a site that skips them
VERDICTS = {
    "error": "This site cannot join yet: mend the errors and check again.",
    "warning": "This site can join. Look at the warnings first.",
    "note": "This site can join.",
}


@dataclass(frozen=True)
class CheckReport:
    """What the check found.

    Attributes:
        site: Name of the site.
        scheme: Its grades; None where no image has a label.
        synthetic: Whether the images are phantoms.
        quick: Whether the images were not opened.
        image_size: Side of the square that the network takes, pixels.
        listed: Images that the rows name.
        images: Those that can be used, in the order of the rows.
        counts: Images per grade, for each split, among those.
        patients: Patients per split, among those.
        sizes: (width, height) in pixels and how many images have it, the commonest first; empty when quick.
        findings: The grave ones first.
        modality: What the images are.
    """

    site: str
    scheme: GradingScheme | None
    synthetic: bool
    quick: bool
    image_size: int
    listed: int
    images: tuple[Image, ...]
    counts: dict[str, list[int]]
    patients: dict[str, int]
    sizes: tuple[tuple[tuple[int, int], int], ...]
    findings: tuple[Finding, ...]
    modality: str = "fundus"

    @property
    def grades(self) -> tuple[str, ...]:
        """Names of the grades."""
        return () if self.scheme is None else self.scheme.grades

    @property
    def rows(self) -> tuple[str, ...]:
        """What images are sorted by: the grades, and `NO_LABEL` where there are images of train without one."""
        return (*self.grades, NO_LABEL) if self.unlabelled else self.grades

    @property
    def unlabelled(self) -> int:
        """Images of train that can be used and have no label."""
        return sum(image.unlabelled for image in self.images)

    @property
    def severity(self) -> Severity:
        """That of the gravest finding; "note" where there is none."""
        return self.findings[0].severity if self.findings else "note"

    @property
    def exit_code(self) -> int:
        """0 with notes at most, 1 with warnings, 2 with errors."""
        return EXIT_CODES[self.severity]

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        return VERDICTS[self.severity]

    def record(self) -> dict[str, Any]:
        """Plain values for check.json; the same data give the same record."""
        return {
            "format": CHECK_FORMAT,
            "fedretina": __version__,
            "stays": "Names files and patients of the site; it stays there.",
            "site": self.site,
            "synthetic": self.synthetic,
            "quick": self.quick,
            "image_size": self.image_size,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "modality": self.modality,
            "grades": list(self.grades),
            "images": {"listed": self.listed, "usable": len(self.images), "unlabelled": self.unlabelled},
            "counts": {split: dict(zip(self.grades, counts, strict=True)) for split, counts in self.counts.items()},
            "patients": self.patients,
            "sizes": [{"width": size[0], "height": size[1], "images": count} for size, count in self.sizes],
            "findings": [finding.record() for finding in self.findings],
        }


def check_site(
    source: CheckSource,
    image_size: int,
    quick: bool = False,
    workers: int = 0,
    done: Callable[[], None] = lambda: None,
    modality: str | None = None,
) -> CheckReport:
    """Check a site's data; each image is decoded once.

    Args:
        source: The data.
        image_size: Side of the square that the network takes, pixels.
        quick: Look at rows and names of files only.
        workers: Threads that decode; 0 takes one a core, at most 8.
        done: Called after each image that was opened.
        modality: What the images are; by default what the site's grades say.
    """
    modality = modality or source.modality
    findings = Findings()
    if source.phantom:
        findings.add("phantom_site", [source.name])
        counts = {split: [0] * (source.scheme.num_classes if source.scheme else 0) for split in SPLITS}
        patients = dict.fromkeys(SPLITS, 0)
        return CheckReport(
            source.name, source.scheme, True, quick, image_size, 0, (), counts, patients, (), tuple(findings), modality
        )
    listed = check_rows(source.rows, source.scheme, findings)
    present, missing = _present(listed, source.images)
    drawn = [image.file for image in present if is_phantom(source.images / image.file)]
    synthetic = 0 < len(drawn) == len(present)
    findings.add("phantom_among_images", [] if synthetic else drawn, [] if synthetic else [[file] for file in drawn])
    usable = present
    facts: list[PixelFacts] = []
    unreadable: list[str] = []
    several: list[str] = []
    if quick:
        findings.add("pixels_not_checked", [f"{len(present)} images"] if present else [])
    else:
        from fedretina.data.check.pixels import check_duplicates, check_images

        usable, facts, unreadable, several = _read(present, source.images, workers, done, modality)
        check_images(usable, facts, image_size, findings, modality)
        digests, details = [fact.digest for fact in facts], [fact.detail for fact in facts]
        check_duplicates(usable, digests, details, source.scheme, findings, modality)
    many = len(missing) + len(unreadable) + len(several) > MANY_BAD * len(listed)
    grave: Severity = "error" if source.bad_files == "refuse" or many else "warning"
    findings.add("file_missing", missing, severity=grave)
    findings.add("file_unreadable", unreadable, severity=grave)
    findings.add("several_pages", several, severity=grave)
    findings.add("file_not_listed", _unlisted(listed, source.images))
    findings.add("limited", ["`limit` in the site file"] if source.limited else [])
    counts = check_counts(usable, source.scheme, findings, source.promised)
    sizes = Counter((fact.width, fact.height) for fact in facts)
    return CheckReport(
        site=source.name,
        scheme=source.scheme,
        synthetic=synthetic,
        quick=quick,
        image_size=image_size,
        listed=len(listed),
        images=tuple(usable),
        counts=counts,
        patients={split: len({image.patient for image in usable if image.split == split}) for split in SPLITS},
        sizes=tuple(sorted(sizes.items(), key=lambda one: (-one[1], one[0]))),
        findings=tuple(findings),
        modality=modality,
    )


def _present(images: Sequence[Image], root: Path) -> tuple[list[Image], list[str]]:
    """The images whose files are there, and words about the others."""
    present, missing = [], []
    beside: dict[Path, dict[str, str]] = {}
    for image in images:
        path = root / image.file
        if _is_file(path):
            present.append(image)
            continue
        if path.parent not in beside:
            beside[path.parent] = _stems(path.parent)
        close = beside[path.parent].get(path.stem.casefold())
        hint = f", but there is {close!r}" if close else ""
        if "\\" in image.file:
            hint = ": write '/' in place of '\\'"
        missing.append(f"{image.place}: {image.file!r}{hint}" if image.place != image.file else f"{image.file!r}{hint}")
    return present, missing


def _is_file(path: Path) -> bool:
    """Whether a file can be found there; not where a folder may not be entered, or the name is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def _stems(folder: Path) -> dict[str, str]:
    """Names of the images in a folder by stem, so that 'a.JPG' is proposed for a missing 'A.jpg'."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return {}
    return {PurePosixPath(name).stem.casefold(): name for name in names if is_image(name)}


def _read(
    images: Sequence[Image], root: Path, workers: int, done: Callable[[], None], modality: str
) -> tuple[list[Image], list[PixelFacts], list[str], list[str]]:
    """Images that can be read with what they measure, words about the others, and files of several pictures."""
    from fedretina.data.check.pixels import measure_files
    from fedretina.data.decode import read_pixels
    from fedretina.data.modalities import decoder

    usable: list[Image] = []
    facts: list[PixelFacts] = []
    unreadable: list[str] = []
    several: list[str] = []
    decode = decoder(modality) if modality_settings(modality).signal else read_pixels
    measured = measure_files(root, [image.file for image in images], workers, done, decode)
    for image, found in zip(images, measured, strict=True):
        if isinstance(found, SeveralPagesError):
            several.append(image.file)
        elif isinstance(found, DataError):
            words = str(found).replace(f"{root}{os.sep}", "")
            unreadable.append(words.removesuffix(": copy it again from its source."))
        else:
            usable.append(image)
            facts.append(found)
    return usable, facts, unreadable, several


def _unlisted(images: Sequence[Image], root: Path) -> list[str]:
    listed = {image.file for image in images}
    found = []
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        place = Path(folder).relative_to(root)
        found += [(place / name).as_posix() for name in sorted(names) if is_image(name)]
    return [file for file in found if file not in listed and PurePosixPath(file).name != SHEET]
