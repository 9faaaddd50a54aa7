"""`fedretina kit`: harden a startup kit, check it, bound its addresses, renew its certificate; make keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shlex import quote

import click

from fedretina.cli.shared import fail
from fedretina.errors import FedretinaError


@click.group()
def kit() -> None:
    """Harden a startup kit, check it, bound what its service reaches, renew its certificate; make keys."""


@kit.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--bind", type=click.Choice(["loopback", "all"]), help="Server: where it listens; must be said once.")
@click.option("--storage", type=click.Path(path_type=Path), help="Server: folder of jobs and runs [KIT/storage].")
@click.option("--site-file", type=click.Path(path_type=Path), help="Site: its site file [KIT/local/site.yaml].")
@click.option("--require-approval", is_flag=True, help="Site: no run begins without its hospital's approval.")
@click.option("--gpus", type=click.IntRange(0), help="Site: how many GPUs jobs may ask for [what the kit says].")
@click.option("--gpu-memory", type=float, metavar="GIB", help="Site: how much memory of each; with --gpus.")
@click.option("--proxy", metavar="URL", help="Site, admin: go out through it, such as http://proxy.example:3128; none.")
@click.option("--proxy-login", type=click.Path(path_type=Path), help="The file that holds its user:password.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def harden(
    folder: Path,
    bind: str | None,
    storage: Path | None,
    site_file: Path | None,
    require_approval: bool,
    gpus: int | None,
    gpu_memory: float | None,
    proxy: str | None,
    proxy_login: Path | None,
    dry_run: bool,
) -> None:
    """Harden a startup KIT, once or again after an upgrade.

    No code comes with a job and nobody gets a shell; jobs must be signed and may name only the classes of this
    package's jobs; logs are not streamed; a server listens where it is told and keeps its jobs in a lasting folder; at
    a site every scope of privacy.json ends with our filter; files are the owner's alone. What is already so is left.
    A site or an admin that can only go out through a proxy names it once; `--proxy none` takes it back. Run it where
    the kit will live, stopped, and start the service afterwards.
    """
    from fedretina.kit.harden import apply, changes
    from fedretina.kit.startup_kit import open_kit

    try:
        kit = open_kit(folder)
        cards = None if gpus is None else (gpus, gpu_memory or 0.0)
        todo = changes(kit, bind, storage, site_file, require_approval, proxy, proxy_login, cards)
        if dry_run:
            click.echo("".join(change.diff() for change in todo) or "nothing would change.")
            return
        apply(kit, todo)
    except FedretinaError as error:
        fail(str(error))
    for change in todo:
        click.echo(f"wrote {change.path.relative_to(kit.folder)}")
    click.echo(f"{kit.role} {kit.name} is hardened; `fedretina kit check {quote(str(folder))}` looks at it again.")


@kit.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON list of findings.")
def check(folder: Path, as_json: bool) -> None:
    """Check a startup KIT without starting it or connecting anywhere.

    Ends with code 1 when something must be mended.
    """
    from fedretina.kit.check import check_kit
    from fedretina.kit.findings import all_good, render
    from fedretina.kit.startup_kit import open_kit

    try:
        findings = check_kit(open_kit(folder))
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps([finding._asdict() for finding in findings], indent=1) if as_json else render(findings))
    sys.exit(0 if all_good(findings) else 1)


@kit.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("given", metavar="[ADDRESS]...", nargs=-1)
@click.option("--unit", help="The systemd unit [the kit's own, or the one in provisioning/]; for containers a slice.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go [/etc/systemd/system/UNIT.d].")
@click.option("--dry-run", is_flag=True, help="Show the files, and write nothing.")
def addresses(folder: Path, given: tuple[str, ...], unit: str | None, out: Path | None, dry_run: bool) -> None:
    """Let the service of a KIT speak with some addresses and no others, by a drop-in for its systemd unit.

    A site: those of its server, or of its proxy, looked up now and kept in a hosts file of the service's own, so that
    it needs no DNS; or those given. A server: those that hospitals and admins come from, given as addresses or ranges,
    or `any`; and below port 1024 the right to listen there. Run it as root; `systemctl daemon-reload` and a restart of
    the service make it hold. Run it again when an address changes.
    """
    from fedretina.kit.addresses import UNIT_FOLDER, drop_in, unit_of, write
    from fedretina.kit.startup_kit import open_kit

    try:
        kit = open_kit(folder)
        unit = unit or unit_of(kit)
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


@kit.command()
@click.argument("state", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
def renew(state: Path, names: tuple[str, ...]) -> None:
    """List the days left of every certificate in a central provisioning STATE folder; with NAMES, renew theirs.

    Renewing lets FLARE's provisioning forget a participant's certificate and key; its next run writes a kit with new
    ones, under the same authority, and everyone else's stay as they are. With keys made at the hospitals there is no
    such state: there the hospital makes a new request.

    A folder that other users of the machine can read is made its owner's alone first; the command then says so, ends
    with code 1 and renews nothing, since whoever read it can make certificates. Called again, it does what was asked.
    """
    from fedretina.kit.authority import WHOEVER_READ_IT, days_left, forget, make_private, state_finding

    try:
        left = days_left(state)
        rights = state_finding(state)
        make_private(state)
        for name, days in left.items():
            click.echo(f"{days:6.0f} days  {name}")
        if names and rights.good:
            forget(state, list(names))
    except FedretinaError as error:
        fail(str(error))
    if not rights.good:
        mended = "The rights are mended now; nothing was renewed."
        click.echo(f"fedretina: {rights.found}. {mended} {WHOEVER_READ_IT}", err=True)
        sys.exit(1)
    if names:
        click.echo(f"forgotten: {', '.join(names)}. Run `nvflare provision` with the same project file and workspace.")


@kit.command("he-keys")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
def he_keys(out: Path) -> None:
    """Make the keys of a consortium for jobs with `exchange.encrypt: head`, in the folder OUT.

    `he-site.keys` is secret: one hospital makes it and hands it to the other hospitals, never to the server or its
    admin. Each names it as `he_keys` in its site file. `he-server.keys` goes to the server, whose `fedretina_server`
    settings name it as `he_keys`. Keys that are there are not written over.
    """
    from fedretina.exchange.encryption import new_keys

    try:
        for path in new_keys(out):
            click.echo(path)
    except FedretinaError as error:
        fail(str(error))
