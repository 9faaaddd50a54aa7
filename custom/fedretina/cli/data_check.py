"""`fedretina data check`: what is wrong with a site's data before it joins, and what the site looks like."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedretina.cli.shared import MODALITY, SCHEME, SITE, fail, names_by_comma, progress, say
from fedretina.errors import DataError, FedretinaError

if TYPE_CHECKING:
    from fedretina.data.check.report import CheckReport
    from fedretina.data.check.rows import CheckSource

_FEW = 3


_WIDTH = 100


@click.command()
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.option("--scheme", type=SCHEME,
              help="Grading scheme of a manifest or a folder; a site file brings its own.")  # fmt: skip
@click.option("--grades", callback=names_by_comma,
              help="Instead of --scheme: names of the grades by comma, the healthy one first.")  # fmt: skip
@click.option("--ungradable", help="The one of --grades that stands for images that nobody can grade.")
@click.option("--images", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Image folder.  [default: the site file's, else the manifest's folder]")  # fmt: skip
@click.option("--site", type=SITE, help="Name of the site.  [default: from the path]")
@click.option("--patient-pattern",
              help="Folder per class: regular expression with (?P<patient>...), matched in the path.")  # fmt: skip
@click.option("--modality", type=MODALITY,
              help="What the files are.  [default: what the grading scheme is made for, else fundus]")  # fmt: skip
@click.option("--image-size", type=click.IntRange(32, 1024), default=256, show_default=True,
              help="Side of the images that the run will use, pixels.")  # fmt: skip
@click.option("--crop/--no-crop", default=True, show_default=True,
              help="Whether the run will crop photographs to the field of view, for the pictures.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path),
              help="Folder for check.json, check.html and contact_sheet.png; made when missing.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print check.json instead of the text.")
@click.option("--quick", is_flag=True, help="Look at rows and names of files only; open no image.")
@click.option(
    "--workers", type=click.IntRange(0), default=0, help="Images decoded side by side.  [default: a core each]"
)
def check(data: Path, images: Path | None, site: str | None, out: Path | None, **options: Any) -> None:
    """Check a site's DATA: all faults at once, how to mend each, and what the site looks like.

    \b
    DATA is one of
      a site file          site.yaml, as training will read it
      a manifest           manifest.csv with the columns file, label, patient, split
      a folder per class   GRADE/*.jpg, or train/GRADE/*.jpg, val/..., test/...;
                           one called unlabelled holds images without a label
    and a folder that holds site.yaml or manifest.csv stands for that file.

    \b
    Ends with code
      0  nothing, or notes: it is as well to know
      1  warnings: somebody should look, then the site can join
      2  errors: training would refuse the data or be wrong; or DATA could not be read at all

    Nothing of the data is changed. What is printed and written names files and patients, and shows images: it stays at
    the site.
    """  # noqa: D301
    from fedretina.data.check.rows import open_source
    from fedretina.data.readers.survey import ImportSettings

    names = ("scheme", "grades", "ungradable", "patient_pattern")
    try:
        settings = ImportSettings.of(**{name: options[name] for name in names})
        source = open_source(data, settings, images, site, out, options["modality"] or "fundus")
        how = {name: options[name] for name in ("image_size", "quick", "workers", "modality")}
        report = _checked(source, how)
        if out is not None:
            _write(out, report, source, options["crop"])
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps(report.record(), indent=1, sort_keys=True) if options["as_json"] else _text(report))
    if out is not None:
        say(f"Written to {out}: it stays at the site.", {"written": str(out)})
    sys.exit(report.exit_code)


def _checked(source: CheckSource, how: dict[str, Any]) -> CheckReport:
    from fedretina.data.check.report import check_site

    done = itertools.count(1)
    with progress("images") as tell:
        return check_site(source, **how, done=lambda: tell(next(done), len(source.rows)))


def _write(out: Path, report: CheckReport, source: CheckSource, crop: bool) -> None:
    from fedretina.data.check.contact_sheet import choose_images, contact_sheet
    from fedretina.data.check.report import SHEET
    from fedretina.report.data_check_page import data_check_page
    from fedretina.settings.images import image_settings
    from fedretina.storage import write_json, write_output

    try:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}): choose another folder.") from error
    chosen: Sequence[Any] = []
    if not report.quick:
        transforms = image_settings(report.modality, report.image_size)
        if "crop" in type(transforms).model_fields:
            transforms = transforms.model_copy(update={"crop": crop})
        chosen = choose_images(report.images, report.scheme, source.images, transforms)
        sheet = contact_sheet(report.site, chosen, report.rows, report.counts, report.image_size, report.synthetic)
        write_output(out / SHEET, sheet)
    write_output(out / "check.html", data_check_page(report, chosen, source.images))
    write_json(out / "check.json", report.record())


def _text(report: CheckReport) -> str:
    from fedretina.report.data_check_page import count_rows, summary

    lines = [f"{report.site}: {summary(report)}"]
    if report.synthetic:
        lines.append("The images are synthetic: drawn by a program, no patient is shown.")
    table = [["", *report.counts, "all"], *count_rows(report)]
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    lines += ["", *("  ".join([row[0].ljust(widths[0]), *_right(row[1:], widths[1:])]) for row in table), ""]
    for finding in report.findings:
        count = f" ({finding.count} cases)" if finding.count > 1 else ""
        lines.append(f"{finding.severity.upper()} {finding.code}{count}")
        lines.append(_wrapped(finding.meaning))
        lines += [f"    {place}" for place in finding.where[:_FEW]]
        if finding.count > _FEW:
            lines.append(f"    and {finding.count - _FEW} more")
        lines += [_wrapped(f"To mend it: {finding.mend}"), ""]
    return "\n".join([*lines, report.verdict])


def _right(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
