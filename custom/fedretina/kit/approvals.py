"""A site's own list of approvals: which plans the hospital has said yes or no to, until when, signed with its key.

The list is a ledger, so nothing in it is changed and what is decided later holds. It is read anew whenever it is asked:
the command that decides and the process of a job meet in this file alone. A line counts only when its signature is
that of a key of this site under the kit's authority; a withdrawal or a refusal counts in any case, since a list that
cannot be trusted must not let more pass.

What is approved is one run of one plan, or, as a standing approval, all plans of one submitter that differ in settings
which are named and cannot change what leaves.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from fedretina.errors import DataError, NotFoundError, SettingsError, StateError
from fedretina.exchange.ledger import Ledger
from fedretina.kit.startup_kit import StartupKit
from fedretina.settings.experiment import Experiment
from fedretina.told import one_line
from fedretina.version import __version__

APPROVALS = "approvals"
"""In a kit's folder: the list, and the plans that wait for a decision."""
LIST = "approvals.jsonl"
MAY_DIFFER = (
    "name",
    "seed",
    "quorum",
    "training",
    "augment",
    "objective",
    "sampling",
    "choice",
    "theta",
    "report",
    "phases.rounds",
    "phases.training",
    "phases.augment",
    "phases.views",
    "phases.weights",
    "phases.label_share",
)
"""Settings that a standing approval may leave open, each with all below it: how and how often is trained. What leaves
by kind is decided by the others."""
_NEEDED = frozenset({"decision", "plan", "run", "restart", "submitter", "until", "by", "reason", "decided", "number"})
_LONGEST = 300
_SHOWN = 12

State = Literal["approved", "waiting", "ended", "refused", "withdrawn"]
"""How a plan stands: `waiting` that nobody has decided, `ended` that the end date of its approval is over."""


class AskedPlan(NamedTuple):
    """What a hospital is asked to approve.

    Attributes:
        plan: `Experiment.settings_digest` of the job that lies at this site.
        run: Name of the run.
        restart: Mark of the run's last going back (`RestartSettings`), since it does steps again; empty where none.
        submitter: Who signed the job, by the certificate; empty where the job is not signed.
        agreed: The plan's settings, all that both ends agree on.
    """

    plan: str
    run: str
    restart: str
    submitter: str
    agreed: Mapping[str, Any]

    @classmethod
    def of(cls, experiment: Experiment, run: str, submitter: str) -> AskedPlan:
        """What a run of an experiment asks for."""
        restart = "" if experiment.restart is None else experiment.restart.mark
        return cls(experiment.settings_digest(), run, restart, submitter, experiment.agreed())

    @property
    def number(self) -> str:
        """Twelve digits by which people name it."""
        return _sha([self.plan, self.run, self.restart])[:_SHOWN]


class Standing(NamedTuple):
    """How a plan stands, and the decision behind it; None where there is none."""

    state: State
    decision: Mapping[str, Any] | None


