"""What FLARE tells of sign-ins, admins and jobs, as lines of the audit log: each event, at a site and at the server."""

from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.workspace import Workspace
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaKey, MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.fuel.hci.server.authz import PreAuthzReturnCode
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.login import LoginModule
from nvflare.fuel.hci.server.reg import CommandFilter, ServerCommandRegister
from nvflare.fuel.hci.server.sess import SessionManager
from nvflare.private.defs import ClientRegSession, ClientType, InternalFLContextKey
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.fed_server import FederatedServer

from fedretina.flare.audit_events import AuditEvents
from fedretina.flare.one_machine import OneMachine
from fedretina.kit.audit import AUDIT, AuditLog

LEAD = "lead@consortium.example"


@pytest.fixture
def workspace(tmp_path):
    for name in ("startup", "local"):
        (tmp_path / name).mkdir()
    return Workspace(str(tmp_path))


def context(workspace=None, end=None, **props):
    made = FLContext()
    given = {FLContextKey.WORKSPACE_OBJECT: workspace, FLContextKey.SITE_OBJ: end, **props}
    for name, value in given.items():
        if value is not None:
            made.set_prop(name, value, private=True, sticky=False)
    return made


def of(peer):
    made, its = FLContext(), FLContext()
    its.put(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
    made.set_peer_context(its)
    return made


def registering(site):
    return context(**{InternalFLContextKey.CLIENT_REG_SESSION: ClientRegSession(site)})


def written(folder):
    found = AuditLog(folder).verify()
    assert not found.faults
    own = {"number", "time", "event", "previous"}
    return [(line["event"], {name: line[name] for name in line.keys() - own}) for line in found.events]


def test_a_sites_life_and_its_jobs(workspace, tmp_path):
    events = AuditEvents()
    job = context(**{FLContextKey.JOB_META: {JobMetaKey.JOB_ID.value: "7", JobMetaKey.SUBMITTER_NAME.value: LEAD}})
    events.handle_event(EventType.AFTER_JOB_LAUNCH, job)  # a job's process, which never saw the start
    assert not (tmp_path / AUDIT).exists()
    events.handle_event(EventType.SYSTEM_BOOTSTRAP, context(workspace, SimpleNamespace()))
    for event, told in (
        (EventType.SYSTEM_START, context()),
        (EventType.AFTER_CLIENT_REGISTER, context()),
        (EventType.AFTER_JOB_LAUNCH, job),
        (EventType.JOB_COMPLETED, context(**{FLContextKey.CURRENT_JOB_ID: "7"})),
        (EventType.BEFORE_PULL_TASK, context()),
        (EventType.SYSTEM_END, context()),
    ):
        events.handle_event(event, told)
    assert written(tmp_path) == [
        ("service started", {}),
        ("signed in at the server", {}),
        ("job started", {"job": "7", "submitter": LEAD}),
        ("job ended", {"job": "7"}),
        ("service ended", {}),
    ]


@pytest.fixture
def server(workspace):
    """A server's audit events, and its client manager, as FLARE has them before its console is made."""
    made = SimpleNamespace(client_manager=ClientManager("project", 1, 10), admin_server=None)
    made.set_admin_server = lambda console: setattr(made, "admin_server", console)
    made.events = AuditEvents()
    made.events.handle_event(EventType.SYSTEM_BOOTSTRAP, context(workspace, made))
    return made


def test_a_site_that_the_server_refuses_has_not_signed_in(server, tmp_path):
    def register(site, token):
        if token:
            server.client_manager.name_to_clients[site] = SimpleNamespace(name=site, token=token)
        server.events.handle_event(EventType.CLIENT_REGISTER_PROCESSED, registering(site))

    register("site-1", "a")
    register("site-1", "b")  # it was started again
    register("site-1", "")  # one in its name, whom FLARE did not let in
    register("site-2", "")  # one that is disabled
    admin = registering("_admin_1")
    admin.set_prop(FLContextKey.CLIENT_TYPE, ClientType.ADMIN, private=False, sticky=False)
    server.events.handle_event(EventType.CLIENT_REGISTER_PROCESSED, admin)
    server.events.handle_event(EventType.CLIENT_QUIT, of("site-1"))
    assert written(tmp_path) == [
        ("site signed in", {"site": "site-1"}),
        ("site signed in", {"site": "site-1"}),
        ("site sign-in refused", {"site": "site-1"}),
        ("site sign-in refused", {"site": "site-2"}),
        ("site signed out", {"site": "site-1"}),
    ]


def test_jobs_at_the_server_by_their_id(server, tmp_path):
    for event in (EventType.JOB_STARTED, EventType.JOB_ABORTED, EventType.JOB_COMPLETED):
        told = context(**{FLContextKey.EVENT_DATA: {JobMetaKey.JOB_ID.value: "7"}})
        server.events.handle_event(event, told)
    assert written(tmp_path) == [(f"job {word}", {"job": "7"}) for word in ("started", "aborted", "ended")]


class Console(CommandModule, CommandFilter):
    """Commands that answer as FLARE's own do; a signed-in lead, who may do all but `shutdown`."""

    def get_spec(self):
        names = ("_cert_login", "_logout", "submit_job", "abort_job", "delete_job", "shutdown", "list_jobs")
        specs = [CommandSpec(name, name, name, getattr(self, f"{name.strip('_')}"), self.may) for name in names]
        return CommandModuleSpec("test", specs)

    def pre_command(self, conn, args):
        if args[0] == "_cert_login":
            return True
        if args[-1] == "nobody":
            conn.append_error("not authenticated - no token")
            return False
        conn.set_prop(ConnProps.USER_NAME, LEAD)
        if args[0] == "shutdown":
            conn.append_error("not authorized", meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, "not authorized"))
        return args[0] != "shutdown"

    def may(self, conn, args):
        return PreAuthzReturnCode.OK

    def cert_login(self, conn, args):
        if args[1] == LEAD:
            conn.append_string("OK")
            conn.append_token("secret")
        else:
            conn.append_string("REJECT")

    def logout(self, conn, args):
        conn.append_string("OK")

    def submit_job(self, conn, args):
        if args[1].endswith("bad"):
            conn.append_error("job brings code", meta=make_meta(MetaStatusValue.INVALID_JOB_DEFINITION, "job has code"))
        else:
            conn.append_success("", meta=make_meta(MetaStatusValue.OK, extra={MetaKey.JOB_ID: "7"}))

    def abort_job(self, conn, args):
        conn.append_success("done")

    def delete_job(self, conn, args):
        conn.append_error("no such job")

    shutdown = abort_job

    def list_jobs(self, conn, args):
        conn.append_success("none")


