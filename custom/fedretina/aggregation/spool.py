"""The answers to a step, with their tensors on disk: the server's memory does not grow with the number of sites."""

from __future__ import annotations

import functools
import logging
import math
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedretina.codecs.encoding import Ways
from fedretina.errors import QuorumError, StateError
from fedretina.exchange.payload import Payload, Tensors, tensors_bytes
from fedretina.plurals import counted
from fedretina.storage import Place, StoredTensors, TensorFile, require_name, write_tensors

_log = logging.getLogger(__name__)
Found = TypeVar("Found")
Visit = Callable[[str, slice, Iterator[tuple[str, NDArray[np.float64]]]], Found]
"""What is done with a stretch of one tensor: key, places in the tensor laid flat, and names and numbers of sites.

The numbers are the visit's own until it asks for the next site's.
"""
Adapt = Callable[[str, str, slice, torch.Tensor], torch.Tensor]
"""Changes some of a site's numbers before they are mixed: site, key, their places in the tensor laid flat, float64."""
_Add = Callable[[NDArray[np.float64], Sequence[tuple[NDArray[Any], float]]], None]

_BLOCK = 2**21  # numbers of all sites that stand side by side at once: 17 MB in float64
_STRETCH = 2**18  # numbers of one site that are worked on at once
_THREADS = min(4, os.cpu_count() or 1)
_AT_ONCE = 4  # sites whose float32 numbers the compiled sum adds in one pass over the total
_COMPILED_FROM = 2**30
"""Numbers of all sites, from which a round saves more than a fifth of a second by the compiled sum. Fewer are not worth
the second that it takes to load and compile, nor its memory."""


class Buffers(threading.local):
    """Memory that a thread uses again for each stretch: to be given fresh pages takes as long as all that is done.

    Args:
        stretches: Room for so many of one type. NumPy asks the kernel for huge pages where all is 4 MB or more.
    """

    def __init__(self, stretches: int = 1) -> None:
        self._stretches = stretches
        self._held: dict[torch.dtype, torch.Tensor] = {}

    def of(self, size: int, dtype: torch.dtype, place: int = 0) -> torch.Tensor:
        """Room for some numbers, at most a stretch, in one of the places; what it held is of no use any more."""
        if dtype not in self._held:
            room = np.empty(self._stretches * _STRETCH * dtype.itemsize, np.uint8)
            self._held[dtype] = torch.from_numpy(room).view(dtype)
        return self._held[dtype][place * _STRETCH : place * _STRETCH + size]


