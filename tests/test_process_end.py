"""What is in memory at the end of a process is passed over by the garbage collector."""

import subprocess
import sys

ASKED = """
import atexit, gc
from fedretina.process_end import end_quickly
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # called last
end_quickly()
end_quickly()
print(gc.get_freeze_count())
"""


def test_it_is_passed_over_at_the_end_and_not_before():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
