"""Many sites in one process: FLARE's own cells, keys and requests, the product's orders and answers, and no training.

Run as `python -m benchmarks.echo_sites KITS SITE...`. Each site has what a real one has at the server: its certificate,
a connection of its own for the site and one for its job, a registration, heartbeats, tasks it asks for and answers.
What it lacks are processes of its own, a network and data. It answers with the tensors that came, once every site has
its order, so that all answers are on their way at the same moment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, SecureTrainConst, ServerCommandKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import (
    CellChannel,
    RequestHeader,
    SpecialTaskName,
    TaskConstant,
    TrainingTopic,
    new_cell_message,
)
from nvflare.private.fed.client.communicator import Communicator
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize
from nvflare.private.scheduler_constants import ShareableHeader

from benchmarks.resnet50 import GRADES
from benchmarks.round_jobs import POLL_S
from fedretina.exchange.payload import Order, Payload, Tensors
from fedretina.flare import plain_bytes
from fedretina.flare.handover import Handover
from fedretina.flare.plain_bytes import speak, understood
from fedretina.flare.wire import pack_payload, unpack_order
from fedretina.settings.scalars import Task

_ANSWER_S = 600.0
_HEARTBEAT_S = 10.0
_JOIN_AT_ONCE, _JOIN_S = 16, 60.0
_ANSWERS: dict[Task, dict[str, float]] = {
    "train": {"theta": 0.5, "images": 100.0},
    "validate": {},
    "finalise": {"grades": float(GRADES), "synthetic": 1.0},
}


class OneBuffer:
    """Room for what comes down to any of the sites, once: it is the same for all, and each writes it over the last's.

    Args:
        size: How many bytes will come.
        folder: Is not used; see `handover.Filling`.
    """

    _bytes = np.empty(0, np.uint8)

    def __init__(self, size: int, folder: Handover | None) -> None:
        if OneBuffer._bytes.size != size:
            OneBuffer._bytes = np.empty(size, np.uint8)
        self._at = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write what comes next."""
        OneBuffer._bytes[self._at : self._at + len(data)] = np.frombuffer(data, np.uint8)
        self._at += len(data)

    def end(self) -> np.ndarray:
        """All bytes, uint8 [size]."""
        return OneBuffer._bytes

    def discard(self) -> None:
        """Keep the room for the next."""


