"""`fedretina site upgrade`: from one installed version to another, and back."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import fail
from fedretina.errors import FedretinaError


@click.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of wheels, as `fedretina wheelhouse` makes it; no network is used.",
)
@click.option(
    "--to", "version", metavar="X.Y.Z", help="The version that the consortium asks for [the folder's only one]."
)
@click.option("--roll-back", is_flag=True, help="Put the version before in place, and the kit's former files.")
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Interpreter of the new environment [the one of this].",
)
@click.option("--system-site-packages", is_flag=True, help="See the machine's own packages, such as its torch.")
@click.option("--anyway", is_flag=True, help="Go on although a check finds something, or a run did not end.")
@click.option("--offline", is_flag=True, help="The new version's check leaves the server alone.")
@click.option("--phantom", is_flag=True, help="Allow a site without data of its own, for rehearsals.")
@click.option(
    "--experiment",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Experiment file whose network the new version's dry pass uses.",
)
def upgrade(
    folder: Path,
    source: Path | None,
    version: str | None,
    roll_back: bool,
    python: Path | None,
    system_site_packages: bool,
    anyway: bool,
    offline: bool,
    phantom: bool,
    experiment: Path | None,
) -> None:
    """Upgrade the end of a KIT, a site's or the server's, whose service is stopped; or --roll-back.

    It checks; installs the new version beside the one in use; lets the new version check the kit; switches by one
    rename; hardens the kit anew. The old version stays. What fails before the switch has touched nothing in use; what
    fails after it goes back by itself. Killed at any point, the end can be started, and the same command goes on.
    The service is started by whoever stopped it.
    """
    from fedretina.kit.addresses import unit_of
    from fedretina.kit.releases import Releases, Wheels
    from fedretina.kit.startup_kit import open_kit
    from fedretina.kit.upgrade import Upgrade

    if roll_back == (source is not None):
        fail("say --from FOLDER, for an upgrade, or --roll-back.")
    options = [word for word, given in (("--offline", offline), ("--phantom", phantom)) if given]
    options += [] if experiment is None else ["--experiment", str(experiment.resolve())]
    try:
        kit = open_kit(folder)
        way = Upgrade(kit, Releases.of_this_process(), _tell, anyway, options)
        if source is None:
            way.back()
        else:
            way.to(Wheels(source, version), python, system_site_packages)
        unit = unit_of(kit).removesuffix(".service")
    except FedretinaError as error:
        fail(str(error))
    click.echo(
        f"Start it: `systemctl start {unit}`; first compare /etc/systemd/system/{unit}.service with this version's."
    )


def _tell(step: str, words: str) -> None:
    click.echo(f"{step:8} {words}")