def test_what_admins_ask_and_what_they_are_refused(server, tmp_path):
    console = Console()
    register = ServerCommandRegister(None)
    register.register_module(console)
    register.add_filter(console)
    register.finalize()
    server.set_admin_server(SimpleNamespace(cmd_reg=register))
    assert server.admin_server.cmd_reg is register
    answers = []
    for command in (
        f"_cert_login {LEAD}",
        "_cert_login thief",
        "test.submit_job jobs/spring",
        "submit_job jobs/bad",
        "list_jobs",
        "abort_job 7",
        "delete_job 8",
        "shutdown server",
        "abort_job 7 nobody",
        "no_such_command",
        "_logout",
    ):
        conn = Connection()
        register.process_command(conn, command)
        answers.append(conn.close())
    assert all(answers)  # each admin got what FLARE said
    assert written(tmp_path) == [
        ("admin signed in", {"user": LEAD}),
        ("admin sign-in refused", {"user": "thief"}),
        ("job submitted", {"job": "7", "name": "spring", "submitter": LEAD}),
        ("job refused", {"name": "bad", "submitter": LEAD, "why": "job has code"}),
        ("command done", {"user": LEAD, "command": "abort_job 7"}),
        ("command failed", {"user": LEAD, "command": "delete_job 8"}),
        ("command refused", {"user": LEAD, "command": "shutdown server"}),
        ("command refused", {"user": "not signed in", "command": "abort_job 7 nobody"}),
        ("admin signed out", {"user": LEAD}),
    ]
    assert "secret" not in (tmp_path / AUDIT).read_text()


def test_a_log_that_cannot_be_written_costs_no_answer(server, tmp_path, caplog):
    (tmp_path / AUDIT).mkdir()
    console = Console()
    register = ServerCommandRegister(None)
    register.register_module(console)
    register.finalize()
    server.set_admin_server(SimpleNamespace(cmd_reg=register))
    conn = Connection()
    register.process_command(conn, f"_cert_login {LEAD}")
    assert "secret" in conn.close()
    assert "cannot be written" in caplog.text


def test_flare_has_the_names_that_the_log_takes():
    assert callable(FederatedServer.set_admin_server)
    assert issubclass(LoginModule, CommandFilter)
    assert callable(SessionManager.create_session)
    assert ClientManager("project", 1, 10).name_to_clients == {}
    assert issubclass(AuditEvents, FLComponent)


def test_a_second_machine_is_a_refused_sign_in(tmp_path):
    guard = OneMachine()
    guard._audit = AuditLog(tmp_path)
    guard._server = SimpleNamespace(
        cell=SimpleNamespace(core_cell=SimpleNamespace(fire_and_forget=lambda *_, **__: None))
    )
    seen, tell = guard._seen.refused("site-1", "10.0.0.2", "10.0.0.1")
    assert tell
    guard._tell(seen)
    ((event, told),) = written(tmp_path)
    assert (event, told["site"]) == ("site sign-in refused", "site-1")
    assert "at 10.0.0.2" in told["why"]
