"""A site behind a real squid, as the other sites' equal; and the squid dies in the middle of a run."""

import json
import shutil

import psutil
import pytest
from jobs import SITES, export
from simulation import results
from squid import LOGIN, SQUID

from federation import LEAD, copy_kit, ended, fedretina, files_below, processes_of, wait_for
from fedretina.exchange.ledger import Ledger

pytestmark = [
    pytest.mark.flare,
    pytest.mark.provisioned,
    pytest.mark.skipif(SQUID is None, reason="squid is not on this machine"),
]


def peers(pid):
    """Ports that a process has connections to."""
    return {held.raddr.port for held in psutil.Process(pid).net_connections("tcp") if held.raddr and not is_listen(held)}


def is_listen(held):
    return held.status == psutil.CONN_LISTEN


def listens(pid):
    return {held.laddr.port for held in psutil.Process(pid).net_connections("tcp") if is_listen(held)}


def test_all_of_a_site_goes_through_its_proxy_and_the_proxy_may_die(federation):
    proxy, kit = federation.proxy, federation.kit("site-2")
    run = federation.storage / "runs" / "again" / "server" / "run.json"
    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, "again")))
        (child,) = wait_for(lambda: processes_of(kit, job), "the job's process of site-2")
        wait_for(lambda: proxy.port in peers(child), "it is connected")
        (parent,) = {process.pid for process in federation.running["site-2"].processes()} - {child}
        print(peers(child), listens(parent), peers(parent), federation.port, proxy.port)
        wait_for(lambda: run.exists() and json.loads(run.read_text())["done"] >= 1, "round 0")
        proxy.kill()
        wait_for(lambda: proxy.port not in peers(parent), "cut")
        import time
        time.sleep(3)
        t=time.time()
        proxy.start()
        print(ended(session, job)["status"], time.time()-t)
    print(results(federation.storage / "runs", "again") == results(federation.storage / "runs", "good"))
    print(proxy.let_through())
    print(federation.running["site-2"].text()[-6000:])
    assert 0
