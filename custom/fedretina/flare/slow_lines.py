"""What FLARE's transport must be told so that large messages arrive over a hospital's slow line, and once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.stream_types import Stream, StreamError
from nvflare.fuel.utils.config_service import ConfigService

_PIECE = byte_streamer.STREAM_CHUNK_SIZE
_ON_ITS_WAY = 2 * 2**20
_SEND_AGAIN_S = 30.0
_FAST = 4 * 2**20  # bytes a second: 32 Mbit/s
# FLARE takes pieces of up to 4 MB with their headers, but the server's lasting process grows with them: at 64 sites it
# takes 301 MB with pieces of 1 MB, 342 with these and 535 with such of 3.5 MB (benchmarks/many_sites.py).
_LARGE_PIECE = 3 * 2**19
_TELLS = 8 * 2**20  # what must have been acknowledged before it says that a line is fast
_BEFORE_PROGRESS = 8  # what FLARE's cell is given with a request before it is told whether to wait on


def wait_for_slow_lines() -> None:
    """Have FLARE in this process send nothing twice that is still on its way over a slow line, and little at a time.

    FLARE sends a piece of 1 MB again when it has not been acknowledged within 5 s, and asks for an acknowledgement
    after each 16 MB alone: at 10 Mbit/s a third of what was sent went twice, at 2 Mbit/s all of it. Here each piece is
    acknowledged, and sent again after 30 s, which is what a message costs that a connection loses when it breaks.

    FLARE lets 64 MB of each message go before it waits for an acknowledgement, and its websockets take whatever they
    are given: a whole chunk lay in the memory of the server's lasting process, for each site, and went twice where the
    line took longer for it than those 30 s. Here a message waits once 3 MB of it are on their way. A kit's own
    `comm_config.json` goes before these.

    Such small pieces cost a fast line more than their bytes do: they are larger to a peer that has just taken 32 Mbit/s
    (`FittedTask`).
    """
    comm = CommConfigurator()
    byte_streamer.TxTask = FittedTask
    FittedTask.may_be_large = comm.get_streaming_chunk_size(_PIECE) == _PIECE
    for name, ask, ours in (
        ("streaming_window_size", comm.get_streaming_window_size, _ON_ITS_WAY),
        ("streaming_ack_interval", comm.get_streaming_ack_interval, _PIECE),
        ("streaming_retry_wait", comm.get_streaming_retry_wait, _SEND_AGAIN_S),
    ):
        # FLARE keeps what it was told first, which is its own default: a process has streamed before it comes here.
        ConfigService._var_values.pop(name, None)
        FittedTask.may_be_large &= ask(ours) == ours


class FittedTask(byte_streamer.TxTask):
    """What FLARE sends one large message by; in pieces of 1.5 MB to a peer to whom the last such message went fast.

    A message to a peer of whom nothing is known, or whose line was slow or broke off, goes in pieces of 1 MB.

    Attributes:
        may_be_large: Whether pieces may be larger: no kit sets sizes or times of its own.
    """

    may_be_large = False

    def __init__(
        self,
        cell: CoreCell,
        chunk_size: int,
        channel: str,
        topic: str,
        target: str,
        headers: dict[str, Any],
        stream: Stream,
        *words: Any,
    ) -> None:
        self._fast: set[str] = vars(cell).setdefault("fedretina_fast", set())
        fast = self.may_be_large and target in self._fast and stream.get_size() > chunk_size
        super().__init__(cell, _LARGE_PIECE if fast else chunk_size, channel, topic, target, headers, stream, *words)
        self._first: tuple[float, int] | None = None

    def handle_ack(self, message: Message) -> None:
        """Note how fast the message gets on."""
        super().handle_ack(message)
        now, taken = time.monotonic(), self.offset_ack
        if self.stopped and taken < self.offset:
            return  # it has just been given up
        if self._first is None:
            self._first = (now, taken)
            return
        seconds, told = now - self._first[0], taken - self._first[1]
        if told < _FAST * seconds and seconds >= _TELLS / _FAST:
            self._fast.discard(self.target)
        elif told >= max(_TELLS, _FAST * seconds):
            self._fast.add(self.target)

    def stop(self, error: StreamError | None = None, notify: bool = True) -> None:
        """Forget that the peer was fast where the message does not arrive."""
        if error is not None:
            self._fast.discard(self.target)
        super().stop(error, notify)


def wait_while_fetched(cell: Cell, passing: Callable[[], bool]) -> None:
    """Have a cell's requests wait for their reply as long as the arrays that they brought are being fetched.

    FLARE gives a site's answer up after 300 s, however its bytes get on, and sends all of it anew beside the first:
    over a slow line a large one would never arrive. Now the 300 s begin again as long as something moves, and once more
    where the last byte has just gone: the reply follows it.

    Args:
        cell: The sender's; told once.
        passing: Whether any arrays are being fetched, or were to their end a moment ago.
    """
    if "_send_one_request" in vars(cell):
        return
    send = cell._send_one_request

    def patiently(*words: Any, **named: Any) -> Any:
        # By place, as FLARE gives it here, the ninth is what it asks whether to wait on: nothing, in a site.
        return send(*words[:_BEFORE_PROGRESS], **{**named, "progress_wait_cb": passing})

    cell._send_one_request = patiently
