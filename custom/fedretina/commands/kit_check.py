"""`fedretina kit check`: is a startup kit hardened, and how long do its certificates hold?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from fedretina.commands.lazy import fail


@click.command()
@click.argument("folder", metavar="KIT", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For scripts: a JSON list of findings.")
def check(folder: Path, as_json: bool) -> None:
    """Check a startup KIT without starting it or connecting anywhere.

    Ends with code 1 when something must be mended.
    """
    from fedretina.errors import FedretinaError
    from fedretina.kit.check import check_kit
    from fedretina.kit.findings import all_good, render
    from fedretina.kit.startup_kit import open_kit

    try:
        findings = check_kit(open_kit(folder))
    except FedretinaError as error:
        fail(str(error))
    click.echo(json.dumps([finding._asdict() for finding in findings], indent=1) if as_json else render(findings))
    sys.exit(0 if all_good(findings) else 1)
