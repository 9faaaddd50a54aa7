"""Processes that do several runs at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from fedretina.child import end_with
from fedretina.errors import StateError


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, so many at a time, which end with this one, in the middle of their work too.

    After an error inside, what has begun comes to its end, and nothing else begins; Ctrl-C ends that, too.

    Args:
        jobs: Processes.

    Raises:
        StateError: One of them ended abruptly, and nobody inside has taken that up.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)) as workers:
        try:
            yield workers
        except BrokenExecutor as error:
            mended = "with fewer --jobs" if jobs > 1 else "where more memory is free"
            raise StateError(
                "a process of this command ended abruptly, as where memory runs out: what has run is stored; call "
                f"again, {mended}."
            ) from error
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: a run goes on from its last write, as after a kill
                for process in active_children():
                    process.terminate()
            workers.shutdown(cancel_futures=True)  # leaving the executor alone would do the rest first
            raise
