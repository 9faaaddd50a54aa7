"""A real squid on loopback: lets CONNECT through to one port, for those who know the password."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from federation import wait_for
from ports import free_port

SQUID = shutil.which("squid", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
LOGIN = "hospital:pass-in-the-file"
NO_WAY = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9"}
"""An environment with a proxy that is not there, and with no `no_proxy`."""
_NCSA = Path("/usr/lib/squid/basic_ncsa_auth")
CONFIG = """
http_port 127.0.0.1:{port}
auth_param basic program {ncsa} {folder}/passwords
auth_param basic children 1
acl known proxy_auth REQUIRED
acl there port {to}
acl connect method CONNECT
http_access deny !connect
http_access deny !there
http_access deny !known
http_access allow known
visible_hostname proxy
pid_filename {folder}/pid
access_log stdio:{folder}/access.log
cache_log {folder}/cache.log
coredump_dir {folder}
cache deny all
pinger_enable off
shutdown_lifetime 0 seconds
"""
"""Debian's squid with what a hospital's proxy does: no page, one port, a login."""


class Squid:
    """One proxy; it can be killed and started again on the same port.

    Args:
        to: The only port that it connects to.
    """

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="squid-"))  # not pytest's, which only this user may enter
        hashed = subprocess.run(
            ["openssl", "passwd", "-apr1", LOGIN.partition(":")[2]], capture_output=True, check=True
        )
        (self.folder / "passwords").write_text(f"{LOGIN.partition(':')[0]}:{hashed.stdout.decode()}")
        words = {"port": self.port, "ncsa": _NCSA, "folder": self.folder, "to": to}
        (self.folder / "squid.conf").write_text(CONFIG.format_map(words))
        if os.getuid() == 0:  # then squid becomes the user that Debian made for it
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, "proxy", "proxy")
        self.start()

    @property
    def address(self) -> str:
        """As `kit harden --proxy` takes it."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [str(SQUID), "-N", "-f", str(self.folder / "squid.conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self._listens, "squid listens")

    def kill(self) -> None:
        """End it at once, with all connections that go through it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        (self.folder / "pid").unlink(missing_ok=True)

    def let_through(self) -> list[tuple[str, str, str]]:
        """Method, place and user of what it has let through; a connection is listed when it has ended."""
        path = self.folder / "access.log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(words[5], words[6], words[7]) for words in lines if words[3].endswith("/200")]

    def stop(self) -> None:
        """End it for good."""
        if self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def _listens(self) -> bool:
        assert self.process.poll() is None, (self.folder / "cache.log").read_text(errors="replace")
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
