"""Who may not connect to a hardened federation, or may not do what he asks: outsiders, copies, sites, other admins."""

import json
import re
import subprocess
import sys
import time
from ssl import TLSVersion
from types import SimpleNamespace

import psutil
import pytest
from credentials import connected, expire, knock, not_yet, register_aside, with_the_servers_token
from jobs import SITES, WORDS, export
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import TrainingTopic

from federation import (
    FAKETIME,
    LEAD,
    MEMBER,
    ORG_ADMIN,
    PROJECT_ADMIN,
    clock,
    copy_kit,
    ended,
    environment,
    fedretina,
    processes_of,
    wait_for,
)

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
CONSOLE = (
    *("pwd server", "ls server", "cat server log.txt", "head site-1 log.txt", "tail server log.txt"),
    *("grep site-1 patient log.txt", "env site-1", "report_env site-1", "ls site-1", "cat site-1 log.txt"),
)


@pytest.mark.parametrize("user", [LEAD, PROJECT_ADMIN, ORG_ADMIN, MEMBER])
@pytest.mark.attack(
    "another admin",
    "ls, cat, head, tail, grep, pwd and the environment of a site or of the server, from the console",
    "refused for every role",
)
def test_nobody_gets_a_shell_or_a_sites_folders(federation, user):
    with federation.session(user) as session:
        for command in CONSOLE:
            said = json.dumps(session.api.do_command(command), default=str)
            assert "not authorized" in said or "not found" in said, (command, said)


@pytest.mark.parametrize("user", [ORG_ADMIN, MEMBER])
@pytest.mark.attack(
    "another admin",
    "an organisation's admin or a member aborts, clones, deletes or fetches a lead's job",
    "not authorized",
)
def test_another_admin_does_not_touch_a_leads_job(federation, user):
    job = federation.ended["good"]["job_id"]
    with federation.session(user) as session:
        for command in (f"abort_job {job}", f"clone_job {job}", f"delete_job {job}", f"download_job {job}"):
            said = json.dumps(session.api.do_command(command), default=str)
            assert "not authorized" in said, (command, said)
            told = federation.audited("server", "command refused")[-1]
            assert (told["user"], told["command"].split()[:2]) == (user, command.split())
    assert any((federation.storage / "jobs").glob(f"{job}*"))


@pytest.mark.parametrize("user", [ORG_ADMIN, MEMBER])
@pytest.mark.attack(
    "another admin",
    "an organisation's admin or a member stops, restarts, disables or removes another hospital's site or the server",
    "not authorized, and the site stays connected",
)
def test_another_admin_stops_nobody(federation, user):
    with federation.session(user) as session:
        for command in ("shutdown client site-3", "restart client site-3", "disable_client site-3", "shutdown server"):
            said = json.dumps(session.api.do_command(command), default=str)
            assert "not authorized" in said, (command, said)
        assert "site-3" in json.dumps(session.api.do_command("check_status server"), default=str)


@pytest.mark.parametrize("user", ["site-2", MEMBER])
@pytest.mark.attack(
    "a hostile site",
    "send another site commands through the server, with the token that the server gives to everyone",
    "the server passes nothing on from site to site, and its log names who tried",
)
@pytest.mark.attack(
    "a hostile site",
    "send the server messages in another's name, or those with which FLARE's own processes stop it",
    "the server drops them, and its log names who tried",
)
@pytest.mark.attack(
    "another admin",
    "send a site or the server FLARE's inner commands, past the console and its rights",
    "the server drops them, and its log names who tried",
)
def test_nobody_speaks_to_another_site_or_as_the_server(federation, user):
    server = federation.running["server"]
    name = new_admin_client_name() if user == MEMBER else f"{user}.else"  # FLARE takes a name once a process

    def dropped(cell, channel, target, request, why):
        words = f"a message of {name} is dropped: {why}"
        before = server.text().count(words)
        reply = cell.send_request(channel=channel, topic="process_info", target=target, request=request, timeout=0.5)
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK, reply.payload
        wait_for(lambda: server.text().count(words) > before, words)

    with with_the_servers_token(federation.port, federation.kit(user), name) as cell:
        # Neither topic does harm where it is answered; those that end a site or the server go the same way.
        order = Message(payload=Order(TrainingTopic.CHECK_STATUS, ""))
        dropped(cell, CellChannel.CLIENT_MAIN, "site-3", order, "it goes to another site")
        for one in (cell, cell.core_cell):  # the first sends it as a stream
            dropped(one, "_net_manager", "server", Message(), "it asks what only")
        in_the_servers_name = {MessageHeaderKey.ORIGIN: "server"}
        cell.core_cell.add_outgoing_request_filter("*", "*", lambda message: message.add_headers(in_the_servers_name))
        dropped(cell.core_cell, "_net_manager", "server", Message(), "it comes in another's name")


