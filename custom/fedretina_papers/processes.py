"""Processes that do several runs at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing import active_children, get_context
from typing import TypeVar

from fedretina.child import end_with
from fedretina.errors import StateError

_Name = TypeVar("_Name")
_Result = TypeVar("_Result")


@contextmanager
def pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, so many at a time, which end with this one, in the middle of their work too.

    After an error inside, what has begun comes to its end; Ctrl-C ends that, too.

    Args:
        jobs: Processes. Hand them no more calls than that at a time (`ended`): the executor begins what it holds, also
            after an error.

    Raises:
        StateError: One of them ended abruptly, and nobody inside has taken that up.
    """
    others = {*active_children()}
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)) as workers:
        try:
            yield workers
        except BrokenExecutor as error:
            mended = "with fewer --jobs" if jobs > 1 else "where more memory is free"
            raise StateError(
                "a process of this command ended abruptly, as where memory runs out: what has run is stored; call "
                f"again, {mended}."
            ) from error
        except (KeyboardInterrupt, SystemExit):
            for process in {*active_children()} - others:  # a run goes on from its last write, as after a kill
                process.terminate()
            raise


def ended(
    workers: ProcessPoolExecutor, jobs: int, calls: Iterable[tuple[_Name, Callable[[], _Result]]]
) -> Iterator[tuple[_Name, Future[_Result]]]:
    """Calls as they end; none is handed over before a process is free for it.

    Args:
        workers: A `pool`.
        jobs: Its processes.
        calls: Each with what it is called by; what is called goes to another process, arguments and all.
    """
    waiting, running = iter(calls), dict[Future[_Result], _Name]()
    while True:
        for name, call in islice(waiting, jobs - len(running)):
            running[workers.submit(call)] = name
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future
