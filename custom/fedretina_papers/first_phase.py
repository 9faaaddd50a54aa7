"""Pre-training without labels, some minutes more with each call: the encoders that blocks stand heads on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.data.clients import ClientSkew, divide
from fedretina.data.manifest import PRETRAIN, SPLITS
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.errors import SettingsError
from fedretina.locks import folder_lock
from fedretina.seeds import derive_seed
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings, read_data_settings
from fedretina.storage import read_json, write_json
from fedretina.version import versions
from fedretina_papers.draws import rows_of
from fedretina_papers.engine.page import write_page
from fedretina_papers.first_phase_plan import EncoderChoice, FirstPhasePlan
from fedretina_papers.one_run import machine
from fedretina_papers.pretraining import pretrained
from fedretina_papers.runner import FIXED, Told, settings_alike

STUDY = "study.json"
_BEGUN = "begun.json"
_MAY_GROW = {"encoders", "minutes", "sites"}


def run_first_phase(
    plan: FirstPhasePlan,
    out: Path,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Pre-train every encoder a while longer.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the study.
        tell: Called after each round.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Nothing is ever missing: what fails ends the call, and the next one goes on there.

    Raises:
        SettingsError: The folder belongs to another plan.
        StateError: The folder is in use, or cannot be written.
        DataError: A site's data cannot be used.
        TrainingError: A pre-training cannot go on.
    """
    with folder_lock(out, 0):
        fixed = plan.model_dump(mode="json", exclude=_MAY_GROW) | {"sites": sorted(plan.sites)}
        fixed = settings_alike(fixed, out)
        write_json(out / FIXED, fixed)
        sites: dict[str, SiteData] = {}
        for at, encoder in enumerate(plan.encoders, 1):
            experiment = plan.pretraining(encoder)
            sites = sites or _sites(plan, experiment, out, read)
            _require_as_begun(encoder, out)
            say = partial(_say, tell, at, len(plan.encoders), encoder.name)
            own = as_clients(sites, plan.clients_of(encoder), plan.seed)
            done = pretrained(experiment, own, out / "pretraining" / encoder.name, plan.minutes, say, encoder.enough)
            write_json(out / "encoders" / f"{encoder.name}.json", done._asdict())
        told = plan.model_dump(mode="json", exclude={"sites"})
        facts = {name: {"images": one.counts["pretrain"], "synthetic": one.synthetic} for name, one in sites.items()}
        write_json(out / STUDY, {**told, "sites": facts, "versions": versions(), "machine": machine()})
    return {}


def _require_as_begun(encoder: EncoderChoice, out: Path) -> None:
    """Refuse to go on with an encoder by other settings than it was begun with; how long it trains may change."""
    file = out / "pretraining" / encoder.name / _BEGUN
    told = encoder.model_dump(mode="json", exclude={"title", "enough"})
    if not file.exists():
        write_json(file, told)
    elif read_json(file) != told:
        raise SettingsError(
            f"the encoder {encoder.name} in {out.name} was begun with other settings: give this one another name."
        )


def _say(tell: Callable[[Told], None], at: int, of: int, name: str, words: str) -> None:
    tell(Told(at, of, f"{name}: {words}", None))


def _sites(
    plan: FirstPhasePlan, experiment: Experiment, out: Path, read: Callable[[str, int, int], None]
) -> dict[str, SiteData]:
    found = {}
    for site, file in sorted(plan.sites.items()):
        phantom = SiteDataSettings(phantom_images=experiment.phantom_images or 160)
        settings = phantom if file is None else read_data_settings(file, site)
        tell, cache = partial(read, f"images of {site}"), out / "cache" / site
        found[site] = load_site_data(site, settings, experiment.images, plan.seed, cache, tell=tell)
    return found


def as_clients(sites: Mapping[str, SiteData], clients: Mapping[str, int], seed: int) -> dict[str, SiteData]:
    """Sites with the training patients of some dealt to clients of unlike mixes of grades.

    Args:
        sites: Data by site.
        clients: How many clients a site becomes, by the site; the others stay as they are.
        seed: Of the shares.

    Returns:
        By name, "kermany-1" of "kermany". A client that was dealt holds the split "pretrain" and no other.
    """
    found = {}
    for name, data in sites.items():
        if name not in clients:
            found[name] = data
            continue
        train, blind = data.split("train"), data.split(PRETRAIN)
        graded = dict(zip(train.files, train.labels.tolist(), strict=True))
        labels = [graded.get(file, len(data.scheme.grades)) for file in blind.files]  # without one: a grade of its own
        parts = ["train"] * len(labels)
        equal = len(labels) // clients[name]
        skew = ClientSkew(
            minimum=min(ClientSkew().minimum, max(1, equal // 3))
        )  # many clients of a small set: fewer each
        homes = divide(blind.patients, labels, parts, clients[name], skew, derive_seed(seed, name)).homes
        for at in range(clients[name]):
            own = {PRETRAIN: rows_of(blind, np.flatnonzero(homes == at).tolist())}
            counts = dict.fromkeys(SPLITS, 0) | {PRETRAIN: len(own[PRETRAIN].labels)}
            client = f"{name}-{at + 1}"
            found[client] = replace(data, name=client, counts=counts, _read=own.__getitem__)
    return found


def write_first_phase_page(out: Path, page: Path) -> None:
    """Write what is known of the encoders.

    Args:
        out: The study's folder.
        page: Markdown file to write.

    Raises:
        StateError: Nothing has run in the folder, or a record is damaged.
    """
    study = read_json(out / STUDY)
    done: Mapping[str, Any] = {
        one["name"]: read_json(out / "encoders" / f"{one['name']}.json") for one in study["encoders"]
    }
    synthetic = [name for name, one in study["sites"].items() if one["synthetic"]]
    write_page("first_phase.md.j2", page, study=study, done=done, synthetic=synthetic)