class EchoSite:
    """One site: registered with the server, and ready for a job.

    Args:
        kit: Its startup kit.
        together: Where all sites wait for one another before they answer.
    """

    def __init__(self, kit: Path, together: threading.Barrier) -> None:
        words = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        service = words["servers"][0]
        self.name = kit.name
        self._project = service["name"]
        self._url = f"{service['service']['scheme']}://{service['service']['target']}"
        self._together = together
        client = {name: str(kit / "startup" / words["client"][name]) for name in _KEYS}
        self._client = {**client, "client_name": self.name}
        self._server = {"identity": service.get("identity") or service["service"]["target"].split(":")[0]}
        self._jobs: list[str] = []
        self._contexts = self._new_contexts("")

    def join(self) -> None:
        """Connect and register, as a site's lasting process does."""
        self._cell = self._new_cell(self.name)
        self._talk = self._communicator(self._cell)
        self._cell.register_request_cb(CellChannel.CLIENT_MAIN, "*", self._asked)
        fl_ctx = self._contexts.new_context()
        fl_ctx.set_prop(FLContextKey.SECURE_MODE, True)
        fl_ctx.set_prop(FLContextKey.SERVER_CONFIG, [self._server])
        fl_ctx.set_prop(FLContextKey.CLIENT_CONFIG, self._client)
        self._keys = self._talk.client_registration(self.name, self._project, fl_ctx)
        threading.Thread(target=self._beat, daemon=True).start()

    def new_context(self) -> FLContext:
        """A context for heartbeats, where FLARE's code takes this site for its engine."""
        return self._contexts.new_context()

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nobody listens."""

    def get_all_job_ids(self) -> list[str]:
        """The jobs that run here."""
        return list(self._jobs)

    def abort_app(self, job: str, heartbeat_cleanup: bool = False) -> None:
        """Forget a job that the server does not run any more."""
        if job in self._jobs:
            self._jobs.remove(job)

    def _new_contexts(self, job: str) -> FLContextManager:
        place = {ReservedKey.FQSN: self.name, ReservedKey.IS_LEAF: True}
        return FLContextManager(self, self.name, job, public_stickers=place)

    def _new_cell(self, name: str) -> Cell:
        keys = (DriverParams.CA_CERT, DriverParams.CLIENT_CERT, DriverParams.CLIENT_KEY)
        credentials = {key.value: self._client[name] for key, name in zip(keys, _KEYS, strict=True)}
        known = {self.name: self.name, FQCN.ROOT_SERVER: self._server["identity"]}
        own = {"auth_identity": self.name, "auth_identity_map": known}
        cell = Cell(name, self._url, True, credentials, create_internal_listener=False, **own)
        cell.start()
        return cell

    def _communicator(self, cell: Cell) -> Communicator:
        patience = {"timeout": _ANSWER_S, "maint_msg_timeout": _JOIN_S}  # all of them join at once
        return Communicator(client_config=self._client, secure_train=True, cell=cell, **patience)

    def _beat(self) -> None:
        _, _, session = self._keys
        self._talk.send_heartbeat(None, self._project, self._keys[0], session, self.name, self, _HEARTBEAT_S)

    def _asked(self, message: Message) -> Message:
        """Answer what the server asks a site before it starts a job, and when it starts one."""
        request = message.payload
        assert isinstance(request, AdminMessage)
        reply = AdminMessage(topic=f"reply_{request.topic}", body="OK")
        if request.topic == TrainingTopic.CHECK_RESOURCE:
            reply.body = Shareable()
            reply.body.set_header(ShareableHeader.IS_RESOURCE_ENOUGH, True)
            reply.body.set_header(ShareableHeader.RESOURCE_RESERVE_TOKEN, "")
        elif request.topic == TrainingTopic.START_JOB:
            job = str(request.get_header(RequestHeader.JOB_ID))
            self._jobs.append(job)
            threading.Thread(target=self._work, args=(job,), daemon=True).start()
        return new_cell_message({}, reply)

    def _work(self, job: str) -> None:
        """Ask for tasks and answer them, as the process of a job does."""
        over = threading.Event()

        def ended(message: Message) -> Message:
            over.set()
            return new_cell_message({}, Shareable())

        cell = self._new_cell(FQCN.join([self.name, job]))
        cell.register_request_cb(CellChannel.AUX_COMMUNICATION, "*", ended)
        talk = self._communicator(cell)
        token, signature, session = self._keys
        talk.set_auth(self.name, token, signature, session)
        contexts = self._new_contexts(job)
        speak(contexts.new_context())
        while not over.is_set():
            fl_ctx = contexts.new_context()
            message = talk.pull_task(self._project, token, session, fl_ctx)
            task = None if message is None else message.payload
            name = None if task is None else task.get_header(ServerCommandKey.TASK_NAME)
            if task is None or name in (None, SpecialTaskName.TRY_AGAIN):
                time.sleep(POLL_S if task is None else task.get_header(TaskConstant.WAIT_TIME, POLL_S))
                continue
            if name == SpecialTaskName.END_RUN:
                break
            fl_ctx.set_peer_context(task.get_peer_context())
            reply = pack_payload(self._answer(*unpack_order(task)), understood(fl_ctx))
            reply.set_cookie_jar(task.get_cookie_jar() or {})
            reply.set_header(ReservedHeaderKey.TASK_NAME, name)
            reply.set_header(ReservedHeaderKey.TASK_ID, task.get_header(FLContextKey.TASK_ID))
            talk.submit_update(self._project, token, session, fl_ctx, self.name, reply, name)
        self.abort_app(job)
        cell.stop()

    def _answer(self, order: Order, tensors: Tensors) -> Payload:
        self._together.wait(_ANSWER_S)
        return Payload(tensors if order.task == "train" else {}, _ANSWERS[order.task], order.stamp)


_KEYS = (SecureTrainConst.SSL_ROOT_CERT, SecureTrainConst.SSL_CERT, SecureTrainConst.PRIVATE_KEY)


def main(kits: Path, names: list[str], say: Callable[[str], Any]) -> None:
    """Bring the sites up, and leave them up until the process that started this one closes its pipe, or ends."""
    nvflare_fobs_initialize()
    setattr(plain_bytes, "Filling", OneBuffer)  # noqa: B010 - the product imports the name
    together = threading.Barrier(len(names))
    sites = [EchoSite(kits / name, together) for name in names]
    with ThreadPoolExecutor(_JOIN_AT_ONCE) as threads:
        list(threads.map(EchoSite.join, sites))
    say("ready")
    sys.stdin.read()
    os._exit(0)  # threads of FLARE's cells would keep it


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:], lambda line: print(line, flush=True))
