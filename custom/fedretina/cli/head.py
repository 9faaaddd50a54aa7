"""`fedretina head`: the federated head for a site that had no part in the run."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import RUN, SITE, fail, progress
from fedretina.errors import FedretinaError

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def head() -> None:
    """Give a site that joins later the head that a run of sums has found."""


@head.command()
@click.argument("run", type=RUN)
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
@click.option("--out", type=_FILE, required=True, help="Where the file goes, such as head.safetensors.")
def write(run: str, root: Path, out: Path) -> None:
    """Write the total of RUN's sums into a file, at the server.

    Every site of the run was sent this total. Give the file to members of the consortium alone; where the run was
    encrypted, only the sites' keys open it.
    """
    from fedretina.local.taken_head import write_head

    try:
        record = write_head(root / run / "server", out)
    except FedretinaError as error:
        fail(str(error))
    closed = " It is encrypted: the site needs the sites' file of keys." if record["encrypted"] else ""
    click.echo(f"wrote {out}: the total of run {record['run']}, {record['total'][:12]}.{closed}")
    click.echo(f"At the site: fedretina head take {out.name} --site NAME --file SITE_FILE --out FOLDER")


@head.command()
@click.argument("total", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--site", type=SITE, required=True, help="Name of the site, for its card and report.")
@click.option("--file", "site_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True,
              help="The site file; it names he_keys where the run was encrypted.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder of the model: FOLDER/final holds what the end of a run would.")  # fmt: skip
def take(total: Path, site: str, site_file: Path, out: Path) -> None:
    """Make this site's model of a TOTAL that `fedretina head write` wrote; nothing leaves the site.

    The site standardises features by its own images, fits its own head beside the federated one, and ends with the one
    that its validation split prefers, or as the run's settings say. Model, card and report are those of a run's end.
    """
    from fedretina.local.taken_head import take_head
    from fedretina.settings.site import read_site_file

    try:
        with progress("images") as tell:
            figures = take_head(total, site, read_site_file(site_file, site), out, tell)
    except FedretinaError as error:
        fail(str(error))
    found = {name: figures["test"].get(name, {}).get("value") for name in ("auc_supported", "auc")}
    supported, every = found["auc_supported"], found["auc"]
    told = f": test AUC {every:.3f}, the mean over all grades" if every is not None else ""
    if supported is not None:
        told = f": test AUC {supported:.3f}, the mean over the grades with enough patients"
    click.echo(f"wrote {out / 'final'}{told}")
