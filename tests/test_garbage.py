"""What is in memory is gone through rarely by the garbage collector, and not at all at the end of a process."""

import gc
import subprocess
import sys

from fedretina.garbage import collect_rarely

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