@pytest.mark.attack(
    "an outsider",
    "a connection without a certificate, with one of another authority, or with one that has ended or not begun",
    "not a byte from the server",
)
def test_without_a_certificate_of_the_consortium_the_server_says_nothing(federation, foreign, tmp_path):
    expired = copy_kit(federation.kit("site-4"), tmp_path / "expired")
    expire(expired, federation.state)
    early = copy_kit(federation.kit("site-4"), tmp_path / "early")
    not_yet(early, federation.state)
    assert knock(federation.port, federation.kit("site-4")).startswith(b"HTTP/1.1 404")
    for kit in (None, foreign, expired, early):
        assert knock(federation.port, kit) == b""


@pytest.mark.attack(
    "an outsider",
    "connect by an old version of TLS (1.0, 1.1, 1.2)",
    "the server speaks TLS 1.3 alone, where it is started as the unit and the container start it",
)
def test_the_server_speaks_no_tls_before_1_3(federation):
    kit = federation.kit("site-4")
    assert knock(federation.port, kit, TLSVersion.TLSv1_3).startswith(b"HTTP/1.1 404")
    for old in (TLSVersion.TLSv1, TLSVersion.TLSv1_1, TLSVersion.TLSv1_2):
        assert knock(federation.port, kit, old) == b""


@pytest.mark.attack(
    "an outsider",
    "a whole site with a certificate that has ended or is of another authority",
    "it does not join",
)
def test_a_site_with_an_expired_or_foreign_certificate_does_not_join(federation, foreign, tmp_path):
    expired = copy_kit(federation.kit("site-5"), tmp_path / "expired")
    expire(expired, federation.state)
    for name, kit in (("expired", expired), ("foreign", foreign), ("good", federation.kit("site-4"))):
        federation.start(name, kit)
    federation.running["good"].wait_until("Successfully registered")
    time.sleep(5)  # the other two began before
    for name in ("expired", "foreign"):
        assert federation.running[name].process.poll() is None
        assert "Successfully registered" not in federation.running[name].text()
    server = federation.running["server"].text()
    assert "New client site-4" in server
    assert "New client site-5" not in server
    assert "New client site-9" not in server
    federation.stop("expired", "foreign", "good")


AHEAD = """
import sys
from pathlib import Path
from fedretina.kit.door import knock
from fedretina.kit.startup_kit import open_kit
print(knock(open_kit(Path(sys.argv[1])))._asdict())
"""


@pytest.mark.skipif(not FAKETIME.exists(), reason="libfaketime (package faketime) is not on this machine")
@pytest.mark.attack(
    "an accident",
    "a site's clock is hours ahead of the server's, or years behind, before its certificates begin",
    "both are told by the check; a clock that is behind the certificates is named as what to mend",
)
def test_a_site_whose_clock_is_wrong_is_told_by_the_server(federation):
    seen = {}
    for by in ("+2h", "-3650d"):
        shell = environment(federation.home, **clock(by))
        command = [sys.executable, "-c", AHEAD, federation.kit("site-1")]
        seen[by] = subprocess.run(command, env=shell, capture_output=True, text=True, check=True).stdout
    assert "'problem': ''" in seen["+2h"]
    assert re.search(r"'ahead_s': (7199|720\d)\.", seen["+2h"]), seen
    assert "is not yet valid by this machine's clock" in seen["-3650d"]
    assert re.search(r"'ahead_s': -31\d{7}\.", seen["-3650d"]), seen


