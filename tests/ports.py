"""Ports for servers of tests, which are found now and bound seconds later: nobody else takes them meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

_FIRST, _LAST, _BAND = 20_000, 32_000, 100
"""Below 32768, from where on Linux gives ports to connections, and to whoever asks for any."""


def free_port() -> int:
    """A port of this machine on which nobody listens, and which no other process of any test run is given.

    The same again only after all others of this process's hundred, so it also does where nobody is to listen.

    Raises:
        AssertionError: All of them are taken.
    """
    _, ports = _own_band()
    for port in islice(ports, _BAND - 1):
        with socket.socket() as probe:
            if _bound(probe, "", port):
                return port
    raise AssertionError(f"all {_BAND - 1} ports of this process are taken")


@cache
def _own_band() -> tuple[socket.socket, Iterator[int]]:
    """A band of ports for this process: its first port is held, without a listener, until the process ends."""
    for first in range(_FIRST, _LAST, _BAND):
        held = socket.socket()
        if _bound(held, "127.0.0.1", first):
            return held, cycle(range(first + 1, first + _BAND))
        held.close()
    raise AssertionError("there are no ports left for another process of tests")


def _bound(one: socket.socket, host: str, port: int) -> bool:
    try:
        one.bind((host, port))
    except OSError:
        return False
    return True
