"""A hospital's slow line: arrays over FLARE's own connections, through a relay that takes a megabyte a second.

And how large the pieces are that they are cut into: by how fast the last message to the same peer went.
"""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.utils.config_service import ConfigService

from fedretina.flare import slow_lines
from ports import free_port


class SlowLine:
    """A line to a port on this machine that takes some bytes a second upwards, after the first fast ones; it counts."""

    def __init__(self, port, rate, fast):
        self.sent, self._port, self._rate, self._fast = 0, port, rate, fast
        self._listening = socket.create_server(("localhost", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self):
        with suppress(OSError):  # the test is over
            while True:
                near = self._listening.accept()[0]
                try:
                    far = socket.create_connection(("localhost", self._port))
                except OSError:  # nobody listens there yet: the caller tries again
                    near.close()
                    continue
                near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
                for one, other, rate in ((near, far, self._rate), (far, near, None)):
                    threading.Thread(target=self._carry, args=(one, other, rate), daemon=True).start()

    def _carry(self, one, other, rate):
        with suppress(OSError):
            while data := one.recv(2**14):
                if rate is not None:
                    self.sent += len(data)
                    if self.sent > self._fast:
                        time.sleep(len(data) / rate)
                other.sendall(data)

    def close(self):
        self._listening.close()


END = """
import sys
import time
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply, new_cell_message
from fedretina.exchange.payload import Payload, Stamp
from fedretina.flare import plain_bytes, slow_lines
from fedretina.flare.wire import pack_payload, unpack_payload

def take(message):
    if message.get_header(MessageHeaderKey.TOPIC) == "hello":
        plain_bytes.speak(FLContext())
        return make_reply(ReturnCode.OK)
    print(int(unpack_payload(message.payload).tensors["k"].sum()), flush=True)
    return make_reply(ReturnCode.OK)

name, scheme, port, numbers = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
slow_lines._SEND_AGAIN_S = 15.0  # half of what it is
plain_bytes.register()
cell = Cell(name, f"{scheme}://localhost:{port}", False, {})
if name == "server":
    cell.register_request_cb(channel=CellChannel.SERVER_COMMAND, topic="*", cb=take)
cell.start()
while not cell.is_backbone_ready():  # a loaded machine takes a while to connect
    time.sleep(0.05)
print("ready", flush=True)
if name != "server":
    to = {"channel": CellChannel.SERVER_COMMAND, "target": "server", "timeout": 90.0}
    cell.send_request(**to, topic="hello", request=new_cell_message({}, {}))
    plain_bytes.speak(FLContext())  # as in a job: its processes have sent and taken something before
    sent = Payload({"k": torch.ones(numbers)}, {}, Stamp("r", "train", 0, 0, "d" * 64))
    reply = cell.send_request(**to, topic="submit", request=new_cell_message({}, pack_payload(sent, plainly=True)))
    print(reply.get_header(MessageHeaderKey.RETURN_CODE), flush=True)
sys.stdin.read()
"""
"""A server or a site, each in a process of its own: cells of one process do not send each other anything."""


@pytest.mark.flare
def test_over_a_slow_line_nothing_is_sent_twice():
    """24 MB in 24 s, over both ways to a server at the same time.

    With FLARE's own patience of 5 s, and an acknowledgement for each 16 MB alone, a third of it went twice over TCP. A
    websocket of FLARE's takes all at once: what had waited for 15 s before it went, went twice.
    """
    schemes = ("http", "tcp")
    with ThreadPoolExecutor(len(schemes)) as at_once:
        sent = dict(zip(schemes, at_once.map(sent_over, schemes, [free_port() for _ in schemes]), strict=True))
    assert all(1 <= times < 1.05 for times in sent.values()), sent


@pytest.mark.flare
def test_on_a_line_that_becomes_slow_nothing_is_sent_twice():
    """80 MB, 64 of them at the machine's own speed: the pieces are large when the line goes down to 1 MB a second."""
    assert 1 <= sent_over("http", free_port(), 20_000_000, 64_000_000) < 1.05


class Peer:
    """What a sender needs of FLARE's cell: it keeps what is sent."""

    def __init__(self):
        self.pieces = []

    def fire_and_forget(self, channel, topic, target, message, **words):
        self.pieces.append(len(message.payload))
        return {target: ""}


class Bytes:
    """Some bytes, as a stream of FLARE's."""

    def __init__(self, size):
        self._left = self._size = size

    def get_size(self):
        return self._size

    def read(self, size):
        size = min(size, self._left)
        self._left -= size
        return bytes(size)


def test_pieces_are_large_to_a_peer_that_took_the_last_ones_fast(monkeypatch):
    """16 MB to a peer of which nothing is known, to one that took them at 32 Mbit/s, and to one that slowed down."""
    monkeypatch.setattr(byte_streamer, "TxTask", byte_streamer.TxTask)  # of other tests in this process
    monkeypatch.setattr(ConfigService, "_var_values", dict(ConfigService._var_values))
    slow_lines.wait_for_slow_lines()
    now = [0.0]
    monkeypatch.setattr(slow_lines.time, "monotonic", lambda: now[0])
    cell, mega = Peer(), 2**20

    def sent(seconds, target="site-1", size=16, error=None):
        """Sizes of the pieces of a message of which each MB is acknowledged; 16 of them take so long."""
        cell.pieces.clear()
        task = slow_lines.FittedTask(cell, mega, "c", "t", target, {}, Bytes(size * mega), True, False, False)
        task.window_size = 2**30  # all at once
        task.send_loop()
        for at in range(1, size + 1):
            now[0] += seconds / 16
            task.handle_ack(Message({StreamHeaderKey.OFFSET: at * mega, StreamHeaderKey.SEQUENCE: at - 1}))
        if error is not None:
            task.stop(error, notify=False)
        return max(cell.pieces) / mega, sum(cell.pieces) / mega

    assert sent(8.0) == (1.0, 16.0)
    assert sent(3.9) == (1.0, 16.0)
    assert sent(3.9) == (1.5, 16.0)
    assert sent(3.9, "site-2") == (1.0, 16.0)  # another's line
    assert sent(8.0) == (1.5, 16.0)
    assert sent(3.9) == (1.0, 16.0)
    assert sent(3.9, error=StreamError("it broke off")) == (1.5, 16.0)
    assert sent(3.9) == (1.0, 16.0)
    assert sent(3.9, size=1) == (1.0, 1.0)
    assert sent(20.0, size=5) == (1.5, 5.0)  # too little to tell that a line is fast, and enough that it is slow
    assert sent(3.9) == (1.0, 16.0)
    kits = {"streaming_window_size": 4 * mega, "streaming_retry_wait": 5.0, "streaming_ack_interval": 16 * mega}
    for name, value in kits.items():  # a kit that sets one goes its own way
        with monkeypatch.context() as kit:
            kit.setattr(CommConfigurator, f"get_{name}", lambda self, default, value=value: value)
            slow_lines.wait_for_slow_lines()
            assert sent(3.9) == (1.0, 16.0)
    slow_lines.wait_for_slow_lines()
    assert sent(3.9) == (1.5, 16.0)


def sent_over(scheme, port, numbers=6_000_000, fast=0):
    """How often what a site sends goes over a slow line, by one of FLARE's ways to a server."""
    line = SlowLine(port, rate=1_000_000, fast=fast)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def end(name, at):
        return subprocess.Popen([sys.executable, "-c", END, name, scheme, str(at), str(numbers)], **pipes)

    with end("server", port) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            with end("site-1", line.port) as site:
                try:
                    assert [site.stdout.readline() for _ in range(2)] == ["ready\n", "ok\n"]
                finally:
                    site.kill()
            assert server.stdout.readline() == f"{numbers}\n"
        finally:
            server.kill()
            line.close()
    return line.sent / (4 * numbers)
