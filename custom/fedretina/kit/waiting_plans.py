"""Plans that wait for a hospital's decision: written by the process of a job, read by whoever decides.

Each is kept as the experiment file that lies at this site, so that what is shown, and what the signature covers, is
worked out from the same text that would run.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedretina.errors import NotFoundError, SettingsError, StateError
from fedretina.kit.approvals import APPROVALS, AskedPlan
from fedretina.kit.startup_kit import Certificate, StartupKit
from fedretina.settings.experiment import Experiment
from fedretina.storage import read_json, write_json
from fedretina.yaml_file import parse_yaml

WAITING = "waiting"
_MOST = 100
_FRESH_S = 30.0
_ASKS_S = 3600.0


class WaitingPlan(NamedTuple):
    """One plan that waits.

    Attributes:
        asked: What is to be approved.
        experiment: Its settings.
        organisation: Of who signed the job; empty where it is not signed.
        role: Theirs in the consortium, such as "lead".
        job: FLARE's id of the job.
        since: When it was asked for first, in seconds since 1970.
        last: When it was asked for last; a job that has ended asks no more.
        path: Its file.
    """

    asked: AskedPlan
    experiment: Experiment
    organisation: str
    role: str
    job: str
    since: float
    last: float
    path: Path

    @property
    def asks(self) -> bool:
        """Whether a job still asks for it; one that runs does so at least twice a minute."""
        return time.time() - self.last < _ASKS_S

    @property
    def words(self) -> str:
        """Which run waits, for whom and since when, in a line."""
        how = "waits" if self.asks else "waited, and no job asks any more"
        since = f"{datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M} UTC"
        return f"{how}: run {self.asked.run}, for {self.asked.submitter or 'a job that nobody signed'}, since {since}"


class WaitingPlans:
    """The folder of plans that wait.

    Args:
        kit: The site's kit.
    """

    def __init__(self, kit: StartupKit) -> None:
        self._folder = kit.folder / APPROVALS / WAITING

    def put(self, asked: AskedPlan, text: str, submitter: Certificate | None, job: str) -> bool:
        """Keep a plan, or note that it was asked for again.

        Args:
            asked: What is to be approved.
            text: The experiment file as it was sent.
            submitter: Who signed the job.
            job: FLARE's id of the job.

        Returns:
            Whether it is new here.

        Raises:
            StateError: It cannot be written.
        """
        path, now = self._folder / f"{asked.number}.json", time.time()
        old = _kept(path)
        if old.get("job") == job and now - float(old.get("last", 0.0)) < _FRESH_S:
            return False
        record = {
            "experiment": text,
            "run": asked.run,
            "submitter": "" if submitter is None else submitter.name,
            "organisation": "" if submitter is None else submitter.organisation,
            "role": "" if submitter is None else submitter.role,
            "job": job,
            "since": old.get("since", now),
            "last": now,
        }
        write_json(path, record)
        for stale in self._paths()[_MOST:]:
            stale.unlink(missing_ok=True)
        return not old

    def drop(self, asked: AskedPlan) -> None:
        """Forget a plan that is decided."""
        with suppress(OSError):
            (self._folder / f"{asked.number}.json").unlink(missing_ok=True)

    def all(self) -> list[WaitingPlan]:
        """The plans that wait, the last asked first; one whose file cannot be used is left out."""
        found = []
        for path in self._paths():
            with suppress(StateError, SettingsError, KeyError, TypeError, ValueError):
                found.append(_read(path))
        return sorted(found, key=lambda plan: plan.last, reverse=True)

    def find(self, name: str | None) -> WaitingPlan:
        """The plan of a number or of a run's name; without a name, the only one.

        Raises:
            NotFoundError: None waits, or not the one that is named, or the name fits several.
        """
        plans = self.all()
        if not plans:
            raise NotFoundError("no plan waits for a decision: a run that needs one asks when it begins.")
        fit = [plan for plan in plans if name is None or plan.asked.number.startswith(name) or plan.asked.run == name]
        if len(fit) == 1:
            return fit[0]
        listed = "; ".join(f"{plan.asked.number} (run {plan.asked.run})" for plan in fit or plans)
        raise NotFoundError(f"{'these wait' if fit else f'{name!r} does not wait, these do'}: {listed}. Name one.")

    def _paths(self) -> list[Path]:
        def age(path: Path) -> float:
            try:
                return path.stat().st_mtime
            except OSError:
                return 0.0

        return sorted(self._folder.glob("*.json"), key=age, reverse=True)


def _read(path: Path) -> WaitingPlan:
    kept = read_json(path)
    experiment = Experiment.resolve(parse_yaml(str(kept["experiment"]), "the experiment"))
    asked = AskedPlan.of(experiment, str(kept["run"]), str(kept["submitter"]))
    return WaitingPlan(
        asked,
        experiment,
        str(kept["organisation"]),
        str(kept["role"]),
        str(kept["job"]),
        float(kept["since"]),
        float(kept["last"]),
        path,
    )


def _kept(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except StateError:
        return {}
