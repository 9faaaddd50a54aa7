"""An answer that cannot be unpacked costs its site the step, and not all sites the job.

FLARE ends the server's process of a job at once where a site's answer cannot be unpacked, and nobody learns which site
it was. Here an error reply takes the answer's place. It belongs to no task, since the task's name is in what could not
be read; so FLARE hands it to the controller as an answer to an unknown task, with the site that it has authenticated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.fobs import FOBSContextKey

_log = logging.getLogger(__name__)
UNREADABLE = "FEDRETINA_UNREADABLE"
"""Return code that stands where a site's answer could not be unpacked."""


def go_on_without_what_cannot_be_read() -> None:
    """Have the cells of this process, the server's of a job, live on; a second call changes nothing."""
    plain = cells.decode_payload
    if getattr(plain, "goes_on", False):
        return

    def decode(message: Message, encoding_key: str, fobs_ctx: Mapping[str, Any]) -> None:
        lines = message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC)
        if lines != (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE):
            plain(message, encoding_key, fobs_ctx=fobs_ctx)
            return
        try:
            plain(message, encoding_key, fobs_ctx=fobs_ctx)
            if isinstance(message.payload, Shareable):
                return
            why = type(message.payload).__name__
        except Exception as error:  # noqa: BLE001 - whatever it is, FLARE would end the process
            why = type(error).__name__
        origin = str(message.get_header(MessageHeaderKey.ORIGIN))
        _log.warning("an answer of %s could not be unpacked: %s", origin, why)
        message.payload = _instead(origin, fobs_ctx[FOBSContextKey.CELL].get_fqcn())

    decode.goes_on = True  # type: ignore[attr-defined]
    cells.decode_payload = decode


def _instead(sender: str, receiver: str) -> Shareable:
    peer = FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, FQCN.split(sender)[0], private=False, sticky=False)
    peer.set_prop(ReservedKey.RUN_NUM, FQCN.split(receiver)[-1], private=False, sticky=False)
    reply = make_reply(UNREADABLE)
    reply.set_peer_context(peer)
    reply.set_header(FLContextKey.TASK_NAME, UNREADABLE)  # without any, FLARE's filters fail
    return reply
