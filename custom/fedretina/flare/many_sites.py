"""What the server's process of a job needs where many sites answer at the same moment: threads, and memory given back.

FLARE takes each message in one of 64 threads. An answer holds its thread until its tensors have been fetched, and each
reply that brings a piece of them needs another for a moment: 64 answers that arrive together would wait for one another
until their requests time out.

glibc gives each of these threads a heap of its own, and after the first large message it serves buffers of up to 32 MB
from them, which keep what is freed: the process would grow with the number of sites, and with every round. The pieces
of 1 MB that FLARE cuts messages into are another matter. Each is copied some times on its way; were each copy's memory
asked of the system and given back, a round would spend more on empty pages than on all bytes that it sends.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from nvflare.fuel.f3.streaming.stream_utils import callback_thread_pool

_OTHER_MESSAGES = 64
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGE, _KEPT = 2**22, 2**25


def take_answers_of(sites: int) -> None:
    """Have FLARE start as many threads as the answers of all sites and their pieces need; they are never fewer.

    Args:
        sites: How many sites the job has.
    """
    # FLARE has no setting for it; Python's pool looks at the number each time it is given work.
    callback_thread_pool._max_workers = max(callback_thread_pool._max_workers, sites + _OTHER_MESSAGES)


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
