"""One machine per site: the server lets nobody join, or speak, in the name of a site that is connected and answers.

FLARE 2.9 lets the newest connection and the newest registration of a name win. Two machines with one startup kit then
evict each other every few seconds, and the first one's token is void until the second's is forgotten, ten minutes after
its end: the first is listed as connected, its new jobs get no task, its old ones cannot say that they have ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import AdminCommandNames, FLContextKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.fuel.f3.cellnet.core_cell import make_reply
from nvflare.fuel.f3.cellnet.defs import MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.identity import get_param, is_mtls_connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import Prefix
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.fuel.hci.server.authz import PreAuthzReturnCode
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, new_cell_message
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules
from nvflare.security.logging import secure_format_exception

from fedretina.errors import SettingsError, StateError
from fedretina.flare.routes import refusal, take_no_files
from fedretina.kit.audit import AuditLog
from fedretina.kit.second_machine import CHANNEL, COMMAND, REFUSED, TOPIC, SecondMachine, SecondMachines

_LONGEST_ANSWER_S = 30.0
_AT_ONCE = 8  # newcomers in a site's name, and those of its jobs, whose first connections are asked


class OneMachine(FLComponent):
    """Keeps a site's first machine for as long as it answers, refuses a second one, and tells both and the admins.

    Whether the first is there is asked, not remembered: when a second connection comes in a name that is taken, the
    server sends a ping over the first one. It stays when the pong comes; else the newcomer takes its place. A process
    that was killed leaves no connection behind, so a restarted site joins at once; one whose machine lost its power
    joins after `answer_s`.

    Args:
        answer_s: How long the first machine has for its answer, in seconds from 1 to 30.

    Raises:
        SettingsError: `answer_s` is outside its range.
    """

    def __init__(self, answer_s: float = 15.0) -> None:
        super().__init__()
        if not 1 <= answer_s <= _LONGEST_ANSWER_S:
            raise SettingsError(f"answer_s is from 1 to {_LONGEST_ANSWER_S:g} seconds, got {answer_s!r}.")
        take_no_files()
        self._answer_s = float(answer_s)
        self._seen = SecondMachines()
        self._server: Any = None
        self._audit: AuditLog | None = None
        self._connections: Any = None
        self._process: Callable[[Any, Any], None] | None = None
        self._lock = threading.Lock()
        self._asked: dict[str, threading.Event] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin when the server's own process starts; the processes of its jobs build this too, and never start it.

        Raises:
            UnsafeComponentError: FLARE has another shape than this was written for; the server does not start then.
        """
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            self._begin(fl_ctx.get_prop(FLContextKey.SITE_OBJ))
            self._audit = AuditLog(Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir()))

    def _begin(self, server: Any) -> None:
        try:
            cell = server.cell.core_cell
            connections = cell.communicator.conn_manager
            # FLARE has a hook for a connection that was made, none for one that is about to be. Its connection manager
            # looks this method up for each frame, so an attribute of the object comes before the class's method.
            self._process = connections.process_frame_task
            for name in ("sfm_endpoints", "sfm_conns", "local_endpoint", "identity_resolver", "get_dict_payload"):
                getattr(connections, name)
            for name in ("client_manager", "admin_server", "engine", "remove_client_data"):
                getattr(server, name)
        except AttributeError as error:
            raise UnsafeComponentError(
                f"this FLARE is not the one that {type(self).__name__} was written for ({error}): install the version "
                "of requirements.lock. The server does not start without its guard against a second machine."
            ) from error
        self._server, self._connections = server, connections
        connections.process_frame_task = self._on_frame
        cell.add_incoming_filter("*", "*", self._on_message)
        cell.add_incoming_request_filter(CellChannel.SERVER_MAIN, CellChannelTopic.Register, self._on_register)
        cell.add_incoming_request_filter(CellChannel.SERVER_MAIN, CellChannelTopic.HEART_BEAT, self._on_heartbeat)
        ServerCommandModules.register_cmd_module(SecondMachinesCommand(self._seen))

    # Connections

    def _on_frame(self, connection: Any, frame: Any) -> None:
        """Stand before FLARE's processing of a frame; runs in a thread of FLARE's pool, whose errors nobody reads."""
        assert self._process is not None
        try:
            kind = Prefix.from_bytes(frame).type
            # FLARE takes either for the greeting of a new connection, though its own clients only send the first.
            if kind in (Types.HELLO, Types.READY) and not self._admit(connection, frame):
                return
        except Exception as error:  # the thread would swallow it; who is not understood is not let in
            self.logger.error(f"{connection.get_name()} is closed: {secure_format_exception(error)}", exc_info=error)
            connection.conn.close()
            return
        endpoint = connection.sfm_endpoint
        if kind == Types.DATA and endpoint is None:
            return  # of a connection that was refused, until it has closed
        if kind == Types.PONG and endpoint is not None and (asked := self._asked.get(endpoint.endpoint.name)):
            asked.set()
        self._process(connection, frame)

    def _admit(self, newcomer: Any, frame: Any) -> bool:
        name = self._claimed(newcomer, frame)
        first = None if name is None else self._holder(name)
        if name is None or first is None or first is newcomer:
            return True
        site = FQCN.split(name)[0]
        with self._lock:  # each of these waits in a thread of the few that read all that any site sends
            busy = name in self._asked or sum(FQCN.split(other)[0] == site for other in self._asked) >= _AT_ONCE
            asked = threading.Event() if busy else self._asked.setdefault(name, threading.Event())
        if busy:  # others are being looked at; this one tries again
            newcomer.conn.close()
            return False
        try:
            stays = self._answers(first, asked)
        finally:
            self._asked.pop(name, None)
        if stays:
            self._refuse(newcomer, first, site)
            return False
        before, now = _address(first), _address(newcomer)
        self.logger.info(f"{name}: the connection from {before} is gone or does not answer; that from {now} takes over")
        return True

    def _claimed(self, newcomer: Any, frame: Any) -> str | None:
        """The name in which a connection comes; None when it is an admin's, or FLARE will refuse it anyway."""
        raw = self._connections.get_dict_payload(Prefix.from_bytes(frame), frame)
        name = FQCN.normalize(str(raw[HandshakeKeys.ENDPOINT_NAME]))
        if is_valid_admin_client_name(name):
            return None
        if is_mtls_connection(newcomer.conn.connector.params):
            holder = get_param(newcomer.conn.get_conn_properties(), DriverParams.PEER_CN)
            try:
                self._connections.identity_resolver.require_match(name, holder, newcomer.get_name())
            except ValueError:
                return None
        return name

    def _holder(self, name: str) -> Any:
        endpoint = self._connections.sfm_endpoints.get(name)
        held = [one for one in endpoint.connections if self._is_open(one)] if endpoint else []
        return held[0] if held else None

    def _is_open(self, connection: Any) -> bool:
        return connection.get_name() in self._connections.sfm_conns

    def _answers(self, first: Any, asked: threading.Event) -> bool:
        # In a thread of its own: on a line that is cut, sending may block.
        threading.Thread(target=first.send_heartbeat, args=(Types.PING,), daemon=True).start()
        deadline = time.monotonic() + self._answer_s
        while time.monotonic() < deadline and self._is_open(first):
            if asked.wait(0.1):
                return True
        return False

    def _refuse(self, newcomer: Any, first: Any, site: str) -> None:
        seen, tell = self._seen.refused(site, _address(newcomer), _address(first))
        # In the server's own name the newcomer would take itself for connected: its next request would wait for half a
        # minute on the closed line, and its process then end. A name below it has the same certificate behind it.
        here = FQCN.join([self._connections.local_endpoint.name, "refused"])
        handshake = {HandshakeKeys.ENDPOINT_NAME: here, HandshakeKeys.TIMESTAMP: time.time()}
        newcomer.send_dict(Types.READY, 1, {**handshake, REFUSED: seen.words_for_the_second()})
        newcomer.conn.close()
        if tell:
            self._tell(seen)

    def _tell(self, seen: SecondMachine) -> None:
        self.logger.warning(seen.words())
        self._note(seen.site, f"a second machine with its kit, at {seen.refused}; the one at {seen.there} stays")
        message = new_cell_message({}, {"words": seen.words_for_the_first()})
        self._server.cell.core_cell.fire_and_forget(CHANNEL, TOPIC, seen.site, message, optional=True)

    # Messages

    def _on_message(self, message: Message) -> Message | None:
        """Drop a message that nobody outside may send; any answer tells FLARE to, and goes nowhere."""
        sender = message.get_prop(MessagePropKey.ENDPOINT).name
        fault = refusal(sender, message)
        if fault is None:
            return None
        self.logger.warning(f"a message of {sender} is dropped: {fault}.")
        return make_reply(ReturnCode.UNAUTHENTICATED, error=fault)

    # Registrations

    def _on_register(self, message: Message) -> Message | None:
        """Refuse to register a site over another connection than its own, as code that is not FLARE's client could."""
        name = str(message.get_header(CellMessageHeaderKeys.CLIENT_NAME))
        first, endpoint = self._holder(name), message.get_prop(MessagePropKey.ENDPOINT)
        if first is None or endpoint.name == name:
            return None
        if message.get_prop(MessagePropKey.COMMON_NAME) == name:
            by = str(endpoint.conn_props.get(DriverParams.PEER_ADDR.value, "?"))
            seen, tell = self._seen.refused(name, _host(by), _address(first))
            if tell:
                self._tell(seen)
        else:
            self.logger.warning(f"{endpoint.name} tried to register as {name} and was refused: {name} is connected.")
            self._note(name, f"{endpoint.name} tried to register in its name")
        return make_reply(ReturnCode.UNAUTHENTICATED, error=f"{name} is connected already")

    def _note(self, site: str, why: str) -> None:
        """Write a refused sign-in into the server's audit log; one that cannot be written is a warning."""
        if self._audit is None:
            return
        try:
            self._audit.note("site sign-in refused", site=site, why=why)
        except StateError as error:
            self.logger.warning(str(error))

    def _on_heartbeat(self, message: Message) -> None:
        """Let the site that is connected keep its token: drop that of another machine, which has ended."""
        name = str(message.get_header(CellMessageHeaderKeys.CLIENT_NAME))
        clients = self._server.client_manager.clients
        endpoint = message.get_prop(MessagePropKey.ENDPOINT)
        if endpoint.name != name or message.get_header(CellMessageHeaderKeys.TOKEN) in clients:
            return
        for token, client in list(clients.items()):
            if client.name == name:
                self.logger.info(f"{name}: the machine that took its place has ended; its registration is dropped.")
                self._drop(token)

    def _drop(self, token: str) -> None:
        """What FLARE does with a site that is dead, but for the ends of jobs that the site itself still reports."""
        client = self._server.client_manager.remove_client(token)
        self._server.remove_client_data(token)
        if self._server.admin_server:
            self._server.admin_server.client_dead(token)
        for job, process in list(self._server.engine.run_processes.items()):
            if client is not None and token in (process.get(RunProcessKey.PARTICIPANTS) or {}):
                self._server.engine.notify_dead_job(job, client.name, "its machine was replaced by another")


