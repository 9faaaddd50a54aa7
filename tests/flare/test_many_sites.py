"""A server's process has a thread for each answer that arrives, and keeps none of the memory that it has freed."""

import subprocess
import sys
import threading

import pytest
from nvflare.fuel.f3.streaming.stream_utils import callback_thread_pool

from fedretina.flare.many_sites import take_answers_of

SITES = 70


def test_more_answers_than_flare_has_threads_for_are_taken_at_the_same_moment():
    """Each waits for all: with FLARE's own number of threads nobody would come to the last of them."""
    before = callback_thread_pool._max_workers
    assert before < SITES
    try:
        take_answers_of(SITES)
        together = threading.Barrier(SITES)
        asked = [callback_thread_pool.submit(together.wait, 60.0) for _ in range(SITES)]
        assert sorted(one.result() for one in asked) == list(range(SITES))
        take_answers_of(1)
        assert callback_thread_pool._max_workers > SITES
    finally:
        callback_thread_pool._max_workers = before


def _found(program):
    """What it prints with glibc as it is, and with our settings."""
    settings = "from fedretina.flare.many_sites import give_back_freed_memory; give_back_freed_memory()\n"
    return [
        int(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout)
        for text in (program, settings + program)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_memory_that_is_freed_goes_back_though_something_small_behind_it_stays():
    program = """
import pathlib
def held():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
del_ = bytearray(16 << 20)  # after a large buffer was freed glibc takes the next ones from its heap
del del_
kept, large, before = [], [], held()
for _ in range(32):
    large.append(bytearray(4 << 20))
    kept.append(bytearray(4096))
large.clear()
print(held() - before)
"""
    kept, given_back = _found(program)
    assert kept > 64 << 20
    assert given_back < 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_pieces_of_a_message_lie_where_others_lay_before():
    """A buffer of 1 MB from the system costs 257 page faults each time."""
    program = """
import resource, threading
def pieces():
    for _ in range(100):
        waiting = [bytearray(b"x") * (1 << 20) for _ in range(4)]
        waiting.clear()
def in_threads():
    threads = [threading.Thread(target=pieces) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
in_threads()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
in_threads()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    as_it_is, with_ours = _found(program)
    assert with_ours < 100 * 257 < as_it_is
