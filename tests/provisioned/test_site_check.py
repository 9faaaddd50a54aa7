"""What `fedretina site check` and `fedretina site ledger` say of a hardened kit; nothing is started."""

import csv
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections import namedtuple
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from credentials import certify
from hospital import SECRETS, write_hospital
from simulation import SMALL
from squid import LOGIN, NO_WAY, SQUID, Squid

from federation import LEAD, REPOSITORY, copy_kit, fedretina, point_to
from fedretina.kit import addresses, hardened, service_sight, site_check
from fedretina.kit.site_check import Door
from fedretina.kit.startup_kit import open_kit
from ports import free_port

pytestmark = pytest.mark.provisioned
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, workspace, lasting):
    """Kits as provisioning leaves them."""
    return workspace(tmp_path_factory.mktemp("fresh")) / "prod_00"


@pytest.fixture(scope="module")
def drawn_hospital(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "hospital"
    write_hospital(folder, 4, 7, state_root="runs")
    return folder


@pytest.fixture
def hospital(drawn_hospital, tmp_path):
    """A hospital of its own for each test."""
    return Path(shutil.copytree(drawn_hospital, tmp_path / "hospital"))


@pytest.fixture
def kit(fresh, tmp_path, hospital):
    """A hardened site with data."""
    folder = copy_kit(fresh / "site-1", tmp_path / "kit")
    fedretina("kit", "harden", folder, "--site-file", hospital / "site.yaml")
    return folder


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


@pytest.fixture
def look(kit, experiment):
    """Findings by what was looked at."""

    def looked(*options, code):
        words = ("site", "check", kit, "--experiment", experiment, "--json", *options)
        return {found["what"]: found for found in json.loads(fedretina(*words, code=code))}

    return looked


def test_a_site_that_is_ready(look, kit, experiment):
    found = look("--offline", code=0)
    assert found["data"]["found"] == "24/8/8 images (train/val/test), 4 grades"
    assert found["dry forward pass"]["found"].startswith("few_blocks on cpu, 8 images of 32 pixels")
    assert {"certificate", "rights", "site policy", "versions", "state", "disk"} <= set(found)
    assert {"GPU", "shared memory", "cache", "locks"} <= set(found)
    text = fedretina("site", "check", kit, "--experiment", experiment, "--offline")
    assert "FAIL" not in text


@pytest.mark.parametrize(
    ("begins", "ends", "good", "said"),
    [
        (0, 300, True, "one provisioning"),
        (40, 300, None, "the server's is newer: ask the project admin"),
        (-40, 300, None, "this kit is newer"),
        (0, 9, False, "whose certificate ends"),
    ],
)
def test_a_kit_of_another_generation_than_the_servers(look, kit, monkeypatch, begins, ends, good, said):
    now, own = datetime.now(UTC), open_kit(kit).certificate.begins
    door = Door("", 0.0, begins=own + timedelta(days=begins), ends=now + timedelta(days=ends))
    monkeypatch.setattr(site_check, "knock", lambda kit: door)
    found = look(code=0 if good is not False else 1)["generation"]
    assert found["good"] is good
    assert said in found["found"]


def test_a_server_that_is_not_there(look):
    found = look(code=1)
    assert "cannot be reached" in found["server"]["found"]
    assert "name the proxy that does" in found["server"]["mend"]
    assert [what for what, finding in found.items() if finding["good"] is False] == ["server"]


def test_a_name_that_no_dns_knows_is_no_matter_of_the_firewall(kit):
    point_to(kit, 8002, "no-such-server.invalid")
    found = site_check.knock(open_kit(kit))
    assert "this machine knows no address for no-such-server.invalid" in found.problem
    assert "DNS" in found.mend
    assert "firewall" not in found.mend
    fedretina("kit", "harden", kit, "--proxy", "http://no-such-proxy.invalid:3128")
    found = site_check.knock(open_kit(kit))
    assert "this machine knows no address for the proxy http://no-such-proxy.invalid:3128" in found.problem
    assert "firewall" not in found.mend


@pytest.mark.parametrize(("ahead", "good"), [(0.4, True), (-29.0, True), (31.0, False), (-3600.0, False), (None, None)])
def test_the_clock_is_held_against_the_servers(look, monkeypatch, ahead, good):
    monkeypatch.setattr(site_check, "knock", lambda kit: Door("", ahead))
    found = look(code=1 if good is False else 0)["clock"]
    assert found["good"] is good
    if good is False:
        assert "NTP" in found["mend"]


@pytest.fixture
def door(fresh, tmp_path, kit):
    """A server that speaks TLS with the consortium's certificate and states a time, as it is told.

    FLARE's own server runs by this machine's clock, so it cannot stand for one whose clock is another.
    """
    servers = []

    def opened(days, ahead=timedelta()):
        startup = copy_kit(fresh / "server", tmp_path / f"server-{len(servers)}") / "startup"
        certify(startup / "server.crt", fresh.parent / "state", days)
        date = format_datetime(datetime.now(UTC) + ahead, usegmt=True)

        class Answers(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_response_only(404)
                self.send_header("Date", date)
                self.end_headers()

            def log_message(self, *words):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=startup / "rootCA.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(startup / "server.crt", startup / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        point_to(kit, server.server_address[1])

    yield opened
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("days", "ahead", "bad", "said", "mend"),
    [
        (
            (1, 300),
            timedelta(days=2),
            ["server", "clock"],
            "is not yet valid by this machine's clock",
            "this machine's",
        ),
        ((-300, -1), timedelta(days=-2), ["server", "clock"], "has ended by this machine's clock", "this machine's"),
        ((1, 300), timedelta(), ["server"], "is not yet valid by this machine's clock and by its own", "project admin"),
        ((-300, -1), timedelta(), ["server"], "has ended by this machine's clock and by its own", "project admin"),
    ],
)
def test_a_clock_that_is_wrong_is_told_from_a_server_that_is(look, door, days, ahead, bad, said, mend):
    door(days, ahead)
    found = look(code=1)
    assert [what for what, finding in found.items() if finding["good"] is False] == bad
    assert said in found["server"]["found"]
    assert mend in found["server"]["mend"]
    assert found["clock"]["good"] is ("clock" not in bad)


def test_a_server_that_takes_an_old_tls_is_told_of(look, door):
    door((-1, 300))
    assert "TLSv1.3, and takes TLS 1.2 as well" in look(code=0)["server's TLS"]["found"]


@pytest.fixture
def behind(kit, door, tmp_path):
    """A squid between the site and a server that answers; gives the squid and the file of the login."""
    if SQUID is None:
        pytest.skip("squid is not on this machine")
    door((-1, 300))
    squid = Squid(open_kit(kit).target[1])
    login = tmp_path / "proxy.login"
    login.touch(mode=0o600)
    login.write_text(f"{LOGIN}\n")
    yield squid, login
    squid.stop()


def test_a_proxy_is_named_in_what_the_site_check_says(look, kit, behind, monkeypatch):
    """Each thing that a proxy may refuse, with what mends it; at last it lets the site through."""
    squid, login = behind
    port = open_kit(kit).target[1]

    def said(*options):
        fedretina("kit", "harden", kit, "--proxy", squid.address, *options)
        door = site_check.knock(open_kit(kit))
        assert door.mend
        return door.problem

    assert said() == f"the proxy {squid.address} asks for a login"
    login.write_text("hospital:wrong\n")
    assert said("--proxy-login", login) == f"the proxy {squid.address} refuses the login"
    login.write_text(f"{LOGIN}\n")
    point_to(kit, port, "127.0.0.2")  # where nobody listens
    assert f"does not reach 127.0.0.2:{port} (it answers 503)" in said("--proxy-login", login)
    point_to(kit, free_port(), "localhost")
    assert f"the proxy {squid.address} forbids CONNECT to localhost" in said("--proxy-login", login)
    point_to(kit, port)
    squid.kill()
    assert f"the proxy {squid.address} cannot be reached" in said("--proxy-login", login)
    squid.start()
    for name, value in NO_WAY.items():
        monkeypatch.setenv(name, value)
    found = look(code=0)
    assert f"knows this site's certificate, through the proxy {squid.address}" in found["server"]["found"]
    assert "127.0.0.1:9, which the site does not use" in found["proxy of the environment"]["found"]
    fedretina("kit", "harden", kit, "--proxy", "none")
    point_to(kit, free_port())
    found = look(code=1)["proxy of the environment"]
    assert (found["good"], "--proxy http://127.0.0.1:9" in found["mend"]) == (False, True)


def test_a_proxy_that_opens_tls_is_told_from_the_server(kit, tmp_path):
    """Its certificate is of another authority, and this site's own is not shown to it."""
    ca, leaf, chain = (tmp_path / name for name in ("ca", "leaf", "chain"))
    made = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    for path, subject, more in (
        (ca, "/O=Hospital/CN=Hospital TLS Inspection", ()),
        (leaf, "/CN=localhost", ("-CA", f"{ca}.crt", "-CAkey", f"{ca}.key")),
    ):
        files = ("-keyout", f"{path}.key", "-out", f"{path}.crt")
        subprocess.run([*made, *files, "-subj", subject, *more], capture_output=True, check=True)
    chain.write_text("".join(Path(f"{path}.crt").read_text() for path in (leaf, ca)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, f"{leaf}.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            for _ in range(2):
                with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as opened:
                    opened.recv(1)

        thread = Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        point_to(kit, port)
        found = site_check.knock(open_kit(kit))
        thread.join()
    page = (REPOSITORY / "docs" / "network.md").read_text()
    assert f"FAIL  server: {found.problem.replace(f'localhost:{port}', 'fl.consortium.example:443')}\n" in page
    assert "pass unopened" in found.mend


def _install_unit(kit, system, monkeypatch):
    """A site's systemd unit in a folder, which lets the service speak with one address and write beside that folder."""
    system.mkdir()
    monkeypatch.setattr(addresses, "UNIT_FOLDER", system)
    monkeypatch.setattr(service_sight, "_TEMPORARY", (system / "tmp",))  # the tests' files may lie below /tmp
    unit = (REPOSITORY / "provisioning" / "fedretina-site.service").read_text()
    (system / "fedretina-site.service").write_text(
        unit.replace("ReadWritePaths=/srv/", f"ReadWritePaths={system.parent} /srv/")
    )
    fedretina("kit", "addresses", kit, "192.0.2.10")


def test_a_server_that_has_moved_is_told_from_one_that_is_away(look, kit, tmp_path, monkeypatch):
    _install_unit(kit, tmp_path / "system", monkeypatch)
    point_to(kit, 8002, "198.51.100.7")  # an address is its own name: nothing is looked up
    monkeypatch.setattr(site_check, "knock", lambda kit: Door("", 0.0))
    found = look(code=1)
    assert [what for what, finding in found.items() if finding["good"] is False] == ["server's address"]
    assert (
        "198.51.100.7 has 198.51.100.7 now, with which the service may not speak" in found["server's address"]["found"]
    )
    fedretina("kit", "addresses", kit)
    assert "server's address" not in look(code=0)


def test_files_at_home_that_the_service_would_not_see(look, kit, hospital, tmp_path, monkeypatch):
    system, link = tmp_path / "system", tmp_path / "link"
    link.symlink_to(hospital)
    monkeypatch.setattr(service_sight, "_HOMES", (link, Path("/root")))
    monkeypatch.setattr(addresses, "UNIT_FOLDER", system)
    assert "service's files" not in look("--offline", code=0)  # no unit, so no service
    _install_unit(kit, system, monkeypatch)
    found = look("--offline", code=1)
    assert [what for what, finding in found.items() if finding["good"] is False] == ["service's files"]
    for name in ("data.manifest", "data.images", "state_root"):
        assert name in found["service's files"]["found"], name
    assert "data.cache" not in found["service's files"]["found"]  # it lies where the runs do
    mend = found["service's files"]["mend"]
    assert "`ProtectHome=read-only`" in mend
    assert f"`ReadWritePaths={hospital / 'runs'}`" in mend
    drop_in = system / "fedretina-site.service.d" / "override.conf"
    drop_in.write_text("[Service]\nProtectHome=read-only\nReadWritePaths=\n")
    found = look("--offline", code=1)["service's files"]["found"]
    assert "state_root" in found
    assert "data.manifest" not in found
    drop_in.write_text(f"[Service]\nProtectHome=read-only\nReadWritePaths={hospital / 'runs'}\n")
    look("--offline", code=0)
    drop_in.write_text(f"[Service]\nProtectHome=tmpfs\nBindReadOnlyPaths={hospital}\nReadWritePaths=\n")
    found = look("--offline", code=1)["service's files"]
    assert "state_root" in found["found"]
    assert "data.images" not in found["found"]
    assert f"`BindPaths={hospital / 'runs'}`" in found["mend"]
    drop_in.write_text(f"[Service]\nProtectHome=tmpfs\nBindPaths=-/elsewhere:{hospital}:norbind\n")
    look("--offline", code=0)


def test_files_outside_the_homes_that_the_service_does_not_see_or_may_not_write(
    look, kit, hospital, tmp_path, monkeypatch
):
    system = tmp_path / "system"
    _install_unit(kit, system, monkeypatch)
    assert "service's files" not in look("--offline", code=0)
    drop_in = system / "fedretina-site.service.d" / "override.conf"
    drop_in.write_text("[Service]\nReadWritePaths=\nReadWritePaths=/srv/fedretina\n")
    found = look("--offline", code=1)["service's files"]
    assert f"state_root ({hospital / 'runs'}) may not be written (ProtectSystem=strict)" in found["found"]
    assert "data.images" not in found["found"]
    assert found["mend"].startswith(f"write `ReadWritePaths={hospital / 'runs'}` below")
    drop_in.write_text(f"[Service]\nTemporaryFileSystem={hospital}:ro\n")  # as the unit does with /run
    monkeypatch.setattr(service_sight, "_TEMPORARY", (hospital / "images",))
    found = look("--offline", code=1)["service's files"]
    assert f"data.images ({hospital / 'images'}) is not seen (PrivateTmp=yes)" in found["found"]
    assert f"(TemporaryFileSystem={hospital}:ro)" in found["found"]
    assert f"move it out of {hospital / 'images'}, {hospital}; or write" in found["mend"]
    mend = f"BindReadOnlyPaths={hospital / 'images'} {hospital / 'manifest.csv'}\nBindPaths={hospital / 'runs'}\n"
    assert all(f"`{line}`" in found["mend"] for line in mend.split("\n") if line)
    drop_in.write_text(f"[Service]\nTemporaryFileSystem={hospital}:ro\n{mend}")
    look("--offline", code=0)


def remove_manifest(hospital):
    (hospital / "manifest.csv").unlink()


def remove_image(hospital):
    (hospital / "images" / "tell-tale-7-03.jpg").unlink()


def cut_images(hospital):
    for path in (hospital / "images").glob("*-0*.jpg"):
        path.write_bytes(path.read_bytes()[:200])


def unknown_label(hospital):
    path = hospital / "manifest.csv"
    path.write_text(path.read_text().replace("grade-called-3", "worse"))


def no_data(hospital):
    (hospital / "site.yaml").write_text("state_root: runs\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove_manifest, "manifest"),
        (remove_image, "1 of 40 files are missing, such as tell-tale-7-03.jpg"),
        (cut_images, "cannot be read"),
        (unknown_label, "'worse'"),
        (no_data, "phantom hospital"),
    ],
)
def test_each_fault_of_the_data_is_found(look, hospital, damage, said):
    damage(hospital)
    found = look("--offline", code=1)
    assert [what for what, finding in found.items() if finding["good"] is False] == ["data"]
    assert said in found["data"]["found"]


def test_a_rehearsal_needs_no_data(look, hospital):
    no_data(hospital)
    assert look("--offline", "--phantom", code=0)["data"]["good"] is None


def test_a_site_file_that_was_never_filled_in(fresh, tmp_path):
    folder = copy_kit(fresh / "site-2", tmp_path / "untouched")
    fedretina("kit", "harden", folder)
    text = fedretina("site", "check", folder, "--offline", code=1)
    assert "FAIL  site file" in text
    assert "holds no settings" in text


def test_settings_that_cannot_be_are_found(look, hospital):
    (hospital / "site.yaml").write_text("policy: {hold_back: [theta]}\n")
    found = look("--offline", code=1)
    assert "'theta' cannot be held back" in found["site file"]["found"]
    assert "data" not in found


def test_state_disk_and_versions(look, monkeypatch, hospital):
    monkeypatch.setattr(hardened, "_TEMPORARY", (str(hospital),))
    assert "may be emptied" in look("--offline", code=1)["state"]["found"]
    monkeypatch.setattr(hardened, "_TEMPORARY", ("/tmp/nvflare",))
    monkeypatch.setattr(site_check.shutil, "disk_usage", lambda path: Usage(9e9, 8e9, 1e9))
    assert "1.0 GB free" in look("--offline", code=1)["disk"]["found"]
    monkeypatch.undo()
    monkeypatch.setattr(hardened, "_TEMPORARY", ("/tmp/nvflare",))
    monkeypatch.setattr(site_check.importlib.metadata, "version", lambda name: "2.8.1")
    assert "nvflare 2.8.1" in look("--offline", code=1)["versions"]["found"]


def test_only_a_site_has_a_site_to_check(fresh, tmp_path):
    folder = copy_kit(fresh / LEAD, tmp_path / "lead")
    assert f"no site's kit but that of {LEAD}" in fedretina("site", "check", folder, code=2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a kit to another user")
def test_root_leaves_no_files_that_the_service_cannot_write(kit, hospital):
    os.chown(kit, 65534, 65534)
    assert "sudo -u '#65534' fedretina site check" in fedretina("site", "check", kit, "--offline", code=2)
    assert not (hospital / "runs").exists()


def test_the_ledger_of_a_site_that_has_sent_nothing(kit):
    assert fedretina("site", "ledger", kit) == "nothing has left site-1.\n"
    assert json.loads(fedretina("site", "ledger", kit, "--json")) == []
    assert "nothing of a run 'x' has left" in fedretina("site", "ledger", kit, "--run", "x", code=2)
    assert "choose one" in fedretina("site", "ledger", kit, "--json", "--csv", code=2)


def test_the_ledger_is_shown_in_full(kit, hospital):
    line = {
        "run": "spring",
        "phase": "train",
        "round": 1,
        "attempt": 1,
        "tensors": {"control": 2, "encoder": 49},
        "scalars": {"theta": 0.5, "val_auc": 0.75},
        "bytes": 13_315_968,
        "digest": "ab" * 32,
        "held_back": ["images"],
        "privacy": {"kind": "gaussian", "rho": 0.5, "epsilon_so_far": 5.3},
    }
    path = hospital / "runs" / "spring" / "site-1" / "ledger.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(line) + "\n")
    text = fedretina("site", "ledger", kit)
    assert text.splitlines() == [
        "run spring: 1 message, 13.3 MB of tensors",
        "  train 1 (attempt 1): 2 control; 49 encoder, 13315968 bytes, sha256 abababababab",
        "    scalars: theta=0.5; val_auc=0.75",
        '    policy: held_back=["images"]; privacy={"kind": "gaussian", "rho": 0.5, "epsilon_so_far": 5.3}',
        "in all: kinds control, encoder; scalars theta, val_auc",
        "privacy budget spent over all runs: epsilon 5.3",
    ]
    assert json.loads(fedretina("site", "ledger", kit, "--json")) == [line]
    (row,) = csv.DictReader(fedretina("site", "ledger", kit, "--csv", "--run", "spring").splitlines())
    assert (row["run"], row["tensors"], row["bytes"]) == ("spring", "2 control; 49 encoder", "13315968")
    assert row["digest"] == line["digest"]


def test_the_page_of_a_site_is_written_where_nothing_runs(look, kit, fresh, hospital, tmp_path):
    """It knows of the last check and names no file, folder or patient."""
    look("--offline", code=0)
    written = fedretina("site", "page", kit).strip()
    assert written == str(hospital / "runs" / "status" / "site-1.html")
    page = (hospital / "runs" / "status" / "site-1.html").read_text()
    assert "no process of this end has said anything yet" in page
    assert "data check: 24/8/8 images (train/val/test), 4 grades" in page
    assert "GPU: none" in page or "seen now" in page
    assert 'http-equiv="refresh"' not in page
    for word in (*SECRETS, str(tmp_path), "/srv"):
        assert word not in page, word
    first = min((hospital / "images").iterdir())
    first.rename(hospital / "elsewhere.jpg")
    look("--offline", code=1)
    os.utime(hospital / "manifest.csv", (time.time() + 60, time.time() + 60))
    fedretina("site", "page", kit, "--out", tmp_path / "share.html")
    later = (tmp_path / "share.html").read_text()
    assert "data check</strong>: must be mended" in later
    assert "the list of images has changed since the last check" in later
    assert first.name not in later
    assert "run `fedretina site check` on the kit of site-1." in later
    site_file = hospital / "site.yaml"
    site_file.write_text(site_file.read_text() + "page: share/eyes.html\n")
    before = os.umask(0o077)  # the service's
    assert fedretina("site", "page", kit).strip() == str(hospital / "share" / "eyes.html")
    os.umask(before)
    assert (hospital / "share" / "eyes.html").stat().st_mode & 0o777 == 0o644  # for whom the folder lets in
    assert "only a site and the server have a page" in fedretina("site", "page", fresh / LEAD, code=2)
    site_file.write_text(site_file.read_text().replace("eyes.html", "eyes.txt"))
    assert "name a file that ends in .html" in fedretina("site", "page", kit, code=2)


def test_the_page_shows_no_folder_and_no_address_of_a_mend(look, kit, tmp_path, monkeypatch):
    """What `site check` says for the terminal names the kit's folder, the proxy and the server's address."""
    _install_unit(kit, tmp_path / "system", monkeypatch)
    point_to(kit, 8002, "198.51.100.7")
    monkeypatch.setenv("https_proxy", "http://proxy.hospital.example:3128")
    monkeypatch.setattr(site_check, "knock", lambda kit: Door("198.51.100.7:8002 cannot be reached", None))
    found = look(code=1)
    for what in ("server's address", "proxy of the environment"):
        assert str(kit) in found[what]["mend"], what
    page = Path(fedretina("site", "page", kit).strip()).read_text()
    for what in ("server&#39;s address", "proxy of the environment", "server"):
        assert f"<strong>{what}</strong>: must be mended" in page, what
    for word in (*SECRETS, str(tmp_path), "proxy.hospital.example", "198.51.100.7"):
        assert word not in page, word
