"""Arrays of a payload travel as plain bytes in large chunks, where both ends know how.

FLARE turns each array into a zip file with checksums and serves it in pieces of 2 MB. A payload's arrays are of a type
of their own here, which FLARE's serialiser gives to `PlainDecomposer`: their bytes follow one another without a copy of
the whole, in chunks of 16 MB, each fetched by the receiver as FLARE's own downloads are. Everything above the
serialiser, such as filters and ledger, sees NumPy arrays as before.

What a peer says of its arrays is checked before a byte is fetched, and what comes is held against what it said. A
refusal takes the array's place in the message, so that whoever unpacks it can say it in a sentence: an exception here
would end the server's process.

Where two processes hand files over (`handover`), a message also names a file that holds the bytes; a receiver that does
not take it fetches them as ever.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.streaming.download_service import (
    Consumer,
    Downloadable,
    ProduceRC,
    download_object,
    request_download_chunk,
)
from nvflare.fuel.f3.streaming.obj_downloader import ObjectDownloader
from nvflare.fuel.f3.streaming.transfer_progress import DEFAULT_STREAMING_IDLE_TIMEOUT, STREAMING_IDLE_TIMEOUT
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.app_config_utils import get_positive_float_var
from nvflare.fuel.utils.class_loader import get_class_name
from nvflare.fuel.utils.fobs import dots
from nvflare.fuel.utils.fobs import fobs as registry
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager, DatumType

from fedretina.errors import RefusedError, SettingsError
from fedretina.flare.array_table import TYPES, Form, PlainArray, Table, address_of, joined, root_of
from fedretina.flare.handover import WORTH_A_FILE, Filling, Handover
from fedretina.flare.many_sites import Places
from fedretina.flare.slow_lines import wait_for_slow_lines, wait_while_fetched
from fedretina.garbage import CollectByBytes

_log = logging.getLogger(__name__)
FORMAT = 1
"""Of the bytes on the wire; a peer that names another one, or none, is sent FLARE's own."""
DOT = 211
"""FLARE's one-byte number of a kind of data; FLARE 2.9 uses 1 to 6."""
_SPEAKS = "fedretina_plain_bytes"
_CHUNK = 16 * 2**20
_LARGEST = 8 * 2**30  # before the network is known: the first order
_AT_ONCE = 3  # messages of one site: an answer, the same once more, and one that is given up
_REQUEST_S = 600.0  # how long one chunk may take, as in FLARE's own downloads
_REPLY_S = 60.0  # how long a receiver that asks for nothing more may take to reply
_LET_GO_S = 10.0
_AT = "at"
_LEAVING, _ARRIVED = "fedretina_leaving", "fedretina_arrived"


def speak(fl_ctx: FLContext) -> None:
    """Tell peers, with all that this process asks and answers from now on, that it takes plain bytes."""
    register()
    wait_for_slow_lines()
    fl_ctx.set_prop(_SPEAKS, FORMAT, private=False, sticky=True)


def understood(fl_ctx: FLContext) -> bool:
    """Whether the peer of this exchange has said so."""
    peer = fl_ctx.get_peer_context()
    return peer is not None and peer.get_prop(_SPEAKS) == FORMAT


def register() -> PlainDecomposer:
    """Have FLARE's serialiser know such arrays in this process.

    Returns:
        The process's decomposer.

    Raises:
        SettingsError: FLARE, or another package, uses the same number for something else.
    """
    fobs.register(PlainDecomposer)
    found = fobs.get_dot_handler(DOT)
    if not isinstance(found, PlainDecomposer):
        raise SettingsError(f"FLARE's data type {DOT} is taken by {type(found)}: use the FLARE of the lock.")
    if not isinstance(fobs.get_dot_handler(dots.NUMPY_DOWNLOAD), OwnForm):
        # FLARE's registry keeps who came first.
        registry._decomposers[get_class_name(np.ndarray)] = registry._dot_handlers[dots.NUMPY_DOWNLOAD] = OwnForm()
    return found


class OwnForm(NumpyArrayDecomposer):
    """Arrays in FLARE's own form, of zip files: nobody can tell how much they hold before they are unpacked.

    They are sent to a peer of another version, and taken from nobody: who speaks plain bytes is sent these.
    """

    def process_datum(self, datum: Datum, manager: DatumManager) -> None:
        """Fetch nothing."""

    def recompose(self, data: Any, manager: DatumManager | None = None) -> Any:
        """The refusal in the array's stead."""
        return RefusedError("its tensors came in FLARE's own form: server and site must run the same fedretina.")


def plain(array: np.ndarray) -> np.ndarray:
    """The same numbers as an array that travels plainly; of a type that cannot, the array itself."""
    return np.ascontiguousarray(array).reshape(array.shape).view(PlainArray) if array.dtype.str in TYPES else array


