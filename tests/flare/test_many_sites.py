"""A server's process has a thread for each answer, passes few at once, and keeps no memory that it has freed."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.streaming.stream_utils import callback_thread_pool
from nvflare.private.defs import TaskConstant
from nvflare.private.fed.server.server_runner import ServerRunner, ServerRunnerConfig

from fedretina.flare import many_sites
from fedretina.flare.many_sites import Places, ask_seldom, take_answers_of

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


def test_few_messages_pass_at_once_and_all_of_them_in_the_end():
    places, passing, most, lock = Places(3, patience_s=60.0), set(), [], threading.Lock()
    full = threading.Event()

    def pass_through(site):
        with places.of(site):
            with lock:
                passing.add(site)
                most.append(len(passing))
                if len(passing) == 3:
                    full.set()
            full.wait(60.0)  # the first two wait for the third, however late its thread begins
            time.sleep(0.01)
            with lock:
                passing.remove(site)

    threads = [threading.Thread(target=pass_through, args=(f"site-{number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert (len(most), max(most)) == (20, 3)


@pytest.fixture
def clock(monkeypatch):
    """Stands still until `now` is set, and counts how often it is looked at."""
    found = SimpleNamespace(now=100.0, looks=0)

    def monotonic():
        now = found.now
        found.looks += 1
        return now

    monkeypatch.setattr(many_sites, "time", SimpleNamespace(monotonic=monotonic))
    return found


def asks(places, site):
    """A thread in which a site asks for a place."""
    thread = threading.Thread(target=places.take, args=(site,), daemon=True)
    thread.start()
    return thread


def waits(thread, clock):
    """Whether a site still has no place once it has looked at the clock some more: twice each time that it tries."""
    enough = clock.looks + 8
    while thread.is_alive() and clock.looks < enough:
        thread.join(0.01)
    return thread.is_alive()


def test_a_slow_line_keeps_nobody_waiting_until_it_is_fast(clock):
    places = Places(1, patience_s=0.25)
    places.take("slow")
    places.take("slow")  # its next message, beside the first
    other = asks(places, "other")
    assert waits(other, clock)
    clock.now += 0.5  # nothing comes from the slow one, which is gone perhaps
    assert not waits(other, clock)
    third = asks(places, "third")
    assert waits(third, clock)  # the other has the place
    places.leave("slow")
    assert not waits(asks(places, "slow"), clock)
    places.leave("other")
    assert not waits(third, clock)
    places.go_on("slow")
    places.leave("third")
    assert waits(asks(places, "fourth"), clock)


def test_a_message_that_goes_on_keeps_its_place_and_nobody_waits_for_ever(clock):
    places = Places(1, patience_s=0.25, more_each_s=1.0)
    places.take("steady")
    other = asks(places, "other")
    for _ in range(4):
        assert waits(other, clock)  # for 0.75 s
        clock.now += 0.25
        places.go_on("steady")
    assert not waits(other, clock)
    places.go_on("never seen")
    assert set(places._heard) == {"steady", "other"}


def test_those_who_came_together_and_waited_long_do_not_pass_together(clock):
    places = Places(2, patience_s=0.25, more_each_s=1.0)
    for site in ("a", "b"):
        places.take(site)
    asking = [asks(places, f"site-{number}") for number in range(8)]
    for passing in (2, 4, 6):
        for _ in range(4):
            looks = clock.looks
            while clock.looks < looks + 8 * len(asking):  # each has tried some times
                time.sleep(0.01)
            assert len(places._heard) == passing
            clock.now += 0.25
            for site in list(places._heard):
                places.go_on(site)


@pytest.mark.parametrize(("sites", "interval"), [(1, 0.5), (16, 0.5), (64, 2.0)])
def test_the_more_sites_the_less_often_each_asks_for_a_task(sites, interval):
    words = dict.fromkeys(("workflows", "task_data_filters", "task_result_filters", "handlers", "components"))
    runner = ServerRunner.__new__(ServerRunner)
    runner.config = ServerRunnerConfig(heartbeat_timeout=60, task_request_interval=0.5, **words)
    ask_seldom(runner, sites)
    _, _, answer = runner._task_try_again()
    assert answer.get_header(TaskConstant.WAIT_TIME) == interval


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
