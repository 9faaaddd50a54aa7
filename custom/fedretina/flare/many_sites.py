"""What the server's process of a job needs where many sites answer at once: threads, turns, and memory given back.

FLARE takes each message in one of 64 threads. An answer holds its thread until its tensors have been fetched, and each
reply that brings a piece of them needs another for a moment: 64 answers that arrive together would wait for one another
until their requests time out.

Of each message that is on its way the process holds some chunks. All of them pass one core, so that many at once end no
sooner than a few after one another: only so many do pass at once, whatever the number of sites.

glibc gives each of these threads a heap of its own, and after the first large message it serves buffers of up to 32 MB
from them, which keep what is freed: the process would grow with the number of sites, and with every round. The pieces
of 1 or 1.5 MB that messages are cut into are another matter. Each is copied some times on its way; were each copy's
memory asked of the system and given back, a round would spend more on empty pages than on all bytes that it sends.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nvflare.fuel.f3.streaming.stream_utils import callback_thread_pool
from nvflare.private.fed.server.server_runner import ServerRunner

_OTHER_MESSAGES = 64
_QUESTIONS_A_SECOND = 32
_PLACES = 6
_PATIENCE_S = 4.0  # for a chunk of 16 MB: 32 Mbit/s
_MORE_EACH_S = 120.0  # FLARE and its sites wait 600 s for a chunk
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE, _KEPT = 2**22, 2**25


def take_answers_of(sites: int) -> None:
    """Have FLARE start as many threads as the answers of all sites and their pieces need; they are never fewer.

    Args:
        sites: How many sites the job has.
    """
    # FLARE has no setting for it; Python's pool looks at the number each time it is given work.
    callback_thread_pool._max_workers = max(callback_thread_pool._max_workers, sites + _OTHER_MESSAGES)


def ask_seldom(runner: ServerRunner, sites: int) -> None:
    """Have sites that wait for a task ask for one less often the more of them there are.

    A question costs the server some milliseconds, and with 64 sites that ask twice a second more than all of a round's
    bytes do.

    Args:
        runner: FLARE's, of the job.
        sites: How many sites the job has; up to 16 ask as often as the job says.
    """
    config = runner.config
    config.task_request_interval = max(config.task_request_interval, sites / _QUESTIONS_A_SECOND)


class Places:
    """Lets a few sites' large messages pass at once, in either direction, and has the others wait.

    A site behind a slow line would keep the others waiting and load nothing: when none of its chunks has come for some
    seconds its place is free again, and it takes none until a chunk of it has come in time.

    Args:
        places: How many pass at once.
        patience_s: How long a chunk may take.
        more_each_s: Whoever has waited so long passes beside as many more as there are places, after twice as long
            beside twice as many more, and so on: nobody waits for ever, and who came together does not pass together.
    """

    def __init__(
        self, places: int = _PLACES, patience_s: float = _PATIENCE_S, more_each_s: float = _MORE_EACH_S
    ) -> None:
        self._places, self._patience, self._more_each = places, patience_s, more_each_s
        self._heard: dict[str, float] = {}
        self._slow: set[str] = set()
        self._change = threading.Condition()

    def take(self, site: str) -> None:
        """Wait for a place; not where the site has one, or a slow line."""
        with self._change:
            since = time.monotonic()
            while not self._may_pass(site, time.monotonic() - since):
                self._change.wait(self._patience / 4)
            self._heard[site] = time.monotonic()

    def _may_pass(self, site: str, waited: float) -> bool:
        now, places = time.monotonic(), self._places * (1 + int(waited // self._more_each))
        self._slow.update(one for one, heard in self._heard.items() if now - heard > self._patience)
        return site in self._slow or site in self._heard or len(self._heard.keys() - self._slow) < places

    def go_on(self, site: str) -> None:
        """Note that a chunk has passed; nothing where the site took no place."""
        with self._change:
            if site in self._heard:
                now = time.monotonic()
                in_time = now - self._heard[site] <= self._patience
                (self._slow.discard if in_time else self._slow.add)(site)
                self._heard[site] = now

    def leave(self, site: str) -> None:
        """Let the next one pass."""
        with self._change:
            self._heard.pop(site, None)
            self._change.notify()

    @contextmanager
    def of(self, site: str) -> Iterator[None]:
        """Hold a place meanwhile."""
        self.take(site)
        try:
            yield
        finally:
            self.leave(site)


def give_back_freed_memory() -> None:
    """Have buffers of 4 MB and more come from the system and go back to it, and all threads share one heap.

    Of what is free at the heap's end 32 MB are kept. It changes nothing where the C library is not glibc.
    """
    set_option = _of_glibc("mallopt")
    if set_option is None:
        return
    for option, value in ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT), (_ARENA_MAX, 1)):
        set_option(option, value)


def give_back_now() -> None:
    """Give back what is free anywhere in the heap, between two steps; nothing where the C library is not glibc."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
