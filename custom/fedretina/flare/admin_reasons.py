"""Why a job was not taken or did not begin, from what FLARE keeps of it, with the way to mend it.

What stands there was written by FLARE's server and by the sites; what we know is said in our words, anything else is
quoted, short and printable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedretina.exchange.stamp import one_line
from fedretina.kit.job_folder import ALLOWED_CLASSES, classes_named

_QUOTED = 300
_NAME = 100
_MANY = 200
_LOG_END = 200_000
_EXPORTED = "submit what `fedretina job export` writes"
_CHANGED = "the job's files were changed after it was signed: submit it again, and ask who runs the server"
_KNOWN = (
    ("BYOC not permitted", f"the job brings code (a `custom` folder), which nobody may do there: {_EXPORTED}"),
    ("does not pass signature verification", _CHANGED),
    ("job signature verification failed", _CHANGED),
    (
        "unsigned job",
        "the job is not signed: submit it with an admin's kit of this consortium, and it is signed on the way",
    ),
    ("privacy scope", "the job's meta.json asks for a privacy scope that is not there: leave `scope` out"),
    ("Missing required config", f"the job lacks a configuration that is read there: {_EXPORTED}"),
    ("not authorized", "whoever submitted the job may not do so there: local/authorization.json says which roles may"),
    ("no reply (deployment timeout)", "it did not answer in time: see whether `fedretina status` lists it"),
)
"""Words of FLARE 2.9, and ours for them."""
_TOO_FEW = re.compile(r"num_ok_sites (\d+) < required_min_sites (\d+)")
_TOO_FEW_CONNECTED = re.compile(r"connected sites \((\d+)\) < min_sites \((\d+)\)")
_MISSING = re.compile(r"missing required site (\S+)")
_NOT_LISTED = re.compile(r"Component '([\w.]{1,200})' at config path '[^']{0,200}' is not in allow_list")


def refusals(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Who did not take a job, and why, a sentence each; empty where everybody took it."""
    by_reason: dict[str, list[str]] = {}
    more = []
    for entry in _texts(meta.get("job_deploy_detail")):
        found = _TOO_FEW.search(entry)
        if found:
            more.append(f"{found[1]} sites took the job, and it needs {found[2]} (`min_clients` in its meta.json).")
            continue
        if entry.startswith("failed to deploy to required client"):
            more.append(f"The job is not begun without {one_line(entry.split()[-1], _NAME)} (`mandatory_clients`).")
            continue
        who, _, said = entry.partition(":")
        if said.strip() == "OK":
            continue
        if who == "invalid_clients":
            more.append(f"Not connected any more: {one_line(said.strip(), _NAME)}.")
            continue
        by_reason.setdefault(_in_words(said), []).append(one_line(who.strip(), _NAME))
    told = [f"{_listed(who)} did not take the job: {why}." for why, who in by_reason.items()]
    return (*told, *more)


def not_scheduled(meta: Mapping[str, Any]) -> str | None:
    """Why FLARE gave up to begin a job, from the last time that it tried; None where it says nothing."""
    tries = [entry for entry in _texts(meta.get("schedule_history")) if "exceeded max schedule count" not in entry]
    if not tries:
        return None
    last = tries[-1]
    few, missing = _TOO_FEW_CONNECTED.search(last), _MISSING.search(last)
    if few:
        why = f"{few[1]} of its sites were connected, and it needs {few[2]}"
    elif missing:
        why = f"it is not begun without {one_line(missing[1], _NAME)}, which was not connected"
    else:
        why = f'FLARE says "{one_line(last, _QUOTED)}"'
    return f"FLARE tried {len(tries)} times to begin the job and gave up: {why}."


def not_listed(downloaded: Path) -> str | None:
    """Which class kept a downloaded job from being built; None where none is known to.

    The server's reason stands in the job's log, which comes with the download. A site's stands in its own log alone, so
    of a job that names a class of which no hardened site knows, that much is said.
    """
    path = downloaded / "workspace" / "error_log.txt"
    if path.is_file():
        found = _NOT_LISTED.search(path.read_bytes()[-_LOG_END:].decode("utf-8", "replace"))
        if found:
            return f"the server's allow-list does not hold {found[1]}, which the job names: {_EXPORTED}, as a new run."
    foreign = foreign_classes(downloaded / "job")
    if foreign and not list((downloaded / "job").glob("*/*/custom")):  # where code may be brought, so may any class
        named = one_line(foreign[0], _NAME)
        return (
            f"the job names {named}, which the allow-list of a hardened site does not hold, so most likely a site did "
            f"not build it; its own log says so. Then {_EXPORTED}, as a new run."
        )
    return None


def foreign_classes(folder: Path) -> list[str]:
    """Classes outside the allow-list of hardened kits that the configurations below a folder name."""
    found = set()
    for path in sorted(folder.rglob("config_fed_*.json")):
        try:
            found |= set(classes_named(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError):
            continue  # a file that is no JSON names nothing; whoever reads it says so
    return sorted(found - set(ALLOWED_CLASSES))


def _in_words(said: str) -> str:
    said = said.strip().removeprefix("NVFLARE_ERROR:").strip()
    for words, ours in _KNOWN:
        if words in said:
            return ours
    return f'"{one_line(said, _QUOTED)}"' if said else "it does not say why"


def _listed(names: Sequence[str]) -> str:
    return ", ".join("the server" if name == "server" else name for name in names)


def _texts(found: object) -> list[str]:
    return [entry for entry in found if isinstance(entry, str)][-_MANY:] if isinstance(found, list) else []