def _address(connection: Any) -> str:
    return _host(str(connection.conn.get_conn_properties().get(DriverParams.PEER_ADDR.value, "?")))


def _host(address: str) -> str:
    return address.rpartition(":")[0] or address


class SecondMachinesCommand(CommandModule):
    """Answers who came with a site's kit while the site was there, to whoever may see which sites are connected.

    Args:
        seen: Where the server notes them.
    """

    def __init__(self, seen: SecondMachines) -> None:
        self._seen = seen

    def get_spec(self) -> CommandModuleSpec:
        """FLARE's description of the command."""
        spec = CommandSpec(
            name=COMMAND,
            description="list machines that were refused because their site is connected from another one",
            usage=COMMAND,
            handler_func=self._list,
            authz_func=_may_look,
            visible=True,
        )
        return CommandModuleSpec(name="fedretina", cmd_specs=[spec])

    def _list(self, conn: Connection, args: list[str]) -> None:
        found = self._seen.current()
        sentences = "\n".join(one.words() for one in found) or "none in the last 24 hours"
        meta = make_meta(MetaStatusValue.OK, extra={COMMAND: [one.record() for one in found]})
        conn.append_string(sentences, meta=meta)


def _may_look(conn: Connection, args: list[str]) -> PreAuthzReturnCode:
    # FLARE knows rights for its own commands only, and denies all others: this one goes with that of `check_status`.
    properties = (ConnProps.USER_NAME, ConnProps.USER_ORG, ConnProps.USER_ROLE)
    user = Person(*(conn.get_prop(name, "") for name in properties))
    allowed, why = AuthorizationService.authorize(
        AuthzContext(right=AdminCommandNames.CHECK_STATUS, user=user, submitter=Person("", "", ""))
    )
    if allowed:
        return PreAuthzReturnCode.OK
    conn.append_error(f"not authorized: {why}", meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, why))
    return PreAuthzReturnCode.ERROR
