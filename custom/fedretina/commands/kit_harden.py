"""`fedretina kit harden`: the reviewed changes that make a startup kit fit for hospitals."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from fedretina.commands.lazy import fail


@click.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--bind", type=click.Choice(["loopback", "all"]), help="Server: where it listens; must be said once.")
@click.option("--storage", type=click.Path(path_type=Path), help="Server: folder of jobs and runs [KIT/storage].")
@click.option("--site-file", type=click.Path(path_type=Path), help="Site: its site file [KIT/local/site.yaml].")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def harden(folder: Path, bind: str | None, storage: Path | None, site_file: Path | None, dry_run: bool) -> None:
    """Harden a startup KIT, once or again after an upgrade.

    No code comes with a job and nobody gets a shell; jobs must be signed and may name only the classes of this
    package's jobs; logs are not streamed; a server listens where it is told and keeps its jobs in a lasting folder; at
    a site every scope of privacy.json ends with our filter; files are the owner's alone. What is already so is left.
    Run it where the kit will live, stopped, and start the service afterwards.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.harden import apply, changes
    from fedretina.kit.startup_kit import open_kit

    try:
        kit = open_kit(folder)
        todo = changes(kit, bind, storage, site_file)
        if dry_run:
            click.echo("".join(change.diff() for change in todo) or "nothing would change.")
            return
        apply(kit, todo)
    except FedretinaError as error:
        fail(str(error))
    for change in todo:
        click.echo(f"wrote {change.path.relative_to(kit.folder)}")
    click.echo(f"{kit.role} {kit.name} is hardened; `fedretina kit check {quote(str(folder))}` looks at it again.")
