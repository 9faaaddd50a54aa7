"""One provisioned federation serves many checks: kits of the whole consortium, server and three sites hardened."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "flare")]

from hospital import GRADES, write_hospital  # noqa: E402
from hostile_jobs import ENVIRONMENT, PLANTED  # noqa: E402
from jobs import SITES, WORDS, change_in_store, export  # noqa: E402
from simulation import fill_cache, write_job  # noqa: E402
from squid import LOGIN, NO_WAY, SQUID, Squid  # noqa: E402

from federation import (  # noqa: E402
    CONNECT_S,
    LEAD,
    WITH_CARDS,
    Federation,
    be_patient,
    distributed_kit,
    ended,
    fedretina,
    loopback_project,
    nvflare,
)
from ports import free_port  # noqa: E402


@pytest.fixture(scope="session")
def lasting() -> Iterator[None]:
    """Let pytest's temporary folders count as lasting ones; FLARE's own stay temporary."""
    from fedretina.kit import hardened

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardened, "_TEMPORARY", ("/tmp/nvflare", "/var/tmp"))
        yield


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Gives a copy of a workspace as provisioning leaves it under a shell's usual umask.

    It is provisioned once for all processes of a test run: that takes seconds, of which most are imports.
    """
    from fedretina.locks import folder_lock

    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "provisioned"
    whole = home / "whole"
    with folder_lock(home, 600):
        if not whole.exists():
            before = os.umask(0o022)
            try:
                nvflare(home, "provision", "-p", loopback_project(home, free_port()), "-w", home / "workspace")
            finally:
                os.umask(before)
            (home / "workspace").rename(whole)
    return lambda folder: Path(shutil.copytree(whole / "fedretina", folder / "fedretina"))


@pytest.fixture(scope="session")
def kits(tmp_path_factory: pytest.TempPathFactory, lasting: None) -> Iterator[Federation]:
    """Kits of the whole consortium, those of the server, three sites and the lead hardened; nothing runs but squid.

    Where there is a squid, site-2 is behind it.
    """
    federation = Federation(tmp_path_factory.mktemp("federation"))
    federation.provision()
    fedretina("kit", "harden", federation.kit("server"), "--bind", "loopback")
    be_patient(federation.kit("server"), federation.kit(LEAD))
    for seed, (site, grades) in enumerate(GRADES.items()):
        hospital = federation.hospital(site)
        write_hospital(hospital, grades, seed, state_root="runs")
        cards = ("--gpus", 2, "--gpu-memory", 20) if site == WITH_CARDS else ()
        fedretina("kit", "harden", federation.kit(site), "--site-file", hospital / "site.yaml", *cards)
    fedretina("kit", "harden", federation.kit(LEAD))
    if SQUID:  # else site-2 goes straight to the server, as the others do
        federation.proxy = Squid(federation.port)
        login = federation.hospital("site-2") / "proxy.login"
        login.touch(mode=0o600)
        login.write_text(f"{LOGIN}\n")
        through = ("--proxy", federation.proxy.address, "--proxy-login", login)
        fedretina("kit", "harden", federation.kit("site-2"), *through)
    for name in ("server", "site-3"):  # as `nvflare package` writes the script: with no config folder
        script = federation.kit(name) / "startup" / "sub_start.sh"
        script.write_text(script.read_text().replace("config_folder=config", "config_folder="))
    try:
        yield federation
    finally:
        federation.stop()
        if federation.proxy is not None:
            federation.proxy.stop()


@pytest.fixture(scope="session")
def federation(kits: Federation, once: Callable[[str], None]) -> Iterator[Federation]:
    """Server under a tap; a job changed in its store; then the sites; then the run `good`, done, by FLARE's recipe.

    Files of tests share it, and are done in one process, in their order (`ONE_FEDERATION`, tests/conftest.py). What a
    test changes of it is in that test's own runs and files, or is put back.
    """
    from nvflare.recipe import ProdEnv

    from fedretina.recipes import JobRecipe

    once("the provisioned federation")
    for site in SITES[1:]:  # the first reads its images in its own process
        hospital = kits.hospital(site)
        fill_cache(hospital / "site.yaml", site, WORDS, hospital / "runs")
    tap = kits.folder / "tap"
    server = kits.start("server", FEDRETINA_TEST_TAP=str(tap))
    server.wait_until("Server started")
    with kits.session(LEAD) as session:
        changed = session.submit_job(str(export(kits, "changed")))
        change_in_store(kits.storage, changed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENVIRONMENT, PLANTED["environment"])  # the server has another
            for name, value in NO_WAY.items():  # none of the sites' processes follows it
                patch.setenv(name, value)
            for site in SITES:
                kits.start(site)
        for site in SITES:
            kits.running[site].wait_until("Successfully registered")
        kits.ended = {"changed": ended(session, changed)}
        recipe = JobRecipe(write_job(kits.folder / "good-recipe", WORDS, SITES), run="good")
        run = recipe.run(ProdEnv(str(kits.kit(LEAD)), login_timeout=CONNECT_S, username=LEAD))
        kits.ended["good"] = ended(session, run.get_job_id())
    yield kits
    kits.stop()
    shutil.rmtree(tap)


@pytest.fixture(scope="session")
def foreign(kits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hardened site's kit of another consortium that names this one's server, made the distributed way."""
    kit = distributed_kit(tmp_path_factory.mktemp("foreign"), "site-9", kits.port)
    fedretina("kit", "harden", kit)
    fedretina("kit", "check", kit)
    return kit
