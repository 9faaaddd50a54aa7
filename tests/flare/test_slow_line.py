"""A hospital's slow line: arrays over FLARE's own connections, through a relay that takes a megabyte a second."""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ports import free_port


class SlowLine:
    """A line to a port on this machine that takes some bytes a second upwards; it counts them."""

    def __init__(self, port, rate):
        self.sent, self._port, self._rate = 0, port, rate
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


def sent_over(scheme, port):
    """How often what a site sends goes over a slow line, by one of FLARE's ways to a server."""
    numbers = 6_000_000
    line = SlowLine(port, rate=1_000_000)
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
