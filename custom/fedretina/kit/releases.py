"""Environments of an end beside one another: each version in a folder of its own, and one name for the one in use.

`/opt/fedretina`, which units and people name, is a link to `/opt/fedretina-releases/VERSION`. So a new version is
installed where nothing looks, and one rename puts it in place, or the old one back. Before its first upgrade
`/opt/fedretina` is a folder: it changes places with the link in one call of the kernel and becomes the old release.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedretina.errors import DataError, SettingsError, StateError
from fedretina.storage import read_json, write_json
from fedretina.version import __version__

SUFFIX = "-releases"
"""What the folder of all releases is called, after the name of the one in use."""
REQUIREMENTS = "requirements.txt"
"""In a folder of wheels: every package with its hashes."""
_WHEEL = re.compile(r"fedretina-([0-9][^-]*)-py3-none-any\.whl")
_NAMED = re.compile(r"^fedretina\s*(==|@)", re.MULTILINE)
_WHOLE = "installed.json"
_NEXT = ".next"
_LAST_WORDS = 600
# From <linux/fcntl.h> and <linux/fs.h>.
_AT_FDCWD = -100
_EXCHANGE = 2


class Wheels:
    """A folder of wheels, as `fedretina wheelhouse` makes it: from it one version of this package is installed.

    Args:
        folder: The folder.
        version: The version that is wanted; None for the only one that is there.

    Raises:
        SettingsError: It holds no such wheel, or several and none is named.
    """

    def __init__(self, folder: Path, version: str | None = None) -> None:
        found = {match[1]: path for path in folder.glob("*.whl") if (match := _WHEEL.fullmatch(path.name))}
        if not found:
            raise SettingsError(f"{folder} holds no wheel of fedretina: name the folder that the consortium gave you.")
        if version is None and len(found) > 1:
            raise SettingsError(f"{folder} holds fedretina {', '.join(sorted(found))}: choose one with --to.")
        self.folder = folder.resolve()
        self.version = version or next(iter(found))
        if self.version not in found:
            raise SettingsError(f"{folder} holds fedretina {', '.join(sorted(found))}, and not {version}.")
        self._wheel = found[self.version].resolve()
        self._requirements = self.folder / REQUIREMENTS

    @property
    def has_hashes(self) -> bool:
        """Whether every package is held against a hash."""
        return self._requirements.is_file() and "--hash=" in self._requirements.read_text(encoding="utf-8")

    def pip_installs(self) -> list[list[str]]:
        """What pip is told, one call after another, all without a network."""
        base = ["install", "--isolated", "--disable-pip-version-check", "--no-input", "--quiet", "--no-index"]
        base += ["--find-links", str(self.folder)]
        if not self._requirements.is_file():
            return [[*base, str(self._wheel)]]
        # The list is complete, so nothing is looked for beside it.
        listed = [*base, "--no-deps", "--requirement", str(self._requirements)]
        own = [] if _NAMED.search(self._requirements.read_text("utf-8")) else [[*base, "--no-deps", str(self._wheel)]]
        return [listed, *own]


class Releases:
    """The environments of one end.

    Args:
        used: The name under which one of them is in use, such as `/opt/fedretina`.
    """

    def __init__(self, used: Path) -> None:
        self.used = used
        self.folder = used.with_name(f"{used.name}{SUFFIX}")

    @classmethod
    def of_this_process(cls) -> Releases:
        """Those of the environment that this command was called from.

        Raises:
            SettingsError: It has no environment of its own.
        """
        if sys.prefix == sys.base_prefix:
            raise SettingsError("this fedretina has no environment of its own, so there is none to put another beside.")
        prefix = Path(sys.prefix)
        above = prefix.parent
        if above.name.endswith(SUFFIX):
            return cls(above.with_name(above.name.removesuffix(SUFFIX)))
        return cls(prefix)

    @property
    def current(self) -> str:
        """The version in use."""
        return Path(os.readlink(self.used)).name if self.used.is_symlink() else __version__

    def release(self, version: str) -> Path:
        """Where a version lies, but for the first one before its first upgrade."""
        return self.folder / version

    def python(self, version: str) -> Path:
        """The interpreter of a version."""
        folder = self.used if version == self.current else self.release(version)
        return folder / "bin" / "python"

    def is_whole(self, version: str) -> bool:
        """Whether the version was installed to its end by `install`."""
        try:
            return read_json(self.release(version) / _WHOLE).get("version") == version
        except StateError:
            return False

    def size(self) -> int:
        """Bytes that the environment in use takes."""
        files = (Path(at) / name for at, _, names in os.walk(self.used.resolve()) for name in names)
        return sum(path.lstat().st_size for path in files)

    def room(self) -> int:
        """Free bytes where releases lie."""
        return shutil.disk_usage(self.folder if self.folder.exists() else self.used.parent).free

    def prepare(self) -> None:
        """Make the folder of releases.

        Raises:
            DataError: It cannot be made or written.
        """
        try:
            if not self.folder.exists():
                self.folder.mkdir()
                self.folder.chmod(0o755)  # the service's user reads what lies here, whatever root's umask is
        except OSError as error:
            raise DataError(f"{self.folder} cannot be made ({error.strerror}): run it as root.") from error
        if not os.access(self.folder, os.W_OK) or not os.access(self.used.parent, os.W_OK):
            raise DataError(f"{self.folder} and {self.used.parent} must be writable: run it as root.")

    def install(self, wheels: Wheels, python: Path, system_packages: bool, lock: int) -> None:
        """Install a version beside the others; what an earlier try left half done is removed first.

        Args:
            wheels: Where from.
            python: The interpreter that the environment is made with.
            system_packages: Whether packages of the machine itself are seen, such as a torch of the hospital's own.
            lock: Descriptor of the lock on the folder: pip holds it too, should this process be killed.

        Raises:
            DataError: The environment cannot be made, or pip does not install it; nothing in use was touched.
        """
        folder = self.release(wheels.version)
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--system-site-packages"] if system_packages else []
        _run([str(python), "-m", "venv", *options, str(folder)], lock, "the new environment cannot be made")
        own = str(folder / "bin" / "python")
        with tempfile.TemporaryDirectory(dir=folder) as room:  # pip unpacks gigabytes, and /tmp may be small
            for words in wheels.pip_installs():
                _run([own, "-m", "pip", *words], lock, "pip did not install the new version", room)
        found = _run([own, "-m", "fedretina", "--version"], lock, "the new version does not start")
        itself = found.partition("\n")[0].strip()  # below it a version may name what it stands on
        if itself.split()[-1:] != [wheels.version]:
            raise DataError(
                f"what was installed is {itself!r} and not {wheels.version}: the wheels do not fit together."
            )
        write_json(folder / _WHOLE, {"version": wheels.version, "hashes": wheels.has_hashes, "time": time.time()})

    def switch(self, version: str) -> None:
        """Put a version in place, in one step; the one before stays under its own version.

        Raises:
            DataError: The file system does not let a folder and a link change places.
            StateError: The link cannot be written.
        """
        target = os.path.relpath(self.release(version), self.used.parent)
        if self.used.is_symlink() or not self.used.exists():
            fresh = self.used.with_name(f".{self.used.name}{_NEXT}")
            try:
                fresh.unlink(missing_ok=True)
                os.symlink(target, fresh)
                os.replace(fresh, self.used)
            except OSError as error:
                raise StateError(f"the link {self.used} cannot be written ({error}); it is as it was.") from error
            return
        kept = self.release(self.current)
        if kept.is_symlink():  # of a process that was killed before the exchange
            kept.unlink()
        if kept.exists():
            raise DataError(f"{kept} is in the way of {self.used}, which is of that version: remove it first.")
        os.symlink(target, kept)
        try:
            _exchange(self.used, kept)
        except OSError as error:
            kept.unlink()
            raise DataError(
                f"{self.used} is a folder, and this file system cannot exchange it for a link ({error.strerror}). "
                f"Once, by hand: mv {self.used} {kept} && ln -s {target} {self.used}; then call this command again."
            ) from error


def _exchange(one: Path, other: Path) -> None:
    """Let two names change places, both at once; Python has no name for this call of the kernel."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(command: Sequence[str], lock: int, what: str, temporary: str | None = None) -> str:
    """Run a step of an installation.

    Raises:
        DataError: It fails; with its own last words.
    """
    more = {} if temporary is None else {"TMPDIR": temporary}
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command,
            env={**environment, **more, "PIP_CONFIG_FILE": os.devnull},  # no place of this machine's own settings
            pass_fds=[lock],
            umask=0o022,  # the service's user reads what root installs
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise DataError(f"{what} ({error}); nothing in use was touched.") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())[-_LAST_WORDS:]
        raise DataError(f"{what}; nothing in use was touched. It said: {words or done.returncode}")
    return done.stdout
