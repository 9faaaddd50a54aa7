"""Which messages a server takes from outside: in the sender's own name, to the server, on a line that it may use.

FLARE's server asks each message for a signed token, and passes it on to whom it names. That is not enough. With every
answer the server sends its own token along, even to one who has not registered, and lets a message with this token come
from anyone. And a site asks nobody who sent a command: each certificate of the consortium, a member's too, could so end
the jobs, the sites and the server itself.

FLARE also makes room at once for as many bytes as a message says that it has, unless it is in FLARE's own form, and
writes what is called a file into a folder before anybody looks at it, and leaves it there.
"""

from __future__ import annotations

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet import core_cell, net_agent
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.fuel.utils.fobs import lobs

_NETWORK = net_agent._CHANNEL  # FLARE's console for developers: stops cells, sends them elsewhere, shows threads
_BULK = core_cell._TOPIC_BULK  # messages in a message, which would pass this; what sends them is not used here
_ASKED_BY_SITES = frozenset({ServerCommandNames.GET_TASK, ServerCommandNames.SUBMIT_UPDATE})


def refusal(sender: str, message: Message) -> str | None:
    """Say why the server does not take a message; None where it does.

    Args:
        sender: Name of the connection's other end, which its certificate was held against.
        message: The message, before anything of it but the headers was looked at.
    """
    family = _family(sender)
    if family == FQCN.ROOT_SERVER:  # the processes of the server's own jobs
        return None
    if _family(message.get_header(MessageHeaderKey.ORIGIN)) != family:
        return "it comes in another's name"
    if _family(message.get_header(MessageHeaderKey.DESTINATION)) not in (FQCN.ROOT_SERVER, family):
        return "it goes to another site, and all that sites and admins say is for the server"
    if _claims_room(message):
        return "it says that it has more bytes than it brings"
    admin = is_valid_admin_client_name(family)
    lines = [(MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC), (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC)]
    asked = ((message.get_header(one), message.get_header(other)) for one, other in lines)
    asks = message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ
    if asks and not all(_may_ask(admin, channel, topic) for channel, topic in asked):
        return "it asks what only the server's own processes ask"
    return None


def take_no_files() -> None:
    """Have this process read no message that holds a file; FLARE uses none, nor does this package."""
    lobs.get_datum_dir = _no_folder


def _no_folder() -> str:
    raise ValueError("the message holds a file, which is not taken")


def _claims_room(message: Message) -> bool:
    """Whether FLARE would make room for more than has come: what is not in its own form comes in one piece here."""
    size = message.get_header(StreamHeaderKey.SIZE)
    return (
        isinstance(size, int)
        and message.get_header(StreamHeaderKey.SEQUENCE) == 0
        and message.get_header(StreamHeaderKey.PAYLOAD_ENCODING) != Encoding.FOBS
        and size > len(message.payload or b"")
    )


def _family(name: object) -> str:
    return str(FQCN.split(FQCN.normalize(str(name or "")))[0])


def _may_ask(admin: bool, channel: object, topic: object) -> bool:
    if channel == CellChannel.SERVER_COMMAND:
        return not admin and topic in _ASKED_BY_SITES
    if channel == CellChannel.CELLNET:
        return topic != _BULK
    return channel not in (CellChannel.SERVER_PARENT_LISTENER, _NETWORK)
