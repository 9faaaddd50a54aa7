"""`fedretina data divide`: one site's manifest into clients of skewed classes, for experiments on one machine."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from fedretina.commands.lazy import fail
from fedretina.commands.options import SITE
from fedretina.commands.scheme_names import SCHEMES


def _names(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


@click.command()
@click.argument("manifest", type=click.Path(exists=True, path_type=Path))
@click.option("--scheme", type=click.Choice(SCHEMES),
              help="Grading scheme of the manifest; a site file brings its own.")  # fmt: skip
@click.option("--grades", callback=_names,
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
def divide(manifest: Path, out: Path, clients: int, seed: int, as_json: bool, **words: Any) -> None:
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

    from fedretina.data.check_source import open_source
    from fedretina.data.client_folders import write_clients
    from fedretina.data.clients import ClientSkew
    from fedretina.data.readers.survey import ImportSettings
    from fedretina.errors import FedretinaError
    from fedretina.settings.exchange import Kind
    from fedretina.settings.site import SITE_NAME

    try:
        skew = ClientSkew(**{key: words[key] for key in ("name", "alpha", "minimum")})
        settings = ImportSettings.of(**{key: words[key] for key in ("scheme", "grades", "ungradable")})
        source = open_source(manifest, settings, words["images"], words["site"])
        record = write_clients(source, out, clients, skew, seed)
    except ValidationError as error:
        fail(error.errors()[0]["msg"].removeprefix("Value error, "))
    except FedretinaError as error:
        fail(str(error))
    if as_json:
        click.echo(json.dumps(record, indent=1, sort_keys=True))
        return
    for line in _table(record):
        click.echo(line)
    click.echo(f"Written to {out}, a folder for each of {', '.join(record['clients'])}. It stays at the site.")
    click.echo(f"next: export FEDRETINA_SITE_FILE={quote(str(out.resolve() / SITE_NAME / 'site.yaml'))}")
    # A policy is the site's own word: none is written for it.
    click.echo(
        "The site files set no policy, so heads and exits do not leave. For a job whose head travels add to each: "
        f"policy: {{kinds: [{', '.join(kind.value for kind in Kind)}]}}"
    )


def _table(record: dict[str, Any]) -> list[str]:
    """Images a client, split and grade, with their sum and the patients."""
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