@pytest.mark.attack(
    "an accident",
    "a copy of a site's machine is started beside it, such as a VM restored from a snapshot",
    "the copy is refused, every log and the admins are told within a minute, and the site's job goes on",
)
@pytest.mark.attack(
    "an accident",
    "a copy of a site's machine takes its place while it is frozen, and ends",
    "the site is told, joins by itself within a minute of the copy's end, and its job ends well",
)
@pytest.mark.attack(
    "an outsider",
    "a stolen kit is used, with code of its own, to register as a site that is connected",
    "it is refused and told to the site and the admins",
)
def test_a_second_machine_with_a_sites_kit_is_refused_and_takes_over_only_when_the_first_is_silent(
    federation, tmp_path, monkeypatch, caplog
):
    kit, server, first = federation.kit("site-1"), federation.running["server"], federation.running["site-1"]
    words = {**WORDS, "phases": [{"name": "train", "rounds": 8}], "quorum": 2}
    run = federation.storage / "runs" / "twice" / "server" / "run.json"

    def done():
        return json.loads(run.read_text())["done"] if run.exists() else 0

    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, "twice", words, sites=SITES[:2])))
        wait_for(lambda: done() >= 1, "round 0")
        held = [psutil.Process(pid) for pid in processes_of(federation.kit("site-2"), job)]
        for process in held:  # no round ends, however long the next lines take
            process.suspend()
        copy = federation.start("copy", copy_kit(kit, tmp_path / "copy" / "site-1"))
        server.wait_until("site-1: a second machine with its kit, at 127.0.0.1, is being refused")
        first.wait_until("a second machine with this site's kit, at 127.0.0.1, tries to join and is refused")
        copy.wait_until("the server refuses this machine, at 127.0.0.1: another one with this site's kit")
        lead = ("--kit", federation.kit(LEAD))
        said = "site-1: a second machine with its kit, at 127.0.0.1, is being refused"
        assert said in fedretina("status", *lead)
        assert said in fedretina("watch", job, *lead, "--timeout", 30, code=4)
        assert json.loads(fedretina("status", *lead, "--json"))["second_machines"][0]["site"] == "site-1"
        with federation.session(MEMBER) as member:
            assert said in str(member.api.do_command("second_machines"))
        for site in ("site-1", "site-2"):  # the other site's certificate does not even make it a second machine
            caplog.clear()
            with pytest.raises(FLCommunicationError):
                register_aside(federation.port, federation.kit(site), "site-1")
            assert "registration rejected: site-1 is connected already" in caplog.text
        assert "site-2.aside tried to register as site-1 and was refused" in server.text()
        told = [event.get("why", "") for event in federation.audited("server", "site sign-in refused")]
        assert any("a second machine with its kit, at 127.0.0.1" in why for why in told)
        assert "site-2.aside tried to register in its name" in told

        before = done()
        for process in held:
            process.resume()
        wait_for(lambda: done() > before, "a round beside the second machine")
        frozen = first.processes()
        for process in frozen:
            process.suspend()
        for name in ("from endpoint site-1 for exceeding", "Client: site-1 already registered"):
            assert name not in server.text()
        assert "Successfully registered" not in copy.text()
        assert copy.process.poll() is None

        copy.wait_until("Successfully registered client:site-1")
        for process in held:  # what a site says of a job's end while another has its place is lost
            process.suspend()
        for process in frozen:
            process.resume()
        first.wait_until("the server refuses this machine")
        federation.stop("copy")
        server.wait_until("Re-activate the client: site-1")
        for process in held:
            process.resume()
        assert ended(session, job)["status"] == "FINISHED:COMPLETED"
    found = json.loads((run.parent / "results.json").read_text())
    assert [step["refused"] for step in found["steps"]] == [{}] * len(found["steps"])
    assert "get_task request authentication failed" not in first.text()
    # A restarted site joins at once: its process left no connection that could answer.
    federation.stop("site-1")
    federation.start("site-1").wait_until("Successfully registered")
    assert server.text().count("site-1: the connection from 127.0.0.1 is gone or does not answer") == 1

    greet, greeted = SfmConnection.send_handshake, []
    monkeypatch.setattr(SfmConnection, "send_handshake", lambda self, kind: greet(self, Types.READY))
    with connected(federation.port, kit, "site-1") as cell:  # as if it were there already
        noting = SimpleNamespace(state_change=lambda endpoint: greeted.append(endpoint.name))
        cell.core_cell.communicator.register_monitor(noting)
        wait_for(lambda: "server.refused" in greeted, "a refusal")
    assert "server" not in greeted
    assert server.text().count("from endpoint site-1 for exceeding") == 1  # by the copy, of the frozen one
