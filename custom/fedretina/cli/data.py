"""`fedretina data`: bring a site's data in, divide them, or draw a phantom hospital; `check` has a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedretina.cli.shared import MODALITY, SCHEME, SITE, LazyGroup, fail, names_by_comma, progress, say, steps
from fedretina.errors import FedretinaError

_SPLITS = ("train", "val", "test")


@click.group(cls=LazyGroup, lazy={"check": "fedretina.cli.data_check:check"})
def data() -> None:
    """Bring a site's data in, check or divide them, or draw a phantom hospital."""


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


def _titles(ctx: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    titles: dict[str, str] = {}
    for pair in pairs:
        name, sign, title = (word.strip() for word in pair.partition("="))
        if not (sign and name and title):
            raise click.BadParameter(f"{pair!r} is no NAME=TITLE: write it as label=Grade.")
        if titles.setdefault(name, title) != title:
            raise click.BadParameter(f"{name} is given two titles: name the column that holds it.")
    return titles


def _list_sets(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from fedretina.data.readers import readers

    for name, entry in readers().items():
        click.echo(f"{name}: {entry.title}")
        for title in ("layout", "grades", "patients", "splits", "rules"):
            click.echo(f"  {title:<9}{getattr(entry, title).replace('`', '')}")
    ctx.exit()


@data.command(name="import")
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
    type=SCHEME,
    help="A grading scheme instead of the reader's own.",
)
@click.option(
    "--grades",
    callback=names_by_comma,
    help="Names of the grades by comma, the healthy one first (class_folders, own_table, dicom, oct_volumes).",
)
@click.option("--ungradable", help="The one of --grades that stands for images that nobody can grade.")
@click.option(
    "--patient-pattern",
    help="Regular expression with (?P<patient>...), searched in a file's path (class_folders, own_table).",
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    help="CSV with the columns file or sop_instance_uid, and label (dicom); file, label, patient, scan (oct_volumes); "
    "with titles of your own (own_table).",
)
@click.option(
    "--column",
    "columns",
    metavar="NAME=TITLE",
    multiple=True,
    callback=_titles,
    help="The title that the table has for file, label, patient, split, or for an optional column of a manifest, such "
    "as eye; may be repeated (own_table).  [default: the same name]",
)
@click.option(
    "--unlabelled",
    type=click.Choice(["skip", "train"]),
    default="skip",
    show_default=True,
    help="Leave out images without a label, or put them into train, where they count for label-free pre-training alone "
    "(class_folders, own_table, dicom, oct_volumes).",
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
@click.option("--replace", is_flag=True, help="Write over an import that stands in OUT; see below.")
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of the table.")
def import_(root: Path, name: str, out: Path, replace: bool, as_json: bool, **options: Any) -> None:
    """Import a set NAME whose files lie in ROOT: write a manifest, a site file and a record to OUT.

    \b
    OUT/manifest.csv  one row per image: file, label, patient, split
    OUT/site.yaml     the site file: manifest, image root, grading scheme
    OUT/import.json   what was done: seed, shares, counts, what was left out and why
    OUT/left_out.csv  each image that was left out

    No split shares a patient with another. Images stay where they are; only DICOM photographs and OCT volumes are
    turned into PNG files, OUT/images, and recordings that are cut into WAV files. All of it stays at the site. The sets
    come from their owners, under their owners' terms.

    With --replace the patients of the import that stands in OUT keep their splits, unless --seed or --fractions are
    others than its own, and OUT/site.yaml keeps every setting that no import writes, such as policy, and the grading
    scheme, such as which grades are referable; an import with other grades stops.
    """  # noqa: D301
    from fedretina.data.readers.survey import ImportSettings
    from fedretina.data.site_import import LEFT_OUT, import_set

    try:
        with steps() as tell:
            record = import_set(name, root, out, ImportSettings.of(**options), replace, tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    click.echo("\n".join(_import_table(record)))
    total = sum(record["left_out"].values())
    if total:
        click.echo(f"left out {total}, each named in {out / LEFT_OUT}:")
    for reason, count in record["left_out"].items():
        click.echo(f"  {count:>6}  {reason}")
    for line in _kept_lines(record):
        click.echo(line)
    for sentence in record["warnings"]:
        say(f"warning: {sentence}", {"warning": sentence})
    click.echo(f"next: fedretina data check {quote(str(out / 'site.yaml'))}")


def _kept_lines(record: dict[str, Any]) -> list[str]:
    """What stayed of an import that was written over."""
    kept = record.get("kept")
    if kept is None:
        return []
    new = sum(record["patients"].values()) - kept["patients"]
    lines = [f"patients who keep their split: {kept['patients']}; dealt out: {new}"]
    if kept["settings"]:
        lines.append(f"kept in the site file, without comments: {', '.join(kept['settings'])}")
    return lines


def _import_table(record: dict[str, Any]) -> list[str]:
    """Images per grade and split, then images and patients per split."""
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


@data.command()
@click.argument("manifest", type=click.Path(exists=True, path_type=Path))
@click.option("--scheme", type=SCHEME,
              help="Grading scheme of the manifest; a site file brings its own.")  # fmt: skip
@click.option("--grades", callback=names_by_comma,
              help="Instead of --scheme: names of the grades by comma, the healthy one first.")  # fmt: skip
@click.option("--ungradable", help="The one of --grades that stands for images that nobody can grade.")
@click.option("--images", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Image folder.  [default: the site file's, else the manifest's folder]")  # fmt: skip
@click.option("--site", type=SITE, help="What {SITE_NAME} stands for in the site file's paths.")
@click.option("--clients", type=click.IntRange(2, 99), default=3, show_default=True, help="How many clients.")
@click.option("--skew", "name", type=click.Choice(["dirichlet", "even"]), default="dirichlet", show_default=True,
              help="Shares of each class drawn for the clients, or equal ones.")  # fmt: skip
@click.option("--alpha", type=float, default=0.5, show_default=True,
              help="Of the Dirichlet distribution: the smaller, the more a class lies with one client.")  # fmt: skip
@click.option("--minimum", type=int, default=32, show_default=True,
              help="Least training images of a client; of val and test it gets the same proportion.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the shares.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder to write, new or empty.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print division.json instead of the table.")
def divide(manifest: Path, out: Path, clients: int, seed: int, as_json: bool, **options: Any) -> None:
    """Divide the images of a MANIFEST into clients whose classes are skewed.

    MANIFEST is a manifest.csv, a site file, or a folder that holds one of them. For experiments: one public set
    stands for several hospitals that share a camera and differ in their patients.

    \b
    OUT/client-1/manifest.csv  the rows of the first client
    OUT/client-1/site.yaml     its site file; point FEDRETINA_SITE_FILE to it
    OUT/client-2/...
    OUT/division.json          seed, alpha, shares, images and patients of each client

    A patient moves whole, and train, val and test are divided in the same shares, so each client has its own val and
    test. Images are neither moved nor copied. The same manifest and options give the same clients.
    """  # noqa: D301
    from pydantic import ValidationError

    from fedretina.data.check.rows import open_source
    from fedretina.data.clients import ClientSkew, write_clients
    from fedretina.data.readers.survey import ImportSettings
    from fedretina.settings.exchange import Kind
    from fedretina.settings.faults import settings_faults
    from fedretina.settings.site import SITE_NAME

    try:
        skew = ClientSkew(**{key: options[key] for key in ("name", "alpha", "minimum")})
        settings = ImportSettings.of(**{key: options[key] for key in ("scheme", "grades", "ungradable")})
        source = open_source(manifest, settings, options["images"], options["site"])
        record = write_clients(source, out, clients, skew, seed)
    except ValidationError as error:
        fail(f"{settings_faults(error, 'the division', ClientSkew)}.")
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    for line in _division_table(record):
        click.echo(line)
    click.echo(f"Written to {out}, a folder for each of {', '.join(record['clients'])}. It stays at the site.")
    click.echo(f"next: export FEDRETINA_SITE_FILE={quote(str(out.resolve() / SITE_NAME / 'site.yaml'))}")
    # A policy is the site's own word: none is written for it.
    click.echo(
        "The site files set no policy, so heads and exits do not leave. For a job whose head travels add to each: "
        f"policy: {{kinds: [{', '.join(kind.value for kind in Kind)}]}}"
    )


def _division_table(record: dict[str, Any]) -> list[str]:
    """Images per client, split and grade, with their sum and the patients."""
    rows = [["", "", *record["grades"], "images", "patients"]]
    for name, client in record["clients"].items():
        for split, counts in client["images"].items():
            cells = [counts[grade] for grade in record["grades"]]
            title = name if split == "train" else ""
            rows.append([title, split, *map(str, cells), str(sum(cells)), str(client["patients"][split])])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


@data.command()
@click.option("--site", type=SITE, required=True, help="Name of the hospital; see below.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write, new or empty.")
@click.option("--modality", type=MODALITY, default="fundus", show_default=True,
              help="What the hospital takes.")  # fmt: skip
@click.option("--images", type=click.IntRange(16), default=160, show_default=True,
              help="Training images of an average hospital; this one may have more or fewer.")  # fmt: skip
@click.option("--size", type=click.IntRange(32, 1024), default=256, show_default=True,
              help="Side of the square pictures, pixels; signals have none.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of patients and pictures.")
@click.option("--scheme", type=SCHEME,
              help="Grades instead of the hospital's own, of the same modality.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of the table.")
def phantom(site: str, out: Path, modality: str, images: int, size: int, seed: int, scheme: str | None,
            as_json: bool) -> None:  # fmt: skip
    """Draw the phantom hospital of a site to disk: synthetic pictures or signals, manifest and site file.

    \b
    OUT/images/phantom-*.png  the pictures; heart sounds and windows of activity are .wav files
    OUT/manifest.csv          one row per picture: file, label, patient, split
    OUT/site.yaml             the site file; point FEDRETINA_SITE_FILE to it
    OUT/README.txt            says that they are synthetic

    \b
    Fundus: site-1 to site-5 are modelled on APTOS, Messidor, DDR, EyePACS and IDRiD.
    OCT:    site-1 to site-3 share Kermany's scanner with skewed classes, site-4 has another scanner.
    Dermoscopy: site-1 to site-4 are modelled on four centres of Fed-ISIC2019.
    Heart sounds: site-1 to site-6 are modelled on the databases of PhysioNet/CinC 2016.
    Activity: site-1 to site-8 are eight wearers of a sensor, with the activities of PAMAP2.
    Any other name gets one of them by a hash, with a camera, scanner or stethoscope of its own.

    The same options give the same files. Each file is marked as synthetic, pictures from 128 pixels on in a corner too,
    and a site that reads them is reported as synthetic.
    """  # noqa: D301
    from fedretina.data.phantoms.draw import SITE_FILE, write_hospital
    from fedretina.data.phantoms.hospital import phantom_hospital
    from fedretina.settings.images import modality_settings
    from fedretina.settings.scheme import preset
    from fedretina.settings.scheme_presets import presets_of

    try:
        settings = modality_settings(modality)
        kind = "signals" if settings.signal else "pictures"
        if scheme and scheme not in presets_of(modality):
            fail(f"{scheme} grades no {settings.words}: name another scheme.")
        hospital = phantom_hospital(site, images, preset(scheme) if scheme else None, modality)
        with progress(kind) as tell:
            record = write_hospital(site, hospital, out, size, seed, tell)
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    for line in _phantom_table(record):
        click.echo(line)
    sides = "" if settings.signal else f"{size} px, "
    click.echo(f"SYNTHETIC {kind} of a phantom hospital ({modality}, {sides}seed {seed}), written to {out}")
    click.echo(f"next: fedretina data check {quote(str(out / SITE_FILE))}")


def _phantom_table(record: dict[str, Any]) -> list[str]:
    """Images per grade and split, then patients per split."""
    splits = list(record["images"])
    rows = [["", *splits]]
    rows += [[grade, *(str(record["images"][split][grade]) for split in splits)] for grade in record["grades"]]
    rows.append(["images", *(str(sum(record["images"][split].values())) for split in splits)])
    rows.append(["patients", *(str(record["patients"][split]) for split in splits)])
    wide = max(len(row[0]) for row in rows)
    return [row[0].ljust(wide) + "".join(cell.rjust(8) for cell in row[1:]) for row in rows]