class Approvals:
    """Reads and extends a site's list.

    Args:
        kit: The site's kit.
    """

    def __init__(self, kit: StartupKit) -> None:
        self._kit = kit
        self._path = kit.folder / APPROVALS / LIST

    @property
    def is_there(self) -> bool:
        """Whether anything was ever decided."""
        return self._path.exists()

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions in the order in which they were made.

        Raises:
            StateError: The list cannot be read; then nothing is approved.
        """
        found: list[dict[str, Any]] = []
        for at, line in enumerate(Ledger(self._path).lines(), start=1):
            made = line.get("approval")
            if not isinstance(made, dict) or not made.keys() >= _NEEDED:
                raise StateError(f"{self._path} holds no decision in line {at}: restore it from a backup.")
            found.append(made)
        return found

    def standing(self) -> list[dict[str, Any]]:
        """The standing approvals that hold today.

        Raises:
            StateError: The list cannot be read.
        """
        decisions, today = self.decisions(), datetime.now(UTC).date()
        return [
            made
            for made in decisions
            if "standing" in made
            and made["number"] not in _withdrawn(decisions)
            and self.is_genuine(made)
            and date.fromisoformat(made["until"]) >= today
        ]

    def lasting(self, run: str) -> list[Mapping[str, Any]]:
        """The approvals that were given to a run itself and hold today, one for each of its plans.

        A run that goes back has another plan from then on. What covers a plan as well, given to another run, is not
        among them: it lets no plan go on whose own approval was withdrawn.

        Raises:
            StateError: The list cannot be read.
        """
        plans = {(made["plan"], made["restart"]) for made in self.decisions() if made["run"] == run and made["plan"]}
        found = [self.state(AskedPlan(plan, run, restart, "", {})) for plan, restart in sorted(plans)]
        return [one.decision for one in found if one.state == "approved" and one.decision is not None]

    def state(self, asked: AskedPlan, today: date | None = None) -> Standing:
        """How a plan stands now.

        Args:
            asked: The plan.
            today: The day (UTC) that end dates are compared with; by default this one.

        Raises:
            StateError: The list cannot be read.
        """
        today = today or datetime.now(UTC).date()
        decisions = self.decisions()
        withdrawn = _withdrawn(decisions)
        own: Standing | None = None
        wide: Standing | None = None
        for made in decisions:
            if made["decision"] == "approved" and not self.is_genuine(made):
                continue
            if _concerns(made, asked):
                state: State = made["decision"]
                if state == "approved":
                    over = date.fromisoformat(made["until"]) < today
                    state = "withdrawn" if made["number"] in withdrawn else "ended" if over else "approved"
                own = Standing(state, made)
            elif _covers(made, asked):
                taken = made["number"] in withdrawn or date.fromisoformat(made["until"]) < today
                wide = wide if taken else Standing("approved", made)
        if own is not None and (own.state != "ended" or wide is None):
            return own
        return wide or Standing("waiting", None)

    def decide(
        self, asked: AskedPlan, yes: bool, by: str, reason: str, until: date | None, open_: Sequence[str] = ()
    ) -> str:
        """Write down a yes or a no, signed; it is on the disk when this returns.

        Args:
            asked: The plan.
            yes: Whether it may run.
            by: Who decides.
            reason: Why; it stays at the site.
            until: Last day (UTC) of a yes.
            open_: Settings in which later plans of the same submitter may differ; none for this run alone.

        Returns:
            The decision's number.

        Raises:
            SettingsError: A named setting may not be left open, or a yes has no end date.
            DataError: The site's key cannot be read.
            StateError: The list cannot be written.
        """
        if yes and (until is None or until < datetime.now(UTC).date()):
            raise SettingsError("an approval needs a day on which it ends, today or later: --until YYYY-MM-DD.")
        if not reason.strip() or not by.strip():
            raise SettingsError("a decision needs a reason and the name of who made it: --reason and --by.")
        made: dict[str, Any] = {
            "decision": "approved" if yes else "refused",
            "plan": asked.plan,
            "run": asked.run,
            "restart": asked.restart,
            "submitter": asked.submitter,
            "until": until.isoformat() if yes and until is not None else "",
        }
        if yes and open_:
            require_may_differ(open_, asked)
            made["standing"] = {"open": sorted(open_), "rest": _rest(asked.agreed, sorted(open_))}
        return self._append(made, by, reason)

    def withdraw(self, what: str, by: str, reason: str, here: Collection[str] = ()) -> str:
        """Take back what was approved: the approval of a number, or whatever lets the run of a name go on.

        Args:
            what: The number, or the run's name.
            by: Who decides.
            reason: Why; it stays at the site.
            here: Runs that have worked or wait here. A standing approval names no run, so with it alone any other name
                would be taken, a mistyped one too.

        Returns:
            The decision's number.

        Raises:
            NotFoundError: There is no such approval, and no such run that one lets go on.
            DataError: The site's key cannot be read.
            StateError: The list cannot be read or written.
        """
        found = [made for made in self.decisions() if made["decision"] == "approved"]
        one = next((made for made in found if made["number"] == what), None)
        if one is not None:
            made = {**{name: one[name] for name in ("plan", "run", "restart", "submitter")}, "of": what}
        elif any(made["run"] == what or ("standing" in made and what in here) for made in found):
            made = {"plan": "", "run": what, "restart": "", "submitter": "", "of": ""}
        else:
            known = sorted({made["run"] for made in found} | (set(here) if found else set()))
            said = f"; the runs are {', '.join(known)}" if known else ""
            raise NotFoundError(f"{what!r} is no approval of {self._kit.name} and no run that one lets go on{said}.")
        return self._append({**made, "decision": "withdrawn", "until": ""}, by, reason)

    def is_genuine(self, made: Mapping[str, Any]) -> bool:
        """Whether a decision was signed with a key of this site, under the kit's authority, and is unchanged."""
        try:
            certificate = x509.load_pem_x509_certificate(str(made["certificate"]).encode())
            authority = x509.load_pem_x509_certificate(self._kit.root_path.read_bytes())
            certificate.verify_directly_issued_by(authority)
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            if made["site"] != self._kit.name or [name.value for name in names] != [self._kit.name]:
                return False
            key = certificate.public_key()
            if not isinstance(key, rsa.RSAPublicKey):
                return False
            key.verify(bytes.fromhex(made["signature"]), _signed(made), _PADDING, hashes.SHA256())
        except (OSError, ValueError, TypeError, KeyError, InvalidSignature):
            return False
        return True

    def _append(self, made: dict[str, Any], by: str, reason: str) -> str:
        made |= {
            "site": self._kit.name,
            "by": one_line(by, 100),
            "reason": one_line(reason, _LONGEST),
            "decided": datetime.now(UTC).isoformat(timespec="seconds"),
            "certificate": self._kit.certificate_path.read_text(encoding="ascii"),
        }
        made["number"] = secrets.token_hex(_SHOWN // 2)
        made["signature"] = _key(self._kit.key_path).sign(_signed(made), _PADDING, hashes.SHA256()).hex()
        Ledger(self._path).note_decision(made)
        return str(made["number"])


def require_may_differ(names: Sequence[str], asked: AskedPlan) -> None:
    """Refuse settings that a standing approval must not leave open.

    Raises:
        SettingsError: It decides what leaves, or the plan has no such setting, or nobody signed the job.
    """
    if not asked.submitter:
        raise SettingsError("this job is not signed, so nobody knows whose plans a standing approval would be for.")
    for name in names:
        if not any(name == may or name.startswith(f"{may}.") for may in MAY_DIFFER):
            raise SettingsError(
                f"{name} may not be left open, since what leaves could differ: a standing approval may leave open "
                f"{', '.join(MAY_DIFFER)}, and what is below them."
            )
        if _without(asked.agreed, name.split(".")) == asked.agreed:
            raise SettingsError(f"the plan has no setting {name}: look at its settings with `--json`.")


def _withdrawn(decisions: Sequence[Mapping[str, Any]]) -> set[str]:
    """Numbers of the approvals that were taken back one by one."""
    return {made["of"] for made in decisions if made["decision"] == "withdrawn" and made.get("of")}


def _concerns(made: Mapping[str, Any], asked: AskedPlan) -> bool:
    """Whether a decision is about this run, or about this plan of it."""
    if made["run"] != asked.run or made.get("of"):
        return False
    return not made["plan"] or (made["plan"], made["restart"]) == (asked.plan, asked.restart)


def _covers(made: Mapping[str, Any], asked: AskedPlan) -> bool:
    """Whether a standing approval holds for the plan; going back does steps again, so that asks in any case."""
    wide = made.get("standing")
    if asked.restart or made["decision"] != "approved" or not wide or made["submitter"] != asked.submitter:
        return False
    return bool(wide["rest"] == _rest(asked.agreed, wide["open"]))


def _rest(agreed: Mapping[str, Any], open_: Sequence[str]) -> str:
    """SHA-256 over the settings without those that are left open, and the version."""
    left: Any = agreed
    for name in open_:
        left = _without(left, name.split("."))
    return _sha([left, __version__])


def _without(settings: Any, path: Sequence[str]) -> Any:
    """Settings without one of them; of a list, each of its entries without it."""
    if isinstance(settings, list):
        return [_without(entry, path) for entry in settings]
    if not isinstance(settings, Mapping):
        return settings
    if len(path) == 1:
        return {name: value for name, value in settings.items() if name != path[0]}
    return {name: _without(value, path[1:]) if name == path[0] else value for name, value in settings.items()}


_PADDING = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)


def _signed(made: Mapping[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in made.items() if name != "signature"}, sort_keys=True).encode()


def _sha(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _key(path: Path) -> rsa.RSAPrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no readable private key ({error}): restore it from the kit.") from error
    if not isinstance(key, rsa.RSAPrivateKey):
        raise DataError(f"{path} is no RSA key, and FLARE's provisioning writes no other: restore it from the kit.")
    return key
