"""What a machine must give a site: its GPU, shared memory, a cache that can be written, no lock left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil

from fedretina.kit.findings import Finding, bad, judged, note
from fedretina.seeds import devices_seen

_SHM = Path("/dev/shm")
_SHM_MB = 64.0
_DEVICES = Path("/dev")
_PROCESSES = Path("/proc")
_PID_FILES = ("daemon_pid.fl", "pid.fl")


def gpu(offered: int = 0) -> Finding:
    """Whether this process sees the GPUs that the machine has.

    Args:
        offered: How many the kit lets jobs ask for.
    """
    there = [path for path in _DEVICES.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    seen = devices_seen()
    if there and not seen:
        return bad(
            "GPU",
            f"the machine has {len(there)}, this process sees none",
            "look at `nvidia-smi`, CUDA_VISIBLE_DEVICES, the device rights of the unit or the container, and whether "
            "torch was built for CUDA.",
        )
    if offered > len(seen):
        mend = "offer as many as there are: `fedretina kit harden --gpus`."
        return bad("GPU", f"the kit offers jobs {offered}, this process sees {len(seen)}", mend)
    return note("GPU", f"this process sees {', '.join(seen) or 'none: the processor does the work'}")


def shared_memory() -> Finding:
    """Size of /dev/shm, of which containers often get little, and torch says "bus error" where it is full."""
    try:
        usage = shutil.disk_usage(_SHM)
    except OSError:
        return bad("shared memory", f"{_SHM} is not there", f"mount a tmpfs of at least {_SHM_MB:.0f} MB there.")
    text = f"{_SHM} has {usage.total / 1e6:.0f} MB, {usage.free / 1e6:.0f} MB free"
    faults = [text] if usage.free / 1e6 < _SHM_MB / 2 or not os.access(_SHM, os.W_OK) else []
    mend = f"give it at least {_SHM_MB:.0f} MB that the service may write: `--shm-size` of a container."
    return judged("shared memory", faults, text, mend)


def cache(folder: Path, nearest: Path) -> Finding:
    """Whether the image cache can be written, by the way down to it that is there."""
    probe = nearest / f".fedretina-check-{os.getpid()}"
    faults = []
    try:
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        faults.append(f"{nearest} cannot be written ({error.strerror})")
    return judged("cache", faults, f"{folder} can be written", "let the service's user write it, or set data.cache.")


def locks(kit: Path, root: Path, name: str, serves: bool) -> Finding:
    """Locks that something holds though the service does not run, and FLARE's files of processes that are gone.

    Args:
        kit: The kit's folder.
        root: Where the runs lie.
        name: The site's name.
        serves: Whether the service runs, as far as it says.
    """
    faults = []
    for path in (kit / file for file in _PID_FILES):
        pid = _pid(path)
        if pid is not None and _runs_another(pid, kit):
            faults.append(f"{path.name} names process {pid}, which is another program's")
    held = [] if serves else held_runs(root, name)
    if held:
        faults.append(f"a process still holds {', '.join(f'run {run}' for run in held)}, and the service does not run")
    return judged(
        "locks",
        faults,
        "none left behind",
        "end what is left of an old process (`fuser -v` on the run's lock names it); remove another's .fl file.",
    )


def held_runs(root: Path, name: str) -> list[str]:
    """Runs whose folders a process of an end holds.

    Args:
        root: Where the runs lie.
        name: The end's folder in each.
    """
    return [path.parent.parent.name for path in sorted(root.glob(f"*/{name}/lock")) if _held(path)]


def processes_of(kit: Path) -> list[int]:
    """Processes of FLARE, the lasting one and those of jobs, that run with a kit on this machine."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if str(kit) in words and any("nvflare" in word for word in words):
            found.append(int(process.info["pid"]))
    return sorted(found)


def _pid(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None


def _runs_another(pid: int, kit: Path) -> bool:
    """Whether a process of this number runs and does not belong to the kit: FLARE's script would not start then."""
    try:
        command = (_PROCESSES / str(pid) / "cmdline").read_bytes()
        here = (_PROCESSES / str(pid) / "cwd").resolve()
    except OSError:
        return False
    return os.fsencode(kit) not in command and not here.is_relative_to(kit)


def _held(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