class Spool:
    """Updates of one round, one file per site.

    A spool begins empty: what an interrupted round left behind is erased, since its sites are asked again.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, Mapping[str, Place]] = {}
        self.erase()
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, site: str, tensors: Tensors, stored: StoredTensors | None = None) -> None:
        """Store one site's tensors.

        Args:
            site: Its name.
            tensors: By key.
            stored: Where they lie as they came, if in a file: the spool shares it by a hard link and copies nothing.
        """
        path = self._path(site)
        self._places.pop(site, None)
        if stored is not None and tensors.keys() == stored.places.keys():
            try:
                os.link(stored.path, path)
            except OSError as error:  # another disk, or one that knows no links
                _log.debug("the update of %s is copied: %s", site, error)
            else:
                self._places[site] = stored.places
                return
        write_tensors(path, tensors, {"site": site}, durable=False)

    def holds(self, site: str) -> bool:
        """Whether a site has sent tensors."""
        return self._path(site).exists()

    def read(self, site: str) -> dict[str, torch.Tensor]:
        """All tensors of one site; for small ones."""
        with self._open(site) as file:
            return {key: file.tensor(key) for key in file.keys}

    def discard(self, site: str) -> None:
        """Forget one site's tensors."""
        self._places.pop(site, None)
        self._path(site).unlink(missing_ok=True)

    def tensor(self, site: str, key: str) -> torch.Tensor:
        """One tensor of one site."""
        with self._open(site) as file:
            return file.tensor(key)

    def blocks(self, key: str, sites: Sequence[str]) -> Iterator[torch.Tensor]:
        """The sites' values of one tensor side by side, flat, in stretches that fit into memory.

        Args:
            key: The tensor.
            sites: In the order of the rows.

        Yields:
            [sites, numbers]; together all numbers of the tensor, in order.
        """
        with ExitStack() as held:
            files = [held.enter_context(self._open(site)) for site in sites]
            size = math.prod(files[0].shape(key))
            numbers = max(1, _BLOCK // len(sites))
            for begin in range(0, size, numbers):
                rows = torch.empty(len(sites), min(numbers, size - begin), dtype=files[0].dtype(key))
                for file, row in zip(files, rows, strict=True):
                    file.read_into(key, begin, row)
                yield rows

    def weighted_mean(
        self, weights: Mapping[str, float], like: Mapping[str, torch.dtype], adapt: Adapt | None = None
    ) -> dict[str, torch.Tensor]:
        """Mix the sites' tensors, tensor by tensor: sum_i w_i x_i.

        Sites are walked in the order of their names and summed in float64, so that the order in which they
        answered changes no bit. Whole-number tensors (the official code's leaked counters) are mixed in
        floating point and truncated, as that code does.

        Args:
            weights: By site; every site must have been put.
            like: Type of the result by key; the keys decide what is mixed.
            adapt: Changes a site's numbers first; None takes each as it is.

        Returns:
            By key, one tensor each; memory in use is one model and some megabytes, whatever the number of sites.
        """
        sites = sorted(weights)
        if not like or not sites:  # who sends nothing has no file
            return {}
        buffers = Buffers()
        add: _Add = _add_in_two_passes

        def mix(key: str, which: slice, numbers: Iterator[tuple[str, NDArray[Any]]]) -> None:
            total = buffers.of(which.stop - which.start, torch.float64)
            summed = total.numpy()
            waiting: list[tuple[NDArray[Any], float]] = []
            for site, share in numbers:
                if adapt is not None:
                    share[:] = adapt(site, key, which, torch.from_numpy(share)).numpy()
                if site == sites[0]:
                    np.multiply(share, weights[site], out=summed, dtype=np.float64)
                    continue
                waiting.append((share, weights[site]))
                if len(waiting) == (_AT_ONCE if share.dtype == np.float32 else 1):
                    add(summed, waiting)
                    waiting = []
            add(summed, waiting)
            begin = which.start
            while begin < which.stop:  # the stretch may go over several tensors
                name, at = places[key].at(begin)
                flat = mixed[name].view(-1)
                end = min(which.stop, begin + len(flat) - at)
                flat[at : at + end - begin] = total[begin - which.start : end - which.start]
                begin = end

        with ExitStack() as held:
            files = [held.enter_context(self._open(site)) for site in sites]
            mixed = {key: torch.empty(files[0].shape(key), dtype=like[key]) for key in sorted(like)}
            # What is adapted is told its place in its tensor.
            runs = _behind_one_another(files, list(mixed)) if adapt is None else [[key] for key in mixed]
            places = {run[0]: _Run(run, [mixed[key].numel() for key in run]) for run in runs}
            sizes = {key: run.size for key, run in places.items()}
            if adapt is None and len(sites) * sum(sizes.values()) >= _COMPILED_FROM:
                add = _add_compiled() or add
            _walk(files, sites, sizes, mix, as_stored=add is not _add_in_two_passes)
        return mixed

    def walk(self, sites: Sequence[str], keys: Sequence[str], visit: Visit[Found]) -> list[Found]:
        """Pass over the sites' numbers once, in stretches that stay in the processor's cache, several at a time.

        Args:
            sites: In the order in which a visit meets them.
            keys: Tensors of one shape at all of them.
            visit: Called for each stretch, in any thread.

        Returns:
            What the visits gave, in the order of the keys and, of one, of the stretches.
        """
        with ExitStack() as held:
            files = [held.enter_context(self._open(site)) for site in sites]
            return _walk(files, sites, {key: math.prod(files[0].shape(key)) for key in keys}, visit)

    def erase(self) -> None:
        """Remove all of it."""
        self._places.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self, site: str) -> TensorFile:
        file = TensorFile(self._path(site), self._places.get(site))
        self._places[site] = file.places  # its header is read once, however often a round passes over the updates
        return file

    def _path(self, site: str) -> Path:
        return self._folder / f"{require_name(site, 'site')}.update"


class _Run:
    """Tensors of one type that lie one behind another in the files of all sites: read as if they were one.

    Args:
        keys: In their order.
        sizes: Their numbers.
    """

    def __init__(self, keys: Sequence[str], sizes: Sequence[int]) -> None:
        self._keys = keys
        self._ends = list(accumulate(sizes))
        self.size = self._ends[-1]

    def at(self, number: int) -> tuple[str, int]:
        """Which tensor a number of the run is in, and its place in that, laid flat."""
        which = bisect_right(self._ends, number)
        return self._keys[which], number - (self._ends[which - 1] if which else 0)


