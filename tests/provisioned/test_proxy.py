"""A site and an admin behind a real squid, in a federation whose other sites are not; and the squid that dies."""

import base64
import json
from datetime import datetime, timedelta

import psutil
import pytest
from jobs import export
from simulation import results
from squid import LOGIN, SQUID

from federation import FAKETIME, LEAD, MEMBER, clock, copy_kit, ended, fedretina, files_below, processes_of, wait_for
from fedretina.kit.door import knock
from fedretina.kit.startup_kit import open_kit

pytestmark = [
    pytest.mark.flare,
    pytest.mark.provisioned,
    pytest.mark.skipif(SQUID is None, reason="squid is not on this machine"),
]


def ends(processes):
    """Ports of this machine that processes have as their own, and those that they are connected to."""
    held = [one for process in processes for one in process.net_connections("tcp")]
    return {one.laddr.port for one in held}, {one.raddr.port for one in held if one.raddr}


def linked(processes):
    """As `ends`, once they are connected to each other: connections come one by one."""
    own, others = ends(processes)
    return (own, others) if own & others else None


@pytest.mark.attack(
    "an outsider",
    "whoever runs the hospital's proxy keeps what passes it",
    "the server's name and port, the proxy's own login and the number of bytes; the rest is TLS from end to end",
)
@pytest.mark.attack(
    "an accident",
    "the clock of a site's machine is two hours ahead of the others'",
    "it joins, and a run has the same bits; its logs bear its own time, and `site check` tells how far it is ahead",
)
@pytest.mark.attack(
    "an accident",
    "the hospital's proxy dies in the middle of a run",
    "once it is back the run goes on by itself, with the same bits",
)
def test_all_of_a_site_goes_through_its_proxy_and_the_proxy_may_die(federation):
    if FAKETIME.exists():  # the whole of another site, its jobs included, until it is started anew for another test
        federation.stop("site-3")
        federation.start("site-3", **clock("+2h")).wait_until("Successfully registered")
    proxy, kit, site = federation.proxy, federation.kit("site-2"), federation.running["site-2"]
    sent = "task result sent to server"
    before = site.text().count(sent)
    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, "again")))
        (third,) = wait_for(lambda: processes_of(federation.kit("site-3"), job), "the job's process of site-3")
        held = psutil.Process(third)
        held.suspend()  # no round ends, however long the next lines take
        (child,) = wait_for(lambda: processes_of(kit, job), "the job's process of site-2")
        wait_for(lambda: proxy.port in ends([psutil.Process(child)])[1], "it is connected through the proxy")
        own, others = wait_for(lambda: linked(site.processes()), "what its processes say to each other")
        assert others - own == {proxy.port}  # and that goes past the proxy
        own, others = ends(federation.running["site-1"].processes())
        assert others - own == {federation.port}
        wait_for(lambda: site.text().count(sent) > before, "site-2's answer in round 0")
        lost = site.text().count("is closed PID")
        proxy.kill()
        wait_for(lambda: site.text().count("is closed PID") >= lost + 2, "both processes have noticed")
        proxy.start()
        held.resume()
        status = ended(session, job)["status"]
    assert status == "FINISHED:COMPLETED", site.text()[-4000:]
    runs = federation.storage / "runs"
    assert results(runs, "again") == results(runs, "good")
    if FAKETIME.exists():
        said = federation.running["site-3"].text().rpartition("child worker process finished")[0].splitlines()[-1]
        ahead = datetime.fromisoformat(said[:19]) - datetime.now()
        assert timedelta(hours=1, minutes=30) < ahead < timedelta(hours=2), said
    assert set(proxy.let_through()) == {("CONNECT", f"localhost:{federation.port}", "hospital")}
    for words in (LOGIN.partition(":")[2], base64.b64encode(LOGIN.encode()).decode()):
        folders = (kit, federation.kit("server"), federation.hospital("site-2") / "runs", proxy.folder)
        holds = [path.name for path in files_below(*folders) if words.encode() in path.read_bytes()]
        assert not holds, words
        for process in site.processes():
            assert words not in " ".join([*process.cmdline(), *process.environ().values()])


def test_the_way_through_the_proxy_is_looked_at_from_outside(federation):
    door = knock(open_kit(federation.kit("site-2")))
    assert (door.problem, door.tls) == ("", "TLSv1.3")


def test_an_admin_goes_through_the_proxy_too(federation, tmp_path):
    login = federation.hospital("site-2") / "proxy.login"
    kit = copy_kit(federation.kit(MEMBER), tmp_path / MEMBER)
    fedretina("kit", "harden", kit, "--proxy", federation.proxy.address, "--proxy-login", login)
    before = len(federation.proxy.let_through())
    assert "site-2" in fedretina("status", "--kit", kit)
    wait_for(lambda: len(federation.proxy.let_through()) > before, "its connection is listed when it has ended")
    fedretina("kit", "harden", kit, "--proxy", "none")
    assert json.loads((kit / "startup" / "fed_admin.json").read_text()) == json.loads(
        (federation.kit(MEMBER) / "startup" / "fed_admin.json").read_text()
    )
