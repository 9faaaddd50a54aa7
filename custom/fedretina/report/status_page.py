"""The page of a site and that of the server's host: how this end is, for people who have no shell.

One file with everything in it. A copy that nobody writes anew any more must not pass for news: the page says when it
was written, and a few lines of script, the only ones that its own policy lets a browser run, say how long ago that is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedretina.errors import AWAITS
from fedretina.plurals import counted
from fedretina.report.page_templates import TEMPLATES, templates
from fedretina.report.text import by_name, by_site, size

if TYPE_CHECKING:  # the record is made of names and numbers; who draws it needs nothing of a kit
    from fedretina.kit.end_status import EndStatus, Process, RunStatus

_OLD_S = 300


def status_page(status: EndStatus) -> str:
    """Render the page, which loads nothing from anywhere.

    Args:
        status: What it shows. Names in it come from elsewhere and are escaped.

    Returns:
        HTML, complete.
    """
    script = (TEMPLATES / "status.js").read_text(encoding="utf-8")
    connection, well = _connection(status)
    first = status.runs[0] if status.runs else None
    found = templates(size=size, moment=moment, span=span, by_site=by_site)
    template = found.get_template("status.html.j2")
    page: str = template.render(
        status=status,
        server=status.role == "server",
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        old_s=_OLD_S,
        connection=connection,
        well=well,
        running=_running(first) if first is not None and _alive(status.process) else None,
        first=first,
        step=step_words,
        state=_state,
        report=_report(first),
        absent=_absent(status, first),
        patients=_patients(first),
        awaits=AWAITS,
        mending=[finding for finding in status.findings if finding.good is False],
        undated=sum(run.undated for run in status.runs),
    )
    return page + "\n"


def moment(when: float | None) -> str:
    """A time in words, in UTC to the minute; a dash for none."""
    return "–" if not when else datetime.fromtimestamp(float(when), UTC).strftime("%Y-%m-%d %H:%M UTC")


def span(seconds: float | None) -> str:
    """A length of time in words, such as "2 h 05 min"; a dash for none."""
    if seconds is None:
        return "–"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 2880 else counted(minutes // 1440, "day")


def step_words(last: Mapping[str, Any] | None) -> str:
    """Where a run is, such as "train, round 3 of 10"."""
    if not last:
        return "–"
    place = last.get("report") or last
    if not place.get("task"):
        return "all steps are done" if last.get("report") else "–"
    words = str(place["phase"])
    if (place.get("rounds") or 0) > 1 or place["task"] in ("pretrain", "train"):
        words += f", round {place['round']} of {place['rounds']}"
    return words + (f", attempt {place['attempt']}" if (place.get("attempt") or 0) > 1 else "")


def _alive(process: Process | None) -> bool:
    return process is not None and not process.stopped and not process.silent


def _connection(status: EndStatus) -> tuple[str, bool | None]:
    """The one sentence that people come for, and whether it is good news; None where nobody can know."""
    process = status.process
    if process is None:
        return "Not known: no process of this end has said anything yet", None
    if process.stopped:
        return f"Stopped since {moment(process.written)}", False
    if process.silent:
        return f"No word from the service since {moment(process.written)}: it is stopped or stuck", False
    if status.role == "server":
        return f"The server runs since {moment(process.started)}", True
    if process.connected:
        return f"Connected since {moment(process.since)}", True
    return f"Not connected since {moment(process.since)}", False


def _running(run: RunStatus) -> bool:
    return bool(run.last) and (run.last or {}).get("state") in ("working", "running", "answered")


def _state(run: RunStatus, alive: bool) -> str:
    """What became of a run's last step, as far as this end knows."""
    if run.last is None:
        return "run by an older version"
    said = str(run.last.get("state", ""))
    known = {
        "working": "works on it" if alive else "was at work when the service ended",
        "answered": "has answered",
        "failed": "failed: see the last faults",
        "waiting": "waits for the hospital's approval",
        "running": "runs" if alive else "was running when the server ended",
        "completed": "complete",
        "stopped": "stopped: see the last faults",
    }
    return known.get(said, said or "not known")


def _report(run: RunStatus | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = (run.last or {}).get("report") if run is not None else None
    return found


def _absent(status: EndStatus, run: RunStatus | None) -> list[str]:
    """Sites that the running step asks and that are not connected: whom somebody must call."""
    report = _report(run)
    if run is None or report is None or not _alive(status.process) or not _running(run):
        return []
    connected = status.process.sites if status.process else {}
    return by_name({*report["answered"], *report["waiting"], *report["refused"]} - connected.keys())


def _patients(run: RunStatus | None) -> str:
    """How many patients stand behind the newest run; a site that does not say is counted, not guessed."""
    last = (run.last if run is not None else None) or {}
    told, sites = int(last.get("patients_of", 0)), int(last.get("trained", 0))
    if not sites:
        return "known after the first round"
    if not told:
        return f"not told by {counted(sites, 'site')}"
    untold = f", and those of {counted(sites - told, 'site')} that do not say" if sites > told else ""
    return f"{last['patients']} at {counted(told, 'site')}{untold}"
