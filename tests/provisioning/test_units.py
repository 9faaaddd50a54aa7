"""The systemd units and the container's options, as files; and what they hold back where systemd runs the machine."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROVISIONING = Path(__file__).resolve().parents[2] / "provisioning"
UNITS = ("fedretina-site.service", "fedretina-server.service")
ADDRESSES = "[Service]\nIPAddressDeny=\nIPAddressDeny=any\nIPAddressAllow=\nIPAddressAllow=127.0.0.1 ::1 192.0.2.10\n"
LOW_PORT = "[Service]\nAmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not on this machine")
needs_systemd = pytest.mark.skipif(
    not Path("/run/systemd/system").is_dir() or os.getuid() != 0,
    reason="systemd does not run this machine, or the tests do not run as root",
)

EACH_UNIT = {
    "IPAddressDeny": ["any"],
    "IPAddressAllow": ["127.0.0.1 ::1"],
    "TemporaryFileSystem": ["/run:ro"],
    "SystemCallArchitectures": ["native"],
    "SystemCallFilter": [
        "@system-service",
        "~@privileged @keyring io_uring_setup io_uring_enter io_uring_register",
    ],
    "SystemCallErrorNumber": ["EPERM"],
    "DevicePolicy": ["closed"],
    "CapabilityBoundingSet": [""],
    "NoNewPrivileges": ["yes"],
    "ProtectSystem": ["strict"],
    "ReadWritePaths": ["/srv/fedretina"],
    "User": ["fedretina"],
    "UMask": ["0077"],
}
"""What both units promise; the rest is systemd's to judge."""

EACH_RUN = {
    "--read-only": None,
    "--tmpfs": "/tmp",
    "--cap-drop": "ALL",
    "--security-opt": "no-new-privileges",
    "--user": "$(id -u fedretina):$(id -g fedretina)",
}
EACH_SERVICE = {**EACH_RUN, "--cgroup-parent": "fedretina.slice", "--pids-limit": "4096"}
"""What a container is started with: a command in one, and the site itself."""
NEVER = {"--privileged", "--cap-add", "--device", "--pid", "--ipc", "--userns", "--net", "--network"}


def settings(unit):
    """The values of a unit's settings, in order, by name."""
    found = {}
    for line in (PROVISIONING / unit).read_text().splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def container_runs():
    """The `docker run` commands of the Containerfile's head, as lists of words."""
    head = (PROVISIONING / "Containerfile").read_text().partition("\nFROM ")[0]
    text = re.sub(r"\\\n#", " ", head)
    return [shlex.split(line.strip("# ")) for line in text.splitlines() if line.strip("# ").startswith("docker run ")]


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_says_what_is_promised_of_it(unit):
    found = settings(unit)
    assert {name: found.get(name) for name in EACH_UNIT} == EACH_UNIT
    assert "/srv/fedretina/kit/startup /srv/fedretina/kit/local" in found["ReadOnlyPaths"][0]
    assert "OPENSSL_CONF=/srv/fedretina/kit/local/openssl.cnf" in found["Environment"]


@needs_analyze
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("more", ["", ADDRESSES, LOW_PORT], ids=["as it is", "with addresses", "below port 1024"])
def test_systemd_finds_no_fault_in_a_unit_and_little_exposure(unit, more, tmp_path):
    path = tmp_path / unit
    path.write_text((PROVISIONING / unit).read_text() + more)
    checked = subprocess.run([ANALYZE, "verify", path], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert unit not in checked.stderr  # it may have words to say of other units of this machine
    command = [ANALYZE, "security", "--offline=true", "--threshold=25", "--no-pager", path]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", judged.stdout)
    assert float(exposure) <= 2.5


def test_a_container_gets_what_the_unit_has():
    *runs, demo = container_runs()
    assert len(runs) == 2
    # The demo has no user of its own, keeps nothing but its runs, and needs no network.
    assert demo[-1] == "fedretina-demo"
    assert {"--read-only", "ALL", "no-new-privileges", "$PWD/runs:/runs"} <= set(demo)
    assert demo[demo.index("--network") + 1] == "none"
    assert not (set(NEVER) - {"--network"}) & {word.partition("=")[0] for word in demo}
    for words in runs:
        wanted = EACH_SERVICE if "-d" in words else EACH_RUN
        options = dict(zip(words, [*words[1:], ""], strict=True))
        assert {name: options.get(name) for name, value in wanted.items() if value} == {
            name: value for name, value in wanted.items() if value
        }
        assert "--read-only" in words
        if "-d" in words:
            assert {f"/srv/fedretina/kit/{name}:/srv/fedretina/kit/{name}:ro" for name in ("startup", "local")} < set(
                words
            )
        assert not [
            word for word in words if word.partition("=")[0] in NEVER or "unconfined" in word or "docker.sock" in word
        ]
    text = (PROVISIONING / "Containerfile").read_text()
    assert "OPENSSL_CONF=/srv/fedretina/kit/local/openssl.cnf" in text.partition("\nFROM ")[2]


PROBE = """
import ctypes, errno, socket, sys
def reached(host):
    try:
        with socket.create_connection((host, int(sys.argv[1])), 3):
            return True
    except OSError:
        return False
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *words):
    return libc.syscall(number, *words) == -1 and ctypes.get_errno() == errno.EPERM
# By x86-64's numbers: keyctl, io_uring_setup, ptrace, unshare(CLONE_NEWUSER), mount.
calls = [(250, 0, 0), (425, 8, 0), (101, 0, 0, 0, 0), (272, 0x10000000), (165, 0, 0, 0, 0, 0)]
import torch
x = torch.ones(8, 8, requires_grad=True)
(x @ x).sum().backward()
print(reached("127.0.0.1"), reached("127.0.0.2"), all(refused(*call) for call in calls), x.grad is not None)
"""
HELD = (
    "IPAddress",
    "SystemCall",
    "Restrict",
    "NoNew",
    "Device",
    "Capability",
    "Lock",
    "ProtectKernel",
    "ProtectControl",
)


@needs_systemd
@pytest.mark.attack(
    "a lead",
    "a process of the site's service sends to another address than the server's",
    "systemd drops it: the unit lets packets go to the server and this machine alone",
)
@pytest.mark.parametrize("unit", UNITS)
def test_a_process_of_the_unit_reaches_no_other_address_and_still_trains(unit):
    found = settings(unit)
    held = [f"{name}={value}" for name in found if name.startswith(HELD) for value in found[name]]
    with socket.create_server(("0.0.0.0", 0)) as listener:  # the system answers; 127.0.0.2 stands for any other address
        port = listener.getsockname()[1]
        command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect"]
        command += [word for setting in held for word in ("-p", setting)]
        done = subprocess.run(
            [*command, sys.executable, "-c", PROBE, str(port)], capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == ["True", "False", "True", "True"], done.stdout + done.stderr
