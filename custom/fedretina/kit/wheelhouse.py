"""A folder that installs the package on a machine without a network: wheels, and a list of them with hashes.

pip does the work. On the machine with a network it checks what it fetches against the hashes of the lock, and makes
wheels of what comes as sources; the folder's own list then has one hash for each wheel that is in it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedretina.errors import DataError, SettingsError
from fedretina.storage import write_text

_OURS = "fedretina"
LIST = "requirements.txt"
SCRIPT = "install.sh"
README = "README.txt"
_WHEEL = re.compile(r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl$")
_LOCKED = re.compile(r"^[A-Za-z0-9][^\s#]*==", re.MULTILINE)
_TAIL = 15
"""Lines of pip's words that an error shows."""

_SCRIPT = """\
#!/bin/sh
# Written by `fedretina wheelhouse`: installs what lies beside this script, without a network. pip refuses each file
# that has another hash than {list} says.
# Usage: sh {script} /opt/fedretina       (the environment's folder; where there is none, one of {python} is made)
set -eu
umask 022    # the service's user reads what root installs
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$1/bin/python" ] || {python} -m venv "$1"
"$1/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))' || {{
  echo "these wheels are for Python {major}.{minor}, and $1 has another: name an environment of {python}." >&2
  exit 2
}}
export PIP_CONFIG_FILE=/dev/null    # no place of this machine's own settings
"$1/bin/python" -m pip --isolated install --no-index --find-links "$here" --no-deps --require-hashes -r "$here/{list}"
"$1/bin/python" -m pip check
"""
_README = """\
fedretina and all that it needs, for Python {major}.{minor} on {platform}. No network is used.

    sha256sum {list}
    sh {script} /opt/fedretina

The first line must print the digest that whoever made this folder told you otherwise than with the folder:
whoever can change the folder can change this file, too.
"""


class Wheelhouse(NamedTuple):
    """What was made.

    Attributes:
        wheels: Number of wheels.
        size: Their size in bytes.
        digest: SHA-256 of the list, which the receiver compares.
    """

    wheels: int
    size: int
    digest: str


def make_wheelhouse(
    folder: Path, source: Path, lock: Path, tell: Callable[[int, int], None] = lambda done, of: None
) -> Wheelhouse:
    """Make the folder, for this machine's Python and platform.

    Args:
        folder: Where; it must not be there, or be empty.
        source: The package: the folder of its sources, or its wheel.
        lock: The lock, with hashes.
        tell: Called with how many packages pip has begun to fetch, and how many the lock has.

    Raises:
        SettingsError: The folder holds something, or the source or the lock is none.
        DataError: pip cannot do it; its last words say why.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} is there and not empty: name a new folder.")
    if not lock.is_file():
        raise SettingsError(f"there is no lock {lock}: call this in the repository's folder, or name it with --lock.")
    if source.suffix != ".whl" and not (source / "custom" / _OURS).is_dir():
        raise SettingsError(f"{source} is no wheel and no repository's folder: name one of the two with --package.")
    if importlib.util.find_spec("pip") is None:
        raise SettingsError(f"this Python has no pip: `{sys.executable} -m ensurepip`, or another environment.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _fill(folder, source, lock, tell)
    except DataError:
        shutil.rmtree(folder)  # else the next try would find it in the way; pip keeps what it has fetched
        raise
    wheels = sorted(folder.glob("*.whl"))
    words = {"list": LIST, "script": SCRIPT, "platform": sys.platform, "python": f"python{_version()}"}
    words |= {"major": str(sys.version_info.major), "minor": str(sys.version_info.minor)}
    text = "".join(map(_line, wheels))
    write_text(folder / LIST, text, mode=0o644)
    write_text(folder / SCRIPT, _SCRIPT.format_map(words), mode=0o755)
    write_text(folder / README, _README.format_map(words), mode=0o644)
    size = sum(wheel.stat().st_size for wheel in wheels)
    return Wheelhouse(len(wheels), size, hashlib.sha256(text.encode()).hexdigest())


def _fill(folder: Path, source: Path, lock: Path, tell: Callable[[int, int], None]) -> None:
    of, begun = len(_LOCKED.findall(lock.read_text(encoding="utf-8"))), 0

    def hear(line: str) -> None:
        nonlocal begun
        if line.startswith(("Collecting ", "Processing ")) and begun + 1 < of:
            begun += 1
            tell(begun, of)

    tell(0, of)
    _pip("wheel", "--no-deps", "--require-hashes", "--requirement", lock, "--wheel-dir", folder, hear=hear)
    tell(of, of)
    with tempfile.TemporaryDirectory() as own:
        if source.suffix != ".whl":
            source = _copy(source, Path(own) / _OURS)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)


def _copy(source: Path, folder: Path) -> Path:
    """What the wheel is made of, as a clean copy: a build in place would take in what an earlier one has left there."""
    shutil.copytree(source / "custom" / _OURS, folder / "custom" / _OURS, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(source / name, folder)
    return folder


def _version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _line(wheel: Path) -> str:
    found = _WHEEL.match(wheel.name)
    if found is None:
        raise DataError(f"{wheel.name} is no wheel's name: remove it.")
    with open(wheel, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return f"{found['name']}=={found['version']} --hash=sha256:{digest}\n"


def _pip(*words: object, hear: Callable[[str], None] = lambda line: None) -> None:
    """Call pip; `hear` gets each of its lines as it comes."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, words)]
    last: deque[str] = deque(maxlen=_TAIL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as called:
        assert called.stdout is not None
        for line in called.stdout:
            hear(line)
            if line.strip():
                last.append(line.rstrip("\n"))
    if called.returncode != 0:
        said = "\n".join(last)
        raise DataError(f"pip {words[0]} ended with code {called.returncode}:\n{said}")
