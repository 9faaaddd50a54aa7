"""`fedretina kit addresses`: which addresses the service of a kit may speak with."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.commands.lazy import fail


@click.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("given", metavar="[ADDRESS]...", nargs=-1)
@click.option("--unit", help="The systemd unit [the one in provisioning/]; for containers a slice.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go [/etc/systemd/system/UNIT.d].")
@click.option("--dry-run", is_flag=True, help="Show the files, and write nothing.")
def addresses(folder: Path, given: tuple[str, ...], unit: str | None, out: Path | None, dry_run: bool) -> None:
    """Let the service of a KIT speak with some addresses and no others, by a drop-in for its systemd unit.

    A site: those of its server, looked up now and kept in a hosts file of the service's own, so that it needs no DNS;
    or those given. A server: those that hospitals and admins come from, given as addresses or ranges, or `any`. Run it
    as root; `systemctl daemon-reload` and a restart of the service make it hold. Run it again when an address changes.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.addresses import UNIT_FOLDER, UNITS, drop_in, write
    from fedretina.kit.startup_kit import open_kit

    try:
        kit = open_kit(folder)
        unit = unit or UNITS.get(kit.role, "")
        files = drop_in(kit, given, unit, (out or UNIT_FOLDER / f"{unit}.d").absolute())
        if dry_run:
            click.echo("\n".join(f"{path}:\n{text}" for path, text in files.items()), nl=False)
            return
        write(files)
    except FedretinaError as error:
        fail(str(error))
    for path in files:
        click.echo(f"wrote {path}")
    click.echo(f"It holds after `systemctl daemon-reload` and `systemctl restart {unit}`.")