def _behind_one_another(files: Sequence[TensorFile], keys: Sequence[str]) -> list[list[str]]:
    """The keys in runs. A network has hundreds of small tensors, and each read of 64 files costs more than mixing one.

    Sites' files may differ in their order: a run ends where they do.
    """
    runs: list[list[str]] = []
    for key in sorted(keys, key=files[0].begin):
        last = runs[-1][-1] if runs else ""
        if last and all(file.begin(key) == file.end(last) and file.dtype(key) is file.dtype(last) for file in files):
            runs[-1].append(key)
        else:
            runs.append([key])
    return runs


def _walk(
    files: Sequence[TensorFile],
    sites: Sequence[str],
    sizes: Mapping[str, int],
    visit: Visit[Found],
    as_stored: bool = False,
) -> list[Found]:
    """As `Spool.walk`, of so many numbers from the begin of each key on; `as_stored` hands float32 over as read.

    So handed over, a site's numbers are the visit's own until it has asked for those of `_AT_ONCE` sites more.
    """
    places = _AT_ONCE if as_stored else 1
    raw, even = Buffers(places), Buffers()

    def numbers(key: str, which: slice) -> Iterator[tuple[str, NDArray[Any]]]:
        size = which.stop - which.start
        dtype = files[0].dtype(key)
        reads = [raw.of(size, dtype, place) for place in range(places)]
        # Once for all sites, since threads wait for each other's Python.
        rooms = [read.view(torch.uint8).numpy().data for read in reads]
        shown = [read.numpy() for read in reads] if as_stored and dtype is torch.float32 else []
        begin = which.start * dtype.itemsize
        # NumPy, since torch would start threads of its own in each of these; it does not know bfloat16.
        values = even.of(size, torch.float64).numpy()
        between = even.of(size, torch.float32) if dtype is torch.bfloat16 else None
        for number, (site, file) in enumerate(zip(sites, files, strict=True)):
            place = number % places
            file.read_bytes(file.begin(key) + begin, rooms[place])
            if shown:
                yield site, shown[place]
                continue
            read = reads[place]
            np.copyto(values, (read if between is None else between.copy_(read)).numpy())
            yield site, values

    def work(key: str, which: slice) -> Found:
        return visit(key, which, numbers(key, which))

    parts = [(key, at, size) for key, size in sizes.items() for at in range(0, size, _STRETCH)]
    with ThreadPoolExecutor(_THREADS) as threads:
        asked = [threads.submit(work, key, slice(at, min(at + _STRETCH, size))) for key, at, size in parts]
        return [one.result() for one in asked]


def _add_in_two_passes(total: NDArray[np.float64], several: Sequence[tuple[NDArray[Any], float]]) -> None:
    """Add weight times values of each to the total, all float64; the values are lost."""
    for values, weight in several:
        np.multiply(values, weight, out=values)
        np.add(total, values, out=total)


@functools.cache
def _add_compiled() -> _Add | None:
    """The same for float32 in one pass for `_AT_ONCE` sites and with the same bits, where Numba is installed.

    NumPy writes cast and product into the cache and reads them again, and the total for every site. The loop keeps all
    three in registers; without `fastmath` the compiler may neither change the order nor round twice at once.
    """
    try:
        import numba
    except ImportError:
        return None

    def one(total: NDArray[np.float64], a: NDArray[np.float32], p: float) -> None:
        for i in range(total.size):
            total[i] += p * np.float64(a[i])

    def four(
        total: NDArray[np.float64],
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        c: NDArray[np.float32],
        d: NDArray[np.float32],
        p: float,
        q: float,
        r: float,
        s: float,
    ) -> None:
        for i in range(total.size):
            first = (total[i] + p * np.float64(a[i])) + q * np.float64(b[i])
            total[i] = (first + r * np.float64(c[i])) + s * np.float64(d[i])

    rows, numbers = ", float32[::1]", ", float64"
    try:
        add_one = numba.njit(f"void(float64[::1]{rows}{numbers})", nogil=True)(one)
        add_four = numba.njit(f"void(float64[::1]{rows * 4}{numbers * 4})", nogil=True)(four)
    except Exception as error:  # noqa: BLE001 - whatever it is, NumPy can do without it
        _log.warning("Numba cannot compile, so that updates are mixed by NumPy: %s", error)
        return None

    def add(total: NDArray[np.float64], several: Sequence[tuple[NDArray[Any], float]]) -> None:
        if len(several) == _AT_ONCE:
            add_four(total, *(values for values, _ in several), *(weight for _, weight in several))
            return
        for values, weight in several:
            if values.dtype == np.float32:
                add_one(total, values, weight)
            else:
                _add_in_two_passes(total, [(values, weight)])

    return add