def in_one_buffer(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy arrays behind one another, once for all receivers: each chunk is then a part of the buffer.

    Where processes hand files over, the buffer is a file, if there is room for it on the disk.

    Args:
        arrays: By key.

    Returns:
        The same numbers under the same keys, read-only.
    """
    fit = {key: array for key, array in arrays.items() if array.dtype.str in TYPES}
    table = Table.of(list(fit.values()))
    parts, handover = table.parts(list(fit.values())), register().handover
    buffer: np.ndarray | None = None
    if handover is not None and table.size >= WORTH_A_FILE:
        try:
            buffer = handover.put(parts)
        except OSError as error:
            _log.warning("nothing can be handed over, so it is sent: %s", error)
    if buffer is None:
        buffer = np.concatenate([np.empty(0, np.uint8), *parts])
        buffer.flags.writeable = False
    packed = dict(zip(fit, table.views(buffer), strict=True))
    return {key: packed.get(key, array) for key, array in arrays.items()}


def leaving(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays in the form in which they travel plainly, those of `in_one_buffer` as they are."""
    if register().handover is not None and not all(isinstance(array, PlainArray) for array in arrays.values()):
        return in_one_buffer(arrays)
    return {key: plain(array) for key, array in arrays.items()}


def lying(arrays: Mapping[str, np.ndarray]) -> tuple[Path, dict[str, int]] | None:
    """The file that arrays came into, all of them, and where each begins in it; None where there is no such file."""
    if not all(isinstance(one, PlainArray) and one.flags.c_contiguous for one in arrays.values()):
        return None  # of a peer that speaks FLARE's own form, or a list of numbers in an array's place
    roots = {id(root): root for root in map(root_of, arrays.values())}
    if len(roots) != 1:
        return None
    (root,) = roots.values()
    path = Handover.path(root)
    return None if path is None else (path, {key: address_of(one) - address_of(root) for key, one in arrays.items()})


class PlainDecomposer(fobs.Decomposer):
    """Sends and fetches the bytes of `PlainArray`s.

    Attributes:
        largest: Most bytes that the arrays of one message may claim to have; smaller once the network is known.
        handover: Where files are handed over, to and from processes that have the same; None where all is sent.
        arrivals: Where bytes that come in are written as they come; None keeps them in memory.
        at_server: Whether this is the server of a run, which holds its sites to more.
        garbage: Looks for garbage as bytes pass; None leaves it to Python.
        places: Of the large messages, to sites and from them, that pass the server of a run at once.
    """

    def __init__(self) -> None:
        self.handover: Handover | None = None
        self.arrivals: Handover | None = None
        self.garbage: CollectByBytes | None = None
        self.places = Places()
        self._fetching: Counter[str] = Counter()
        self._offered: list[Leaving] = []
        self._lock = threading.Lock()
        self.be_site()

    def be_site(self) -> None:
        """Take messages of any size that a network may have."""
        self.largest, self.at_server = _LARGEST, False

    def be_server(self, largest: int) -> None:
        """Take messages of a run's size alone, and few of one site at once.

        Args:
            largest: Most bytes of an answer's arrays; 0 before the run is open, when nobody was asked anything.
        """
        self.largest, self.at_server = largest, True

    def supported_type(self) -> type[PlainArray]:
        """The arrays' type."""
        return PlainArray

    def supported_dots(self) -> list[int]:
        """FLARE's number of what says where the bytes are."""
        return [DOT]

    def decompose(self, target: PlainArray, manager: DatumManager | None = None) -> Any:
        """An array's place among those of the message; outside a message that has a sender, the array itself."""
        context = {} if manager is None else manager.fobs_ctx
        if manager is None or context.get(fobs.FOBSContextKey.CELL) is None:
            return [target.dtype.str, list(target.shape), target.tobytes()]
        leaving = context.setdefault(_LEAVING, [])
        if not leaving:
            manager.register_post_cb(self._offer)
        leaving.append(target)
        return len(leaving) - 1

    def _offer(self, manager: DatumManager) -> None:
        if manager.get_error():
            return
        context = manager.fobs_ctx
        places = self.places if self.at_server else None
        cell, leaving = context[fobs.FOBSContextKey.CELL], Leaving(context[_LEAVING], self._note, places)
        timeout = get_positive_float_var(STREAMING_IDLE_TIMEOUT, DEFAULT_STREAMING_IDLE_TIMEOUT)
        receivers = context.get(fobs.FOBSContextKey.NUM_RECEIVERS) or 1
        wait_while_fetched(cell, self.passing)
        ref = ObjectDownloader(cell=cell, timeout=timeout, num_receivers=receivers).add_object(leaving)
        with self._lock:
            self._offered = [one for one in self._offered if one.held or one.passing] + [leaving]
        words = {"from": cell.get_fqcn(), "ref": ref, "arrays": leaving.table.words()}
        if self.handover is not None and (file := leaving.file) is not None:
            words |= {"here": self.handover.here, "file": file}
        manager.add_datum(Datum(DatumType.TEXT, json.dumps(words), dot=DOT))

    def passing(self) -> bool:
        """Whether any arrays that this process has offered are being fetched, or a reply to them may be on its way."""
        with self._lock:
            return any(leaving.passing for leaving in self._offered)

    def process_datum(self, datum: Datum, manager: DatumManager) -> None:
        """Fetch the bytes, before the message that they belong to is read.

        Raises:
            RuntimeError: A task's bytes could not be fetched; FLARE asks for the task again. Nothing is raised for an
                answer's, since FLARE would end the job.
        """
        try:
            found: list[np.ndarray] | RefusedError = self._fetch(datum.value, manager.fobs_ctx)
        except RefusedError as refusal:
            found = refusal
        except Exception as error:
            if not self.at_server:
                raise
            # FLARE trusts what its own protocol brings, and ends the server's process where that is not as it should.
            _log.warning("an answer's tensors could not be taken: %s", type(error).__name__)
            found = RefusedError(f"its tensors could not be taken ({type(error).__name__}).")
        manager.fobs_ctx[_ARRIVED] = found

    def _note(self, size: int) -> None:
        if self.garbage is not None:
            self.garbage.note(size)

    @contextmanager
    def _one_of(self, site: str, size: int) -> Iterator[None]:
        """Be one of the few messages that a site may send at once, or it could take all threads and fill the disk."""
        with self._lock:
            if self._fetching[site] >= _AT_ONCE:
                raise RefusedError(f"it sends more than {_AT_ONCE} messages at once.")
            self._fetching[site] += 1
        try:
            with self.places.of(site) if size >= WORTH_A_FILE else nullcontext():
                yield
        finally:
            with self._lock:
                self._fetching[site] -= 1
                self._fetching += Counter()  # those at 0 go

    def _fetch(self, text: object, context: Mapping[str, Any]) -> list[np.ndarray]:
        try:
            words = json.loads(str(text))
            sender, ref, table = words["from"], words["ref"], Table.read(words["arrays"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RefusedError("the message does not say where its arrays are.") from error
        cell, message = context.get(fobs.FOBSContextKey.CELL), context.get(fobs.FOBSContextKey.MESSAGE)
        if cell is None or message is None or not isinstance(ref, str):
            raise RefusedError("the message's arrays came by a way on which they cannot be fetched.")
        if sender != message.get_header(MessageHeaderKey.ORIGIN):
            raise RefusedError("the message's arrays are said to lie with another than its sender.")
        if table.size > self.largest:
            raise RefusedError(
                f"its tensors are said to have {table.size} bytes; those of this run have at most {self.largest}."
            )
        way: dict[str, Any] = {
            "from_fqcn": sender,
            "ref_id": ref,
            "per_request_timeout": _REQUEST_S,
            "cell": cell,
            "secure": bool(message.get_header(MessageHeaderKey.SECURE, False)),
            "abort_signal": context.get(fobs.FOBSContextKey.ABORT_SIGNAL),
        }
        taken = self._taken(words, table.size)
        if taken is not None:
            way["per_request_timeout"] = _LET_GO_S
            request_download_chunk(state={_AT: table.size}, **way)  # so that the sender lets go of it
            return table.views(taken)
        arriving = Arriving(table.size, self.arrivals, partial(self._passed, _site(sender)))
        with self._one_of(_site(sender), table.size) if self.at_server else nullcontext():
            download_object(consumer=arriving, **way)
        if arriving.refusal is not None:
            raise arriving.refusal
        if not arriving.complete:
            if message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REPLY:
                raise RuntimeError(f"the arrays of a message could not be fetched from {sender}")
            raise RefusedError("its tensors could not be fetched: it is gone, or does not hold them any more.")
        return table.views(arriving.buffer)

    def _taken(self, words: Mapping[str, Any], size: int) -> np.ndarray | None:
        """The bytes, where the sender has handed them over."""
        file, here = words.get("file"), words.get("here")
        if self.handover is None or here != self.handover.here or not isinstance(file, str):
            return None
        return self.handover.take(file, size)

    def recompose(self, data: Any, manager: DatumManager | None = None) -> Any:
        """The array of a place, or the refusal in its stead."""
        if isinstance(data, list) and len(data) == 3:
            try:
                form = Form.read(data[:2])
                return np.frombuffer(data[2], form.dtype).reshape(form.shape).copy().view(PlainArray)
            except RefusedError as refusal:
                return refusal
            except (ValueError, TypeError):
                return RefusedError("an array's bytes are not those of its type and shape.")
        found = None if manager is None else manager.fobs_ctx.get(_ARRIVED)
        if isinstance(found, RefusedError):
            return found
        if isinstance(found, list) and type(data) is int and 0 <= data < len(found):
            return found[data]
        return RefusedError("the message names an array that did not come with it.")

    def _passed(self, site: str, size: int) -> None:
        self._note(size)
        self.places.go_on(site)


def _site(sender: str) -> str:
    """Whose process it is: the first part of its name is the certificate's, the others are what the site likes."""
    return str(FQCN.split(sender)[0])


def _nothing(size: int) -> None:
    pass


class Leaving(Downloadable):
    """The bytes of a message's arrays, cut into chunks as they are fetched.

    Attributes:
        table: Where each array lies among them.
        held: Whether FLARE still has them to be fetched.

    Args:
        arrays: In the order of the message.
        note: Is told how many bytes each chunk has.
        places: What a receiver takes a place of until it has all; None where everybody passes.
    """

    def __init__(
        self, arrays: Sequence[np.ndarray], note: Callable[[int], None] = _nothing, places: Places | None = None
    ) -> None:
        super().__init__(None)
        self._note, self._places = note, places
        self._until = 0.0
        self.held, self.table = True, Table.of(arrays)
        self._runs = list(joined(self.table.parts(arrays)))

    @property
    def file(self) -> str | None:
        """Name of the file that holds these bytes and nothing else; None where there is none."""
        root = root_of(self._runs[0]) if len(self._runs) == 1 else None
        return Handover.name(root) if root is not None and root.size == self.table.size else None

    @property
    def passing(self) -> bool:
        """Whether a chunk was asked for in the time that one may take, or the end in that of a reply."""
        return time.monotonic() < self._until

    def produce(self, state: Any, requester: str) -> tuple[str, Any, dict[str, int]]:
        """The next chunk, and the place behind it."""
        begin = int(state.get(_AT, 0)) if state else 0
        self._until = time.monotonic() + (_REQUEST_S if 0 <= begin < self.table.size else _REPLY_S)
        if self._places is not None and self.table.size >= WORTH_A_FILE:
            if begin <= 0:
                self._places.take(_site(requester))
            elif begin < self.table.size:
                self._places.go_on(_site(requester))
            else:
                self._places.leave(_site(requester))
        if not 0 <= begin < self.table.size:
            return ProduceRC.EOF, None, {}
        end = min(begin + _CHUNK, self.table.size)
        self._note(end - begin)
        pieces, before = [], 0
        for run in self._runs:
            if before < end and before + run.size > begin:
                pieces.append(run.data[max(begin - before, 0) : end - before])
            before += run.size
        return ProduceRC.OK, pieces[0] if len(pieces) == 1 else b"".join(pieces), {_AT: end}

    def release(self) -> None:
        """Let go of the arrays, of which no more is fetched."""
        self._runs, self.held = [], False
        self._until = min(self._until, time.monotonic() + _REPLY_S)


class Arriving(Consumer):
    """Puts chunks behind one another, and holds the peer to the size that it claimed.

    Attributes:
        buffer: uint8 [size]; there once all has come.
        refusal: What was wrong with what came; None where nothing was.
        complete: Whether all of it came.

    Args:
        size: Bytes that the peer claims, no more than the receiver takes.
        folder: Where they are written as they come; None, or a disk without room, keeps them in memory.
        note: Is told how many bytes each chunk has.
    """

    supports_pipelining = True
    buffer: np.ndarray

    def __init__(self, size: int, folder: Handover | None = None, note: Callable[[int], None] = _nothing) -> None:
        super().__init__()
        self._note = note
        self.refusal: RefusedError | None = None
        self.complete = False
        self._size, self._at = size, 0
        self._filling = Filling(size, folder)

    def consume(self, ref_id: str, state: Any, data: Any) -> Any:
        """Take one chunk.

        Raises:
            RefusedError: It is not the next chunk of what was claimed; FLARE ends the download.
        """
        size = len(data) if isinstance(data, bytes | bytearray | memoryview) else 0
        if not size or not isinstance(state, dict) or state.get(_AT) != self._at + size:
            self.refusal = RefusedError("its tensors did not come in the order of their bytes.")
        elif self._at + size > self._size:
            self.refusal = RefusedError(f"it sent more than the {self._size} bytes that it said it has.")
        if self.refusal is not None:
            raise self.refusal
        self._filling.write(data)
        self._at += size
        self._note(size)
        return state

    def download_completed(self, ref_id: str) -> None:
        """Note that the peer has no more."""
        if self._at == self._size:
            self.buffer, self.complete = self._filling.end(), True
            return
        self.refusal = RefusedError(f"it sent {self._at} of the {self._size} bytes that it said it has.")
        self._filling.discard()

    def download_failed(self, ref_id: str, reason: str) -> None:
        """Let go of what has come; FLARE has logged the reason, and `complete` stays False."""
        self._filling.discard()
