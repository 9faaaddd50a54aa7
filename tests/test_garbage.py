"""What is in memory is gone through rarely by the garbage collector, and not at all at the end of a process."""

import gc
import subprocess
import sys
import weakref

from fedretina.garbage import CollectByBytes, collect_rarely

ASKED = """
import atexit, gc
from fedretina.garbage import end_quickly
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # called last
end_quickly()
end_quickly()
print(gc.get_freeze_count())
"""


def test_a_process_is_passed_over_at_its_end_and_not_before():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


def test_garbage_is_looked_for_at_each_ten_thousand_objects_or_as_rarely_as_it_was():
    before = gc.get_threshold()
    try:
        for first, then in ((700, 10_000), (20_000, 20_000)):
            gc.set_threshold(first, *before[1:])
            collect_rarely()
            assert gc.get_threshold() == (then, *before[1:])
    finally:
        gc.set_threshold(*before)


class Record:
    """What refers to itself, as FLARE's records of a message do."""

    def __init__(self, size):
        self.itself, self.bytes = self, bytearray(size)


def test_what_refers_to_itself_goes_as_bytes_pass_and_what_was_there_is_passed_over():
    gc.disable()
    there = gc.get_freeze_count()
    collect = CollectByBytes()
    try:
        assert gc.get_freeze_count() > there + 1000
        left = []
        for _ in range(80):
            record = Record(2**20)
            left.append(weakref.ref(record))
            del record
            collect.note(2**20)
        alive = sum(ref() is not None for ref in left)
        assert alive == 16  # those since the last look, after 64 MB
    finally:
        collect.end()
        gc.enable()
    assert gc.get_freeze_count() == 0
