"""An end's upgrade from one installed version to another, and back: check, install beside, switch, harden.

Whatever kills it, the end can be started afterwards. Until the switch nothing in use has changed. From the switch on
the new version runs, first with the kit as the old one hardened it, which it must know how to read (`site check` by
the new version says so before the switch), then with the kit hardened anew. The way back goes through the same
states: the kit's former files first, then the switch. Called again, either goes on where it was cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedretina.errors import DataError, FedretinaError, NotFoundError, SettingsError, StateError
from fedretina.kit import machine_check
from fedretina.kit.addresses import unit_of
from fedretina.kit.check import HARDEN, check_kit
from fedretina.kit.end_status import EndFiles
from fedretina.kit.findings import Finding, render
from fedretina.kit.releases import Releases, Wheels
from fedretina.kit.startup_kit import StartupKit
from fedretina.locks import folder_lock
from fedretina.plurals import counted
from fedretina.storage import read_json, write_json, write_text

RECORD = "upgrade.json"
"""Beside the releases: from which version to which, and the kit's files as they were before."""
_PARTS = (("startup", "*.json"), ("local", "*.json"), ("local", "*.cnf"))
_SPARE = 500_000_000
_GROWS = 1.2


class Upgrade:
    """One end's way from a version to another.

    Args:
        kit: The kit of the site or the server; its service does not run.
        releases: The environments of this end.
        tell: Is told each step, by its name and in words.
        anyway: Go on where only the way is doubtful: a finding of the check, or a run that has not ended.
        check_options: For the `site check` of the new version, such as `--offline`.
    """

    def __init__(
        self,
        kit: StartupKit,
        releases: Releases,
        tell: Callable[[str, str], None],
        anyway: bool = False,
        check_options: Sequence[str] = (),
    ) -> None:
        if kit.role == "admin":
            raise SettingsError(f"{kit.folder} is the kit of an admin, who has no service: install the new version.")
        self._kit, self._releases, self._tell, self._anyway = kit, releases, tell, anyway
        self._check_options = list(check_options)
        self._record = releases.folder / RECORD

    def to(self, wheels: Wheels, python: Path | None = None, system_packages: bool = False) -> None:
        """Check, install beside, check by the new version, switch, harden.

        Args:
            wheels: What is installed.
            python: The interpreter of the new environment; by default the one below this environment.
            system_packages: See `Releases.install`.

        Raises:
            FedretinaError: A step does not go on; what is in use then is said in the sentence.
        """
        self._releases.prepare()
        with folder_lock(self._releases.folder, wait_s=10.0) as lock:
            record = self._cut_off()
            if record is not None:
                if record["to"] != wheels.version:
                    raise SettingsError(
                        f"the upgrade to {record['to']} was cut off after its switch: finish it with --to "
                        f"{record['to']}, or go back with --roll-back."
                    )
                self._tell("go on", f"the upgrade to {wheels.version} was cut off after its switch")
                self._refuse_what_runs()
                self._harden(record)
                return
            before = self._releases.current
            if wheels.version == before:
                raise SettingsError(f"{before} is the version in use: there is nothing to upgrade to.")
            self._check(before, wheels)
            if self._releases.is_whole(wheels.version):
                self._tell("install", f"{self._releases.release(wheels.version)} is there")
            else:
                self._tell("install", f"{self._releases.release(wheels.version)}; this takes minutes")
                base = Path(getattr(sys, "_base_executable", sys.executable))
                self._releases.install(wheels, python or base, system_packages, lock)
            hashes = "every package was held against its hash" if wheels.has_hashes else "no hashes are in the folder"
            self._tell("install", f"fedretina {wheels.version}; {hashes}")
            self._check_by(wheels.version)
            files = {name: path.read_text("utf-8") for name, path in self._files()}
            record = {"kit": str(self._kit.folder), "from": before, "to": wheels.version, "before": files}
            write_json(self._record, {**record, "after": None, "time": time.time()})
            self._record.chmod(0o600)
            self._releases.switch(wheels.version)
            self._tell("switch", f"{self._releases.used} is {wheels.version} now; {before} stays beside it")
            self._harden(record)

    def back(self) -> None:
        """Give the kit its former files and put the version before in place.

        Raises:
            NotFoundError: There is no upgrade to go back from.
            DataError: The version before was removed, or does not start; nothing was changed.
            FedretinaError: A step does not go on.
        """
        if not self._record.exists():
            raise NotFoundError(f"{self._releases.folder} knows of no upgrade: there is nothing to go back to.")
        with folder_lock(self._releases.folder, wait_s=10.0):
            record = self._read_record()
            self._refuse_what_runs()
            self._refuse_unfinished(f"fedretina {record['from']} cannot end what {record['to']} began")
            self._back(record)
            faults = [found for found in self._found_by(record["from"], ["kit", "check"]) if found.good is False]
            if faults:
                raise DataError(f"{record['from']} is in place, and its `kit check` finds:\n{render(faults)}")
            self._tell("check", f"`kit check` of {record['from']} finds nothing to mend")

    def _back(self, record: dict[str, Any]) -> None:
        self._refuse_without(record["from"])
        kept = self._restore(record)
        if self._releases.current != record["from"]:
            self._releases.switch(record["from"])
        self._tell("switch", f"{self._releases.used} is {record['from']} again; {record['to']} stays beside it")
        self._record.unlink()
        if kept:
            self._tell("kit", f"changed by somebody since, and left as they are: {', '.join(kept)}")

    def _refuse_without(self, version: str) -> None:
        """A version that was removed, or that does not start, is not gone back to: the end would have none."""
        try:
            self._by(version, ["--version"])
        except DataError as error:
            folder = self._releases.python(version).parent.parent
            raise DataError(
                f"{version} cannot be put in place again, so all stays as it is: {error} Restore {folder} from "
                f"a backup, or install {version} there as root: `sh WHEELS/install.sh {folder}`, where WHEELS is its "
                "folder of wheels. Then call this command again."
            ) from error

    def _check(self, before: str, wheels: Wheels) -> None:
        """All that can be said against it before anything is written."""
        self._refuse_what_runs()
        faults = [found for found in check_kit(self._kit) if found.good is False]
        if faults and not self._anyway:
            raise DataError(f"mend this first, or go on with --anyway:\n{render(faults)}")
        self._refuse_unfinished(f"a run ends with the version that began it, and {wheels.version} cannot end these")
        needed, room = _SPARE + int(self._releases.size() * _GROWS), self._releases.room()
        if room < needed and not self._releases.is_whole(wheels.version):
            raise DataError(
                f"{self._releases.folder} has {room / 1e9:.1f} GB free, and the new environment may need "
                f"{needed / 1e9:.1f} GB: make room, such as by removing old releases there."
            )
        self._tell(
            "check",
            f"{self._kit.name}: {before} to {wheels.version}; its service does not run, {room / 1e9:.0f} GB are free",
        )

    def _refuse_what_runs(self) -> None:
        found = machine_check.processes_of(self._kit.folder)
        if found:
            raise DataError(f"{self._kit.name} runs (process {found[0]}): `systemctl stop {unit_of(self._kit)}` first.")
        files = EndFiles(self._kit)
        held = machine_check.held_runs(files.root, files.own)
        if held:
            raise DataError(f"a process still works on run {held[0]}: wait for its end, or end it.")

    def _refuse_unfinished(self, why: str) -> None:
        runs = EndFiles(self._kit).unfinished()
        if runs and not self._anyway:
            raise StateError(
                f"{counted(len(runs), 'run')} of {self._kit.name} did not end: {', '.join(runs)}; {why}. Wait for "
                "their end, or give them up with --anyway: their files stay, and so do those of ended runs."
            )

    def _check_by(self, version: str) -> None:
        """What the new version says of the kit as it is; what hardening it anew mends is no fault yet."""
        words = ["site", "check"] if self._kit.role == "site" else ["kit", "check"]
        options = self._check_options if self._kit.role == "site" else []
        found = self._found_by(version, words, options)
        faults = [finding for finding in found if finding.good is False and not finding.mend.startswith(HARDEN)]
        if faults and not self._anyway:
            raise DataError(
                f"`{' '.join(words)}` of {version} finds this; nothing in use was touched. Mend it and call again, "
                f"which does not install again, or go on with --anyway:\n{render(faults)}"
            )
        self._tell("check", f"`{' '.join(words)}` of {version}: {counted(len(found), 'line')}, {len(faults)} to mend")

    def _harden(self, record: dict[str, Any]) -> None:
        """By the new version, and looked at by it; where that fails, all goes back."""
        version = record["to"]
        try:
            self._by(version, ["kit", "harden", str(self._kit.folder)])
            faults = [found for found in self._found_by(version, ["kit", "check"]) if found.good is False]
            if faults and not self._anyway:
                raise DataError(f"`kit check` of {version} finds:\n{render(faults)}")
        except FedretinaError as error:
            self._tell("back", f"the kit cannot be hardened by {version}")
            try:
                self._back(record)
            except DataError as gone:
                raise DataError(f"{gone}\nThe kit cannot be hardened by {version}: {error}") from error
            raise DataError(f"{record['from']} is in place again, as it was: {error}") from error
        after = {name: _digest(path.read_text("utf-8")) for name, path in self._files()}
        write_json(self._record, {**record, "after": after, "time": time.time()})
        self._record.chmod(0o600)
        changed = [name for name, digest in after.items() if digest != _digest(record["before"].get(name))]
        self._tell("harden", f"by {version}; {', '.join(changed) or 'nothing'} changed")

    def _restore(self, record: dict[str, Any]) -> list[str]:
        """Give back the files that the upgrade changed; the names of those that somebody has changed since."""
        before, after, kept = record["before"], record.get("after"), []
        now = dict(self._files())
        for name in sorted({*before, *now}):
            path = self._kit.folder / name
            digest = _digest(path.read_text("utf-8")) if path.exists() else ""
            if digest == _digest(before.get(name)):
                continue
            if after is not None and digest != after.get(name, ""):
                kept.append(name)
                continue
            with _as_owner_of(self._kit.folder):
                if name in before:
                    write_text(path, before[name], mode=0o600)
                else:
                    path.unlink()
        self._tell("kit", f"its files are those of {record['from']}")
        return kept

    def _files(self) -> Iterator[tuple[str, Path]]:
        """The kit's files that hardening may change, by their names from the kit's folder on."""
        for folder, pattern in _PARTS:
            for path in sorted((self._kit.folder / folder).glob(pattern)):
                yield f"{folder}/{path.name}", path

    def _cut_off(self) -> dict[str, Any] | None:
        """The record of an upgrade that was switched and not hardened to its end."""
        if not self._record.exists():
            return None
        record = self._read_record()
        return record if record["after"] is None and record["to"] == self._releases.current else None

    def _read_record(self) -> dict[str, Any]:
        record = read_json(self._record)
        if record.get("kit") != str(self._kit.folder):
            raise SettingsError(f"{self._record} is of the kit {record.get('kit')}: name that one.")
        return record

    def _found_by(self, version: str, words: Sequence[str], options: Sequence[str] = ()) -> list[Finding]:
        text = self._by(version, [*words, str(self._kit.folder), *options, "--json"], codes=(0, 1))
        try:
            return [Finding(**found) for found in json.loads(text)]
        except (ValueError, TypeError) as error:
            raise DataError(f"`{' '.join(words)}` of {version} does not say what it found: {text[-300:]}") from error

    def _by(self, version: str, words: Sequence[str], codes: Sequence[int] = (0,)) -> str:
        """Run a command of a version as the kit's owner, who alone may read and write it.

        Raises:
            DataError: It cannot be started, or ends with another code than those; with its last words.
        """
        python = self._releases.python(version)
        left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        user = _owner_of(self._kit.folder)
        home = {} if user is None else {"HOME": user.pw_dir}
        try:
            done = subprocess.run(
                [str(python), "-m", "fedretina", *words],
                cwd=self._kit.folder,
                env={**environment, **home},
                capture_output=True,
                text=True,
                check=False,
                umask=0o077,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else os.getgrouplist(user.pw_name, user.pw_gid),
            )
        except OSError as error:
            who = "this user" if user is None else user.pw_name
            raise DataError(
                f"{version} cannot be started ({error}): look whether it is there, and whether {who} may read it "
                f"(`chmod 755 {self._releases.folder}`)."
            ) from error
        if done.returncode not in codes:
            words_left = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise DataError(f"`fedretina {' '.join(words[:2])}` of {version} failed: {' '.join(words_left)}")
        return done.stdout


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()


def _owner_of(folder: Path) -> pwd.struct_passwd | None:
    """The user that a kit belongs to, where root acts for another; None where nobody needs to change."""
    owner = folder.stat().st_uid
    if os.geteuid() != 0 or owner == 0:
        return None
    try:
        return pwd.getpwuid(owner)
    except KeyError as error:
        raise DataError(
            f"{folder} belongs to user {owner}, whom this machine does not know: chown it first."
        ) from error


@contextmanager
def _as_owner_of(folder: Path) -> Iterator[None]:
    """Write as the user that a kit belongs to."""
    user = _owner_of(folder)
    if user is None:
        yield
        return
    group = os.getegid()
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