class StepAnswers:
    """Collects the answers to one attempt at a step; begins empty, and erases what an earlier attempt left behind.

    It judges no answer: what is put here was admitted.

    Attributes:
        spool: The tensors of the accepted answers.
        scalars: The scalars of the accepted answers, by site.
        ways: What came in the place of controls, by site; empty where nothing travels encoded.
        refused: Why a site has no part in the step, by site.

    Args:
        folder: Of the spool.
    """

    def __init__(self, folder: Path) -> None:
        self.spool = Spool(folder)
        self.scalars: dict[str, dict[str, float]] = {}
        self.refused: dict[str, str] = {}
        self.ways: dict[str, Ways] = {}
        self._bytes: dict[str, int] = {}
        self._unstored: StateError | None = None

    def put(
        self,
        site: str,
        payload: Payload,
        size: int | None = None,
        ways: Ways = MappingProxyType({}),
        stored: StoredTensors | None = None,
    ) -> None:
        """Take one site's answer; an earlier refusal of that site is forgotten.

        Args:
            site: Its name.
            payload: The answer, decoded.
            size: Bytes of its tensors as they came; None where that is how they are here.
            ways: What came in the place of controls.
            stored: Where the tensors lie, if in a file.

        Raises:
            StateError: The disk is full; the answer is dropped.
        """
        if payload.tensors:
            try:
                self.spool.put(site, payload.tensors, stored)
            except StateError as error:
                self._unstored = error
                raise
        self._bytes[site] = tensors_bytes(payload.tensors) if size is None else size
        self.ways[site] = ways
        self.scalars[site] = {name: float(payload.scalars[name]) for name in sorted(payload.scalars)}
        self.refused.pop(site, None)

    def keep(self, record: Mapping[str, Any], asked: Collection[str]) -> None:
        """Begin with the answers to a step that was closed before.

        Args:
            record: The step's record.
            asked: Sites that are asked once more; why they had no part is forgotten.
        """
        self.scalars = {site: dict(scalars) for site, scalars in record["scalars"].items()}
        self.refused = {site: why for site, why in record["refused"].items() if site not in asked}
        self._bytes = dict(record["bytes_up"])

    def refuse(self, site: str, why: str) -> None:
        """Note why a site has no part, unless it has answered already."""
        if site not in self.scalars:
            self.refused[site] = why

    def withdraw(self, site: str, why: str) -> None:
        """Take back an answer that was put here: it does not count after all."""
        self.spool.discard(site)
        self.scalars.pop(site, None)
        self.ways.pop(site, None)
        self._bytes.pop(site, None)
        self.refuse(site, why)

    def require(self, quorum: int, step: str) -> None:
        """Refuse to go on with too few answers.

        Args:
            quorum: Fewest accepted answers.
            step: Name of the step.

        Raises:
            QuorumError: There are fewer.
            StateError: There are fewer, and one of them because the disk is full.
        """
        if len(self.scalars) >= quorum:
            return
        if self._unstored is not None:  # asking again would let every site train for a disk that is full
            raise self._unstored
        reasons = "; ".join(f"{site}: {why}" for site, why in sorted(self.refused.items())) or "no answer"
        accepted = counted(len(self.scalars), "update was", "updates were")
        sentence = f"{step}: {accepted} accepted, the quorum is {quorum} ({reasons})."
        raise QuorumError(sentence).telling(sentence)  # the reasons are the words that sites let go

    def record(self) -> dict[str, Any]:
        """The answers' part in the step's record, sites in alphabetical order: scalars, refusals, bytes."""
        return {
            "scalars": dict(sorted(self.scalars.items())),
            "refused": dict(sorted(self.refused.items())),
            "bytes_up": dict(sorted(self._bytes.items())),
        }
