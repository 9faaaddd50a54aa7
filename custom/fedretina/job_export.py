"""The production form of a job, without a `custom` folder and with its sites named; why hardened sites refuse one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedretina.errors import SettingsError
from fedretina.jobs import APP, CALLED, job_record, require_job
from fedretina.kit.job_folder import (
    ALLOWED_CLASSES,
    CONFIGS,
    EXPERIMENT,
    GPU_MEMORY,
    GPUS,
    META,
    classes_named,
    head_of,
    refusal,
)
from fedretina.plurals import counted
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import RUN_KEY
from fedretina.storage import filled_folder, require_name, require_sites, write_text
from fedretina.yaml_file import parse_yaml, read_text

_LARGEST_CARD = 1024


def export_job(
    job: Path,
    out: Path,
    sites: Sequence[str],
    quorum: int | None = None,
    mandatory: Sequence[str] = (),
    phantoms: bool = False,
    run: str | None = None,
    cards: Mapping[str, float] = MappingProxyType({}),
) -> Experiment:
    """Write a job in the form that hardened kits accept.

    Args:
        job: A job folder of this package.
        out: The folder to write; it must not exist.
        sites: Names of the sites that take part.
        quorum: Smallest number of sites that makes a round, and without which the job is not started; by default the
            experiment's.
        mandatory: Sites without which the job is not started.
        phantoms: Whether sites without data may take part as phantom hospitals.
        run: Name of the run, to continue an unfinished one or to give to a new one.
        cards: Sites whose process must have a GPU, and how much of its memory, in GiB; the others get what the
            machine shows. A site whose kit offers no such card takes no part.

    Returns:
        The experiment as it was written.

    Raises:
        SettingsError: The job is none of this package's, or an option cannot be.
        DataError: The folder cannot be written.
        StateError: The disk is full.
    """
    _check(job, out, sites, quorum, mandatory)
    _check_cards(cards, sites)
    source = job / APP / "config" / EXPERIMENT
    text = read_text(source, CALLED)
    parse_yaml(text, CALLED, source)  # a setting that stands twice would be set twice below
    if quorum is not None:
        text = _with(text, "quorum", quorum)
    if not phantoms:
        text = _with(text, "phantom_images", 0)
    if run is not None:
        text = _with(text, "run", json.dumps(require_name(run, "run")))  # 20261122 and on are names too
    experiment = Experiment.resolve(parse_yaml(text, CALLED, source))
    if experiment.quorum > len(sites):
        raise SettingsError(
            f"the quorum is {experiment.quorum}, but only {counted(len(sites), 'site is', 'sites are')} named."
        )
    meta = job_record(job / META)
    meta |= {
        "min_clients": experiment.quorum,
        "mandatory_clients": sorted(mandatory),
        "deploy_map": {APP: ["server", *sorted(sites)]},
    }
    if cards:
        meta["resource_spec"] = {site: {GPUS: 1, GPU_MEMORY: cards[site]} for site in sorted(cards)}
    if experiment.run:
        meta[RUN_KEY] = experiment.run  # the admin's commands find the run, by whatever means the job is submitted
    with filled_folder(out, "the job") as half:
        for name in CONFIGS:
            config = job_record(job / APP / "config" / name)
            write_text(half / APP / "config" / name, json.dumps(config, indent=2) + "\n")
        write_text(half / APP / "config" / EXPERIMENT, text)
        write_text(half / META, json.dumps(meta, indent=2) + "\n")
    return experiment


def why_refused(job: Path) -> str | None:
    """Say why hardened kits would refuse a job folder as it is; None where they would take it.

    Raises:
        SettingsError: The folder's `meta.json` cannot be read.
    """
    apps = sorted(job_record(job / META).get("deploy_map") or {})
    for app in apps:
        found = [path for path in sorted((job / app).rglob("*")) if not path.is_dir()]
        fault = refusal({path.relative_to(job / app).as_posix(): head_of(path) for path in found})
        if fault is None and (job / app / "custom").exists():
            fault = "BYOC not permitted: the job has a `custom` folder, even if there is nothing in it."
        if fault is not None:
            return f"{app}: {fault}"
    foreign = sorted(_classes(job, apps) - set(ALLOWED_CLASSES))
    return f"the job names {foreign[0]}, which is none of the classes of fedretina.kit.job_folder." if foreign else None


def _classes(job: Path, apps: Sequence[str]) -> set[str]:
    files = [job / app / "config" / name for app in apps for name in CONFIGS]
    return {name for path in files for name in classes_named(job_record(path))}


def _check(job: Path, out: Path, sites: Sequence[str], quorum: int | None, mandatory: Sequence[str]) -> None:
    require_job(job)
    if out.exists():
        raise SettingsError(f"{out} exists: name a folder that does not, or remove it.")
    require_sites(sites)
    if quorum is not None and not 1 <= quorum <= len(sites):
        raise SettingsError(f"the quorum must lie between 1 and the number of sites, {len(sites)}, got {quorum}.")
    unknown = sorted(set(mandatory) - set(sites))
    if unknown:
        raise SettingsError(f"{unknown[0]} is mandatory but takes no part: name it among the sites.")
    foreign = sorted(_classes(job, [APP]) - set(ALLOWED_CLASSES))
    if foreign:
        raise SettingsError(
            f"the job names {foreign[0]}, which hardened sites refuse: production jobs name only the classes of "
            "fedretina.kit.job_folder."
        )


def _check_cards(cards: Mapping[str, float], sites: Sequence[str]) -> None:
    unknown = sorted(set(cards) - set(sites))
    if unknown:
        raise SettingsError(f"{unknown[0]} is to give a GPU but takes no part: name it among the sites.")
    if any(not 0 < memory < _LARGEST_CARD for memory in cards.values()):
        raise SettingsError(
            f"the memory of a GPU must lie between 0 and {_LARGEST_CARD} GiB; without it FLARE would give several jobs "
            "the same card."
        )


def _with(text: str, name: str, value: object) -> str:
    """Set a setting at the top of an experiment file, whose comments stay."""
    line = f"{name}: {value}"

    def changed(match: re.Match[str]) -> str:
        return (line.ljust(len(match.group(1))) + (match.group(2) or "")).rstrip()

    replaced, found = re.subn(rf"^({name}:[^#\n]*)(#.*)?$", changed, text, flags=re.MULTILINE)
    return replaced if found else f"{text.rstrip()}\n{line}\n"
