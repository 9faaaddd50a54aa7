"""`fedretina loop`: an experiment over sites on one machine, without FLARE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedretina.commands.lazy import fail
from fedretina.commands.options import RUN, SITE_FILE, SITES, site_files
from fedretina.commands.progress import progress, steps

if TYPE_CHECKING:
    from fedretina.settings.site import SiteDataSettings

_PHANTOMS = ("site-1", "site-2", "site-3", "site-4", "site-5")


@click.command()
@click.argument("experiment", type=click.Path(exists=True, path_type=Path))
@click.option("--site", "pairs", type=SITE_FILE, multiple=True,
              help="A site and its site file; once a site.")  # fmt: skip
@click.option("--sites", type=SITES,
              help="Names of further sites, by comma: of phantom hospitals, or of the sites that FEDRETINA_SITE_FILE "
              "serves where it is set.  [default: site-1 to site-5, where there is no --site]")  # fmt: skip
@click.option("--root", type=click.Path(path_type=Path), default=Path("fedretina_runs"), help="Folder of runs.")
@click.option("--run", type=RUN, required=True, help="Name of the run; an unfinished one of that name goes on.")
def loop(
    experiment: Path, pairs: tuple[tuple[str, str], ...], sites: tuple[str, ...] | None, root: Path, run: str
) -> None:
    """Run an EXPERIMENT file over sites in the plain loop, without FLARE.

    All sites' images are read by this one process, and no policy of a site holds anything back: it is for research on
    one machine. On a terminal a bar shows how many answers of sites are in.
    """
    from fedretina.errors import FedretinaError
    from fedretina.exchange.stamp import require_sites
    from fedretina.settings.experiment import Experiment

    try:
        files = site_files(pairs)
        names = require_sites([*files, *(sites or (() if files else _PHANTOMS))])
        settings = Experiment.load(experiment)  # before torch is loaded, which takes seconds: a typo is told at once
        from fedretina.aggregation.results_table import results_table
        from fedretina.data.site_loader import load_site_data
        from fedretina.loop import run_loop

        places = _places(names, files, settings.phantom_images)
        with steps() as tell_of:
            data = {
                site: load_site_data(
                    site,
                    places[site],
                    settings.images,
                    settings.seed,
                    root / "cache" / site,
                    settings.supervised,
                    partial(tell_of, f"images of {site}"),
                )
                for site in names
            }
        with progress("answers") as tell:
            click.echo(results_table(run_loop(settings, data, root, run, tell=tell)))
    except FedretinaError as error:
        fail(str(error))


def _places(names: Sequence[str], files: dict[str, str], phantom_images: int) -> dict[str, SiteDataSettings]:
    """Where the data of each site lie: its own file, else that of the environment, else a phantom hospital."""
    from fedretina.data.site_file import read_site_file
    from fedretina.errors import SettingsError
    from fedretina.settings.site import SITE_FILE as VARIABLE
    from fedretina.settings.site import read_site_settings

    found: dict[str, SiteDataSettings] = {}
    for site in names:
        own = files.get(site)
        data = read_site_settings({}, site, Path.cwd()).data if own is None else read_site_file(Path(own), site)
        if data.manifest is None:
            if not phantom_images:
                raise SettingsError(
                    f"{site} has no data, and the experiment takes no phantom hospitals (phantom_images: 0): name its "
                    f"site file (--site {site}=FILE), or set phantom_images to 16 or more."
                )
            data = data.model_copy(update={"phantom_images": phantom_images})
        elif own is None and any(other.manifest == data.manifest for other in found.values()):
            raise SettingsError(
                f"{VARIABLE} gives several sites one manifest: write {{SITE_NAME}} into its path or its data's, name "
                "one site (--sites), or name a file for each (--site NAME=FILE)."
            )
        found[site] = data
    return found
