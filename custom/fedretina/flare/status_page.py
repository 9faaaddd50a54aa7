"""In the lasting process of a site or the server: its page, written anew every minute by a thread that costs nothing.

FLARE builds the components of a kit's resources.json in that process and in those of its jobs; only the first fires
SYSTEM_BOOTSTRAP, so only there is a page written. Nothing here may end or hold up the service: a page that cannot be
written is a warning in the log, once.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedretina.kit.end_status import EndFiles, Process
from fedretina.kit.site_check import REFRESH_S
from fedretina.kit.startup_kit import open_kit
from fedretina.report.status_page import status_page
from fedretina.storage import write_bytes, write_json

_HEARTBEAT_LOST_S = 45.0  # FLARE's client sends one every 10 s and waits up to 30 s for the answer
_LOOK_S = 5.0
_AT_ONCE = {
    EventType.SYSTEM_START,
    EventType.SYSTEM_END,
    EventType.AFTER_JOB_LAUNCH,
    EventType.JOB_STARTED,
    EventType.JOB_COMPLETED,
    EventType.JOB_ABORTED,
}


class StatusPage(FLComponent):
    """Notes whether this end is connected, and writes its page every minute and at once when something has changed.

    A site is connected while the server answers its heartbeats; that is what FLARE's own server takes for alive, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._files: EndFiles | None = None
        self._engine: Any = None
        self._server = False
        self._started = self._since = time.time()
        self._heard: float | None = None
        self._connected = self._stopped = False
        self._sites: dict[str, float] = {}
        self._warned = ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin at the start of the lasting process; look anew at what may have changed."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._begin(fl_ctx)
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._hear()
        elif event_type in _AT_ONCE and self._engine is not None:
            if event_type == EventType.SYSTEM_END:
                self._stopped = True
                self._write()  # the thread ends with the process
            self._wake.set()

    def _begin(self, fl_ctx: FLContext) -> None:
        try:
            self._engine = fl_ctx.get_engine()
            workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            kit = open_kit(Path(workspace.get_root_dir()))
            self._server = kit.role == "server"
            self._connected = self._server
            self._files = EndFiles(kit)
        except Exception as error:  # noqa: BLE001 - the service is worth more than its page
            self._warn(error)
            return
        threading.Thread(target=self._keep, name="status-page", daemon=True).start()

    def _hear(self) -> None:
        with self._lock:
            self._heard = time.monotonic()
            if not self._connected:
                self._connected, self._since = True, time.time()
                self._wake.set()

    def _keep(self) -> None:
        written = 0.0
        while not self._stopped:
            woken = self._wake.wait(_LOOK_S)
            self._wake.clear()
            if self._look() or woken or time.monotonic() - written >= REFRESH_S:
                self._write()
                written = time.monotonic()

    def _look(self) -> bool:
        """Whether the connection, or which sites are connected, has changed."""
        now = time.time()
        with self._lock:
            if self._server:
                there = {client.name for client in self._engine.get_clients()}
                changed = there != set(self._sites)
                self._sites = {name: self._sites.get(name, now) for name in sorted(there)}
                return changed
            if self._connected and time.monotonic() - (self._heard or 0.0) > _HEARTBEAT_LOST_S:
                self._connected, self._since = False, now
                return True
        return False

    def _write(self) -> None:
        files = self._files
        if files is None:
            return
        try:
            jobs = [] if self._server else sorted(map(str, self._engine.get_all_job_ids()))
            with self._lock:
                process = Process(
                    written=round(time.time(), 1),
                    started=round(self._started, 1),
                    stopped=self._stopped,
                    connected=self._connected,
                    since=round(self._since, 1),
                    sites=dict(self._sites),
                    jobs=jobs,
                )
            write_json(files.process_path, process._asdict(), durable=False)
            write_bytes(files.page, status_page(files.status(True)).encode(), files.page_mode, durable=False)
            self._warned = ""
        except Exception as error:  # noqa: BLE001 - see above
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if words != self._warned:
            self.logger.warning(f"the page of this end is not up to date: {words}")
        self._warned = words
