"""The plain loop: the same experiment over sites in one process, without FLARE; for research and as the oracle."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedretina.aggregation.coordinator import Coordinator
from fedretina.data.site_data import SiteData, pools
from fedretina.errors import FedretinaError, RefusedError, StateError
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, HeadCipher, cipher_for
from fedretina.local.site import Site
from fedretina.locks import folder_lock
from fedretina.settings.exchange import Kind
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_json, require_name, require_sites
from fedretina.told import told

_log = logging.getLogger(__name__)


def run_loop(
    experiment: Experiment,
    sites: Mapping[str, SiteData],
    root: Path | str,
    run: str,
    keys: Path | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Run an experiment to its end, or on from where an earlier call of the same name stopped.

    Ends with the same weights and figures, to the last bit, as the FLARE job with the same settings and data. A site
    that cannot take part in a step, or in none because its data do not fit the settings, is refused in the same words.

    Args:
        experiment: The run's settings.
        sites: Data by the site's name; a pooled experiment joins those with the same grades, or all where no
            label is read.
        root: Folder of runs; the server's and the sites' state go below `root / run`.
        run: Name of the run.
        keys: Folder of the keys that `new_keys` made, for a run that encrypts.
        tell: Called before each order to a site: how many of the run's answers are in, those of earlier calls among
            them, and how many there will be where every step asks every site.

    Returns:
        The run's results, as stored in `results.json`.

    Raises:
        RefusedError: The run's name or a site's could leave its folder; nothing is made.
        SettingsError: The run encrypts, and `keys` cannot be used.
        QuorumError: A step had fewer accepted updates than the quorum; it says why each site was refused.
        StateError: State cannot be read or written, or another process runs this run.
    """
    root = Path(root)
    require_name(run, "run")
    require_sites(sorted(sites))
    if experiment.pooled:
        sites = {pool.data.name: pool.data for pool in pools(sites, experiment.supervised)}
    fresh = not (root / run).exists()
    with ExitStack() as held:
        for name in ("server", *sorted(sites)):
            held.enter_context(folder_lock(root / run / name, 0))
        try:
            at_server = cipher_for(
                experiment.exchange, keys and keys / SERVER_FILE, private=False, sums=experiment.sums
            )
            at_sites = cipher_for(experiment.exchange, keys and keys / SITE_FILE, private=True, sums=experiment.sums)
            coordinator = Coordinator(experiment, run, root / run / "server", at_server)
            try:
                _run(coordinator, sites, root / run, at_sites, tell)
            finally:
                coordinator.forget_answers()
        except FedretinaError:
            # A run that failed before its first step was done has nothing to go on with, and would only hold its name
            # against the settings that mend it.
            if fresh and not _anything_done(root / run):
                shutil.rmtree(root / run, ignore_errors=True)
            raise
    return read_json(root / run / "server" / "results.json")


def _anything_done(folder: Path) -> bool:
    record = folder / "server" / "run.json"
    return record.exists() and bool(read_json(record).get("done"))


def _run(
    coordinator: Coordinator,
    sites: Mapping[str, SiteData],
    folder: Path,
    cipher: HeadCipher | None,
    tell: Callable[[int, int], None],
) -> None:
    of = len(coordinator.plan) * len(sites)
    hosts: dict[str, Site] = {}
    while coordinator.done < len(coordinator.plan):
        coordinator.begin(sites)
        for at, name in enumerate(coordinator.asked):
            tell(coordinator.done * len(sites) + at, of)
            order, tensors = coordinator.order(name), coordinator.down(name)
            try:
                if name not in hosts:  # as in FLARE: what a site cannot begin with costs its own answer alone
                    hosts[name] = Site(coordinator.experiment, sites[name], folder / name, cipher)
                answer = hosts[name].handle(order, tensors)
            except StateError:
                raise
            except FedretinaError as error:
                why = told(error, {name, *Kind, *order.stamp.names, *tensors})
                coordinator.refuse(name, why)
                for line in (str(error), *error.notes):
                    if line != why:
                        _log.warning("%s: %s", name, line)
                continue
            with suppress(RefusedError):  # the coordinator has noted and logged it
                coordinator.accept(name, answer)
        coordinator.close()
    tell(of, of)
