"""At a site: saying in its log that a second machine has its kit, whether this one stays or is the one refused."""

from __future__ import annotations

import threading
import time
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.endpoint import Endpoint, EndpointMonitor
from nvflare.fuel.f3.message import Message

from fedretina.flare.routes import take_no_files
from fedretina.kit.second_machine import CHANNEL, ONGOING_S, REFUSED, TOPIC
from fedretina.told import one_line


class OneMachineSite(FLComponent, EndpointMonitor):
    """Writes into the site's log what the server says of a second machine with its kit: at once, then once a minute."""

    def __init__(self) -> None:
        super().__init__()
        take_no_files()
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin before the site registers; the processes of its jobs build this too, and never start it.

        Raises:
            UnsafeComponentError: FLARE has another shape than this was written for; the site does not start then.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._begin(fl_ctx.get_prop(FLContextKey.SITE_OBJ))

    def _begin(self, client: Any) -> None:
        try:
            cell = client.cell.core_cell
            cell.communicator.register_monitor(self)
            cell.register_request_cb(CHANNEL, TOPIC, self._told)
        except AttributeError as error:
            raise UnsafeComponentError(
                f"this FLARE is not the one that {type(self).__name__} was written for ({error}): install the version "
                "of requirements.lock."
            ) from error

    def state_change(self, endpoint: Endpoint) -> None:
        """Look at the handshake of a new connection: a server that refuses this machine says so in it."""
        self._say("refused", endpoint.get_prop(REFUSED))

    def _told(self, message: Message) -> Message:
        self._say("stays", message.payload.get("words") if isinstance(message.payload, dict) else None)
        return make_reply(ReturnCode.OK)

    def _say(self, role: str, sentence: object) -> None:
        if not isinstance(sentence, str):
            return
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(role, -ONGOING_S) < ONGOING_S:
                return
            self._said[role] = now
        self.logger.warning(one_line(sentence))
