"""Pre-training without labels, some minutes more with each call: the encoders that blocks stand heads on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedretina.data.clients import ClientSkew, divide
from fedretina.data.manifest import PRETRAIN, SPLITS
from fedretina.data.site_data import SiteData, load_site_data
from fedretina.errors import SettingsError, StateError
from fedretina.locks import folder_lock
from fedretina.seeds import derive_seed
from fedretina.settings.site import SiteDataSettings, read_data_settings
from fedretina.storage import read_json, write_json
from fedretina.version import versions
from fedretina_papers.draws import rows_of
from fedretina_papers.engine.page import write_page
from fedretina_papers.first_phase_plan import EncoderChoice, FirstPhasePlan
from fedretina_papers.one_run import machine
from fedretina_papers.pretraining import TOLD, Pretrained, pretrained
from fedretina_papers.processes import pool
from fedretina_papers.runner import FIXED, Told, settings_alike

STUDY = "study.json"
_BEGUN = "begun.json"
_MAY_GROW = {"encoders", "minutes", "sites"}


def run_first_phase(
    plan: FirstPhasePlan,
    out: Path,
    jobs: int,
    tell: Callable[[Told], None],
    read: Callable[[str, int, int], None] = lambda what, done, of: None,
) -> dict[str, str]:
    """Pre-train every encoder a while longer; one that goes on after another waits for that one.

    Args:
        plan: The plan; a folder that holds another plan's results is refused.
        out: Folder of the study.
        jobs: Encoders at a time, each in a process of its own.
        tell: Called after each round, of several at a time after each encoder. What fails there ends the call once
            those that run beside it have come to their end.
        read: Called while the sites' images are read: as `sites_of`.

    Returns:
        Nothing is ever missing: what fails ends the call, and the next one goes on there.

    Raises:
        SettingsError: The folder belongs to another plan.
        StateError: The folder is in use, or cannot be written, or a process of several ended abruptly.
        DataError: A site's data cannot be used.
        TrainingError: A pre-training cannot go on.
    """
    with folder_lock(out, 0):
        fixed = plan.model_dump(mode="json", exclude=_MAY_GROW) | {"sites": sorted(plan.sites)}
        fixed = settings_alike(fixed, out)
        write_json(out / FIXED, fixed)
        for encoder in plan.encoders:
            _require_as_begun(encoder, out)
        # Not before: a plan whose sites cannot be read has left nothing that another plan could spoil.
        sites = _sites(plan, out, read)
        of = len(plan.encoders)
        if jobs == 1:
            for at, encoder in enumerate(plan.encoders, 1):
                _pretrained(plan, encoder, sites, out, partial(_say, tell, at, of, encoder.name))
        else:
            for at, (name, done) in enumerate(_side_by_side(plan, out, jobs), 1):
                _say(tell, at, of, name, f"round {done.rounds} of {done.of}")
        told = plan.model_dump(mode="json", exclude={"sites"})
        facts = {name: {"images": one.counts["pretrain"], "synthetic": one.synthetic} for name, one in sites.items()}
        write_json(out / STUDY, {**told, "sites": facts, "versions": versions(), "machine": machine()})
    return {}


def _side_by_side(plan: FirstPhasePlan, out: Path, jobs: int) -> Iterator[tuple[str, Pretrained]]:
    """Encoders as their time is up or they are done."""
    settings, left, running = plan.model_dump(mode="json"), list(plan.encoders), dict[Future[Pretrained], str]()
    with pool(jobs) as workers:
        while left or running:
            unfinished = {*(one.name for one in left), *running.values()}
            for encoder in [one for one in left if one.after not in unfinished][: jobs - len(running)]:
                running[workers.submit(_in_a_process, settings, encoder.name, out)] = encoder.name
                left.remove(encoder)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _in_a_process(settings: Mapping[str, Any], name: str, out: Path) -> Pretrained:
    plan = FirstPhasePlan.model_validate(settings)
    (encoder,) = (one for one in plan.encoders if one.name == name)
    return _pretrained(plan, encoder, _sites(plan, out, lambda what, done, of: None), out, lambda words: None)


def _pretrained(
    plan: FirstPhasePlan,
    encoder: EncoderChoice,
    sites: Mapping[str, SiteData],
    out: Path,
    say: Callable[[str], None],
) -> Pretrained:
    """Pre-train an encoder a while longer, from where it stands or the one that it goes on after, the further one."""
    folder, own = out / "pretraining" / encoder.name, as_clients(sites, plan.clients_of(encoder), plan.seed)
    write_json(folder / _BEGUN, _as_begun(encoder))
    if encoder.after:
        before = Pretrained(**read_json(out / "encoders" / f"{encoder.after}.json"))
        rounds = read_json(folder / TOLD)["rounds"] if (folder / TOLD).exists() else 0
        if rounds < before.rounds <= plan.rounds_of(encoder):
            _go_on_from(out / "pretraining" / encoder.after, folder)
    done = pretrained(plan.pretraining(encoder), own, folder, plan.minutes, say, encoder.enough)
    write_json(out / "encoders" / f"{encoder.name}.json", done._asdict())
    return done


def _go_on_from(other: Path, folder: Path) -> None:
    """Take what another pre-training has become as one's own; a copy that is cut off is made again."""
    half = folder.with_name(f".{folder.name}")
    shutil.rmtree(half, ignore_errors=True)
    try:
        shutil.copytree(other, half)
        shutil.copy2(folder / _BEGUN, half / _BEGUN)
        shutil.rmtree(folder)
        half.rename(folder)
    except OSError as error:
        raise StateError(f"{folder} cannot be written ({error}): make room, and call again.") from error


def _require_as_begun(encoder: EncoderChoice, out: Path) -> None:
    """Refuse to go on with an encoder by other settings than it was begun with; how long it trains may change."""
    file = out / "pretraining" / encoder.name / _BEGUN
    if file.exists() and read_json(file) != _as_begun(encoder):
        raise SettingsError(
            f"the encoder {encoder.name} in {out.name} was begun with other settings: give this one another name."
        )


def _as_begun(encoder: EncoderChoice) -> dict[str, Any]:
    return encoder.model_dump(mode="json", exclude={"title", "enough", "after"})


def _say(tell: Callable[[Told], None], at: int, of: int, name: str, words: str) -> None:
    tell(Told(at, of, f"{name}: {words}", None))


def _sites(plan: FirstPhasePlan, out: Path, read: Callable[[str, int, int], None]) -> dict[str, SiteData]:
    found, experiment = {}, plan.pretraining(plan.encoders[0])  # all see the same images
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
