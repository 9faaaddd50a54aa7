"""What is in memory is gone through rarely by the garbage collector, and not at all at the end of a process."""

import subprocess
import sys

ASKED = """
import atexit, gc
from fedretina.garbage import spare_this_process
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # called last
before = gc.get_threshold()
spare_this_process()
spare_this_process()
print(gc.get_freeze_count(), gc.get_threshold() == (10_000, *before[1:]), gc.isenabled())
"""


def test_a_process_is_passed_over_at_its_end_and_gone_through_rarely_before():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True", "True"]
