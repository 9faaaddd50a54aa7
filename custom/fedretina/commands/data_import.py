"""`fedretina data import`: bring a public set, a folder a class, DICOM photographs or OCT volumes to a site."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedretina.commands.lazy import fail
from fedretina.commands.progress import steps
from fedretina.commands.scheme_names import SCHEMES

_SPLITS = ("train", "val", "test")


def _shares(ctx: click.Context, option: click.Parameter, text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no list of numbers: write three shares, such as 0.7,0.15,0.15."
        ) from error
    if len(shares) != len(_SPLITS):
        raise click.BadParameter(f"{text!r} has {len(shares)} shares: write those of train, val and test.")
    return shares


def _names(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _list_sets(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from fedretina.data.readers import readers

    for name, entry in readers().items():
        click.echo(f"{name}: {entry.title}")
        for title in ("layout", "grades", "patients", "splits", "rules"):
            click.echo(f"  {title:<9}{getattr(entry, title).replace('`', '')}")
    ctx.exit()


@click.command(name="import")
@click.argument("name")
@click.argument("root", type=click.Path(path_type=Path))
@click.option(
    "--list",
    "listed",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_sets,
    help="List the sets with the layout that each reader expects, and end.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the import; made when missing.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the split by patient.")
@click.option(
    "--fractions", default="0.7,0.15,0.15", show_default=True, callback=_shares, help="Shares of train, val and test."
)
@click.option(
    "--official/--no-official",
    default=None,
    help="Keep the set's own splits where it has some, or split all images anew.  "
    "[default: keep them, save kermany's and isic2019's, whose parts share patients]",
)
@click.option(
    "--scheme",
    type=click.Choice(SCHEMES),
    help="A grading scheme instead of the reader's own.",
)
@click.option(
    "--grades",
    callback=_names,
    help="Names of the grades by comma, the healthy one first (class_folders, dicom, oct_volumes).",
)
@click.option("--ungradable", help="The one of --grades that stands for images that nobody can grade.")
@click.option(
    "--patient-pattern", help="Regular expression with (?P<patient>...), searched in a file's path (class_folders)."
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    help="CSV with the columns file or sop_instance_uid, and label (dicom); file, label, patient, scan (oct_volumes).",
)
@click.option(
    "--unlabelled",
    type=click.Choice(["skip", "train"]),
    default="skip",
    show_default=True,
    help="Leave out images without a label, or put them into train, where they count for label-free pre-training alone "
    "(class_folders, dicom, oct_volumes).",
)
@click.option(
    "--client",
    help="One of the set's natural clients: centre 0 to 5 (isic2019), database a to f (physionet2016), subject 101 to "
    "109 (pamap2).  [default: all]",
)
@click.option(
    "--segments",
    type=click.Choice(["first", "all"]),
    default="first",
    show_default=True,
    help="The first 5 s of a recording, or all whole 5 s of it, written to OUT/segments (physionet2016).",
)
@click.option(
    "--as-published",
    is_flag=True,
    help="With --official: keep the public fold although lesions are on both of its sides (isic2019).",
)
@click.option(
    "--hash-patients", is_flag=True, help="Write patients under a keyed hash; dicom and oct_volumes always do."
)
@click.option(
    "--salt",
    type=click.Path(path_type=Path),
    help="The secret of that hash, to give a patient the same key in several imports.  "
    "[default: OUT/patient_salt, made when missing]",
)
@click.option(
    "--bad-files",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Stop at labelled images that are missing (dicom, oct_volumes: or damaged), or leave them out.",
)
@click.option(
    "--copies",
    type=click.Choice(["skip", "keep"]),
    default="skip",
    show_default=True,
    help="Leave out all but one of files with the same bytes, or keep them as published.",
)
@click.option("--replace", is_flag=True, help="Write over an import that stands in OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of the table.")
def import_(root: Path, name: str, out: Path, replace: bool, as_json: bool, **words: Any) -> None:
    """Import a set NAME whose files lie in ROOT: write a manifest, a site file and a record to OUT.

    \b
    OUT/manifest.csv  one row an image: file, label, patient, split
    OUT/site.yaml     the site file: manifest, image root, grading scheme
    OUT/import.json   what was done: seed, shares, counts, what was left out and why
    OUT/left_out.csv  each image that was left out

    No split shares a patient with another. Images stay where they are; only DICOM photographs and OCT volumes are
    turned into PNG files, OUT/images, and recordings that are cut into WAV files. All of it stays at the site. The sets
    come from their owners, under their owners' terms.
    """  # noqa: D301
    from fedretina.data.readers.survey import ImportSettings
    from fedretina.data.site_import import LEFT_OUT, import_set
    from fedretina.errors import FedretinaError

    try:
        with steps() as tell:
            record = import_set(name, root, out, ImportSettings.of(**words), replace, tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    click.echo("\n".join(_table(record)))
    total = sum(record["left_out"].values())
    if total:
        click.echo(f"left out {total}, each named in {out / LEFT_OUT}:")
    for reason, count in record["left_out"].items():
        click.echo(f"  {count:>6}  {reason}")
    for sentence in record["warnings"]:
        click.echo(f"warning: {sentence}", err=True)
    click.echo(f"next: fedretina data check {quote(str(out / 'site.yaml'))}")


def _table(record: dict[str, Any]) -> list[str]:
    """Images a grade and split, then images and patients a split."""
    counts = record["images"]
    rows = [[grade, *(counts[split][grade] for split in _SPLITS)] for grade in record["grades"]]
    if record["unlabelled"]:
        rows.append(["no label", *(record["unlabelled"] if split == "train" else 0 for split in _SPLITS)])
    rows.append(["images", *(sum(row[at] for row in rows) for at in range(1, len(_SPLITS) + 1))])
    rows.append(["patients", *(record["patients"][split] for split in _SPLITS)])
    lines = [["", *_SPLITS, "all"], *([str(cell) for cell in [*row, sum(row[1:])]] for row in rows)]
    first, *others = (max(len(line[at]) for line in lines) for at in range(len(lines[0])))
    return [
        line[0].ljust(first) + "".join("  " + cell.rjust(width) for cell, width in zip(line[1:], others, strict=True))
        for line in lines
    ]
