"""`fedretina site check`: is this hospital's site ready?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fedretina.commands.lazy import fail


@click.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--experiment",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Experiment file whose network the dry pass uses [FedUAA's defaults, for the site's own kind of images].",
)
@click.option("--offline", is_flag=True, help="Leave the server alone.")
@click.option("--phantom", is_flag=True, help="Allow a site without data of its own, for rehearsals.")
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON list of findings.")
def check(folder: Path, experiment: Path | None, offline: bool, phantom: bool, as_json: bool) -> None:
    """Check a site by its KIT: certificate, hardening, versions, server and clock, disk, data, a dry pass.

    The server is asked one question over mutual TLS; nothing is registered, so a running site is not disturbed (unlike
    FLARE's preflight check, which must never be run on one). Data are read, a few images decoded; nothing is sent. Ends
    with code 1 when something must be mended.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.findings import all_good, render
    from fedretina.kit.site_check import check_site, usual_experiment
    from fedretina.kit.startup_kit import open_kit
    from fedretina.settings.experiment import Experiment

    try:
        kit = open_kit(folder)
        chosen = usual_experiment(kit) if experiment is None else Experiment.load(experiment)
        findings = check_site(kit, chosen, offline, phantom)
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps([finding._asdict() for finding in findings], indent=1) if as_json else render(findings))
    sys.exit(0 if all_good(findings) else 1)
