"""Which messages a server takes from outside; in a federation: tests/provisioned/test_federation.py."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.cellnet import core_cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import blob_streamer
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamFuture
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum

from fedretina.flare.one_machine import OneMachine
from fedretina.flare.one_machine_site import OneMachineSite
from fedretina.flare.routes import refusal

ADMIN = "_admin_4f0c8e86-6b5d-4e1c-9f0a-3b1d2c4e5f60"  # as FLARE makes them, but the same in each process of pytest
MAIN, COMMAND = CellChannel.SERVER_MAIN, CellChannel.SERVER_COMMAND
BIG = 300 * 2**20
SAID = SimpleNamespace(get_size=lambda: BIG)


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


def first_piece(size, encoding, sequence=0):
    keys = StreamHeaderKey
    message = streamed(CellChannel.RETURN_ONLY, "x")
    message.payload = b"x"
    message.add_headers({keys.SIZE: size, keys.SEQUENCE: sequence, keys.PAYLOAD_ENCODING: encoding})
    return message


@pytest.mark.attack(
    "a hostile site",
    "messages of one byte that say they have hundreds of megabytes, for which FLARE makes room at once",
    "dropped by the server before any room is made",
)
def test_no_room_is_made_for_what_has_not_come(monkeypatch):
    for encoding in (None, Encoding.BYTES, Encoding.NONE, "x"):
        message = first_piece(BIG, encoding)
        assert "more bytes than it brings" in refusal("site-1", message)
        made = []
        monkeypatch.setattr(blob_streamer, "bytearray", lambda size, made=made: made.append(size) or b"", raising=False)
        assert blob_streamer.BlobTask(StreamFuture(1), SAID).pre_allocated  # what FLARE alone would do
        assert made == [BIG]
    for fits in (first_piece(1, Encoding.BYTES), first_piece(BIG, Encoding.FOBS), first_piece(BIG, None, sequence=1)):
        assert refusal("site-1", fits) is None
    assert not blob_streamer.BlobTask(StreamFuture(1), SAID, preserve_chunks=True).pre_allocated


@pytest.mark.attack(
    "a hostile site",
    "a file in a message, which FLARE would write into a folder of the machine and never erase",
    "not taken; no file is written",
)
@pytest.mark.parametrize("component", [OneMachine, OneMachineSite])
@pytest.mark.attack(
    "a hostile server",
    "a file in a message, which FLARE would write into a folder of the machine and never erase",
    "not taken; no file is written",
)
def test_a_file_in_a_message_is_not_written(tmp_path, monkeypatch, component):
    monkeypatch.setenv("NVFLARE_DATUM_DIR", str(tmp_path / "datums"))
    (tmp_path / "one").write_bytes(bytes(1000))
    message = lobs.dump_to_bytes({"k": Datum.file_datum(str(tmp_path / "one"))})
    monkeypatch.setattr(lobs, "get_datum_dir", lobs.get_datum_dir)  # put back at the end
    component()  # which FLARE builds in all processes of a server, and of a site
    with pytest.raises(ValueError, match="holds a file"):
        lobs.load_from_bytes(message)
    assert not (tmp_path / "datums").exists()
