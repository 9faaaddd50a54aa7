"""The production form of a job: no code in it, named sites, a quorum, no phantom hospitals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedretina.errors import SettingsError
from fedretina.exchange.stamp import require_name, require_sites
from fedretina.experiment import Experiment
from fedretina.kit.job_folder import ALLOWED_CLASSES, LARGEST, classes_named, refusal
from fedretina.plurals import counted
from fedretina.run_name import RUN_KEY
from fedretina.storage import filled_folder, write_text
from fedretina.yaml_file import parse_yaml, read_words

_APP = "app"
_EXPERIMENT, _CALLED = "experiment.yaml", "the experiment file"
_FILES = ("config_fed_server.json", "config_fed_client.json", _EXPERIMENT)


def export_job(
    job: Path,
    out: Path,
    sites: Sequence[str],
    quorum: int | None = None,
    mandatory: Sequence[str] = (),
    phantoms: bool = False,
    run: str | None = None,
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

    Returns:
        The experiment as it was written.

    Raises:
        SettingsError: The job is none of this package's, or an option cannot be.
        DataError: The folder cannot be written.
        StateError: The disk is full.
    """
    _check(job, out, sites, quorum, mandatory)
    source = job / _APP / "config" / _EXPERIMENT
    words = read_words(source, _CALLED)
    parse_yaml(words, _CALLED, source)  # a setting that stands twice would be set twice below
    if quorum is not None:
        words = _with(words, "quorum", quorum)
    if not phantoms:
        words = _with(words, "phantom_images", 0)
    if run is not None:
        words = _with(words, "run", json.dumps(require_name(run, "run")))  # 20261122 and on are names too
    experiment = Experiment.resolve(parse_yaml(words, _CALLED, source))
    if experiment.quorum > len(sites):
        raise SettingsError(
            f"the quorum is {experiment.quorum}, but only {counted(len(sites), 'site is', 'sites are')} named."
        )
    meta = _read(job / "meta.json")
    meta |= {
        "min_clients": experiment.quorum,
        "mandatory_clients": sorted(mandatory),
        "deploy_map": {_APP: ["server", *sorted(sites)]},
    }
    if experiment.run:
        meta[RUN_KEY] = experiment.run  # the admin's commands find the run, by whatever means the job is submitted
    with filled_folder(out, "the job") as half:
        for name in _FILES[:2]:
            config = _read(job / _APP / "config" / name)
            write_text(half / _APP / "config" / name, json.dumps(config, indent=2) + "\n")
        write_text(half / _APP / "config" / _EXPERIMENT, words)
        write_text(half / "meta.json", json.dumps(meta, indent=2) + "\n")
    return experiment


def why_refused(job: Path) -> str | None:
    """Say why hardened kits would refuse a job folder as it is; None where they would take it.

    Raises:
        SettingsError: The folder's `meta.json` cannot be read.
    """
    apps = sorted(_read(job / "meta.json").get("deploy_map") or {})
    for app in apps:
        found = [path for path in sorted((job / app).rglob("*")) if not path.is_dir()]
        fault = refusal({path.relative_to(job / app).as_posix(): _head(path) for path in found})
        if fault is None and (job / app / "custom").exists():
            fault = "BYOC not permitted: the job has a `custom` folder, even if there is nothing in it."
        if fault is not None:
            return f"{app}: {fault}"
    foreign = sorted(_classes(job, apps) - set(ALLOWED_CLASSES))
    return f"the job names {foreign[0]}, which is none of the classes of fedretina.kit.job_folder." if foreign else None


def _classes(job: Path, apps: Sequence[str]) -> set[str]:
    files = [job / app / "config" / name for app in apps for name in _FILES[:2]]
    return {name for path in files for name in classes_named(_read(path))}


def _head(path: Path) -> bytes:
    with open(path, "rb") as handle:
        return handle.read(LARGEST + 1)


def _check(job: Path, out: Path, sites: Sequence[str], quorum: int | None, mandatory: Sequence[str]) -> None:
    missing = [name for name in _FILES if not (job / _APP / "config" / name).is_file()]
    if missing or not (job / "meta.json").is_file():
        raise SettingsError(f"{job} is no job of this package: it lacks {(missing or ['meta.json'])[0]}.")
    if out.exists():
        raise SettingsError(f"{out} exists: name a folder that does not, or remove it.")
    require_sites(sites)
    if quorum is not None and not 1 <= quorum <= len(sites):
        raise SettingsError(f"the quorum must lie between 1 and the number of sites, {len(sites)}, got {quorum}.")
    strangers = sorted(set(mandatory) - set(sites))
    if strangers:
        raise SettingsError(f"{strangers[0]} is mandatory but takes no part: name it among the sites.")
    foreign = sorted(_classes(job, [_APP]) - set(ALLOWED_CLASSES))
    if foreign:
        raise SettingsError(
            f"the job names {foreign[0]}, which hardened sites refuse: production jobs name only the classes of "
            "fedretina.kit.job_folder."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): mend the job.") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path} holds no JSON object: mend the job.")
    return found


def _with(words: str, name: str, value: object) -> str:
    """Set a setting at the top of an experiment file, whose comments stay."""
    line = f"{name}: {value}"

    def changed(match: re.Match[str]) -> str:
        return (line.ljust(len(match.group(1))) + (match.group(2) or "")).rstrip()

    text, found = re.subn(rf"^({name}:[^#\n]*)(#.*)?$", changed, words, flags=re.MULTILINE)
    return text if found else f"{words.rstrip()}\n{line}\n"
