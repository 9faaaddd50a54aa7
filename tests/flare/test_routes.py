"""Which messages a server takes from outside; in a federation: tests/provisioned/test_federation.py."""

import pytest
from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey

from fedretina.flare.routes import refusal

ADMIN = "_admin_4f0c8e86-6b5d-4e1c-9f0a-3b1d2c4e5f60"  # as FLARE makes them, but the same in each process of pytest
MAIN, COMMAND = CellChannel.SERVER_MAIN, CellChannel.SERVER_COMMAND


def sent(channel, topic, origin="site-1", to="server", kind=MessageType.REQ, **more):
    names = MessageHeaderKey
    headers = {names.CHANNEL: channel, names.TOPIC: topic, names.ORIGIN: origin, names.DESTINATION: to}
    return Message({**headers, names.MSG_TYPE: kind, **more})


def streamed(channel, topic, **words):
    inside = {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
    return sent(STREAM_CHANNEL, STREAM_DATA_TOPIC, **words, **inside)


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("site-1", sent(MAIN, "register")),
        ("site-1", sent(CellChannel.CELLNET, "bye")),
        ("site-1", sent(CellChannel.CLIENT_MAIN, "", kind=MessageType.REPLY)),
        ("site-1", sent("_net_manager", "peers", kind=MessageType.REPLY)),  # an answer to the console
        ("site-1", streamed(COMMAND, "submit_update", origin="site-1.job", to="server.job")),
        ("site-1.job", streamed(COMMAND, "get_task", origin="site-1.job", to="server.job")),
        ("site-1.job", sent(CellChannel.AUX_COMMUNICATION, "x", origin="site-1.job", to="site-1")),
        ("relay-1", sent(MAIN, "register", origin="relay-1.site-1")),
        ("server.job", sent(CellChannel.CLIENT_COMMAND, "x", origin="server.job", to="site-1.job")),
        ("server.job", sent(CellChannel.SERVER_PARENT_LISTENER, "x", origin="server.job")),
        (ADMIN, sent(CellChannel.HCI, "command", origin=ADMIN)),
    ],
)
def test_what_a_federation_needs_passes(sender, message):
    assert refusal(sender, message) is None


@pytest.mark.parametrize(
    ("sender", "message", "why"),
    [
        ("site-1", sent(MAIN, "heartbeat", origin="site-2"), "another's name"),
        ("site-1", sent(MAIN, "heartbeat", origin="site-10"), "another's name"),
        ("site-1", sent(CellChannel.RETURN_ONLY, "", origin="server", kind=MessageType.REPLY), "another's name"),
        ("site-1", sent(CellChannel.CLIENT_MAIN, "train.shutdown", to="site-2"), "goes to another site"),
        ("site-1", sent(CellChannel.CLIENT_COMMAND, "abort", to="site-2.job"), "goes to another site"),
        ("site-1", sent(MAIN, "register", to="site-2"), "goes to another site"),
        ("site-1", sent(CellChannel.RETURN_ONLY, "", to="site-2", kind=MessageType.REPLY), "goes to another site"),
        (ADMIN, sent(CellChannel.CLIENT_MAIN, "train.shutdown", origin=ADMIN, to="site-2"), "goes to another site"),
        ("site-1", sent("_net_manager", "stop_cell"), "only the server's own"),
        ("site-1", streamed("_net_manager", "stop_cell"), "only the server's own"),
        (ADMIN, sent("_net_manager", "stop_cell", origin=ADMIN), "only the server's own"),
        ("site-1", sent(CellChannel.SERVER_PARENT_LISTENER, "update_run_status"), "only the server's own"),
        ("site-1", sent(COMMAND, "abort", to="server.job"), "only the server's own"),
        ("site-1", streamed(COMMAND, "abort", to="server.job"), "only the server's own"),
        (ADMIN, sent(COMMAND, "submit_update", origin=ADMIN, to="server.job"), "only the server's own"),
        ("site-1", sent(CellChannel.CELLNET, core_cell._TOPIC_BULK), "only the server's own"),
    ],
)
def test_what_nobody_outside_may_send_does_not(sender, message, why):
    assert why in refusal(sender, message)
