"""`fedretina simulate`: a trial run on this machine through FLARE, over one's own sites."""

from __future__ import annotations

from pathlib import Path

import click

from fedretina.cli.shared import PHANTOMS, fail, say, site_files
from fedretina.cli.trial import chosen, run_words, say_end, settings_of_sites, without_keys
from fedretina.errors import FedretinaError, SettingsError


@click.command()
@run_words
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Sites that work at once [all, as far as there are cores]; the figures do not depend on it.",
)
def simulate(
    experiment: str,
    pairs: tuple[tuple[str, str], ...],
    sites: tuple[str, ...] | None,
    rounds: int | None,
    changes: tuple[str, ...],
    root: Path,
    run: str | None,
    threads: int | None,
) -> None:
    """Run a row, or an experiment file, over sites of this machine through FLARE's simulator.

    A ROW (`fedretina methods` lists them) has the settings of the job of its name that `fedretina job write` writes.
    Each site works in a process of its own and under its own policy, as in a federation; its state lies below --root.
    Nothing leaves the machine.

    Each round and each site's answer is told as it comes, on the error stream. The run ends with its table, each site's
    verdict and the paths of its pages; with code 2 if a site has no model in the end. `fedretina loop` takes the same
    words and does without FLARE, with the same bits where no site's policy rounds or adds noise.
    """
    from fedretina.settings.experiment import Experiment
    from fedretina.storage import read_json, require_sites

    try:
        files = site_files(pairs)
        names = require_sites([*files, *(sites or (() if files else PHANTOMS))])
        settings = chosen(experiment, rounds, changes)
        resolved = Experiment.resolve(settings).require_federated()
        run = run or resolved.run or resolved.name
        own = without_keys(resolved, settings_of_sites(names, files, resolved.phantom_images))
        from fedretina.aggregation.results import unfinished
        from fedretina.data.manifest import read_manifest
        from fedretina.data.modalities import require_modality
        from fedretina.flare.simulation import Simulation, default_threads
        from fedretina.settings.site import site_modality, site_scheme

        for site, one in own.items():  # here with all words; what a site says of it in a run names no file
            if one.data.manifest is not None:
                try:
                    require_modality(site_modality(one.data), resolved.images)
                except SettingsError as error:
                    raise SettingsError(f"{site}: {error}") from error
                read_manifest(one.data.manifest, site_scheme(one.data), one.data.columns)
        simulation = Simulation(settings, run, own, root)
        begun = {"event": "begun", "row": resolved.row, "sites": names, "run": run, "log": str(simulation.log)}
        say(
            f"{resolved.row} over {', '.join(names)}, run {run}\n"
            f"all that FLARE and the sites say, each site's own log among it: {simulation.log}",
            begun,
        )
        simulation.run(threads or default_threads(names), say)
        results = root / run / "server" / "results.json"
        say_end(results)
        record = read_json(results)
        if without := [name for name in names if name not in record["sites"]]:
            # Who trained is asked for what it owes; the run is over for who had no part in its model.
            owed = set(without) <= set(unfinished(record))
            how = "The same command asks for that alone" if owed else "Another --run begins anew"
            fail(f"no model for {', '.join(without)}: {simulation.log} says why. {how}.")
    except KeyboardInterrupt:
        fail(f"stopped. The same command with --run {run} goes on with it.")
    except FedretinaError as error:
        fail(str(error))
