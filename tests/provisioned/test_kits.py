"""Hardening and its check on kits as FLARE's provisioning writes them; nothing is started."""

import json
import shutil
import subprocess
import sys

import pytest
from credentials import certify, expire
from jobs import SITES
from nvflare.apis.fl_context import FLContext

from federation import LEAD, REPOSITORY, copy_kit, fedretina, point_to
from fedretina.kit import addresses
from fedretina.kit.job_folder import ALLOWED_CLASSES
from fedretina.kit.startup_kit import open_kit

pytestmark = pytest.mark.provisioned
OTHER_FILTER = {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars", "args": {}}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, workspace):
    """The workspace as provisioning leaves it."""
    return workspace(tmp_path_factory.mktemp("fresh"))


@pytest.fixture
def kit(fresh, tmp_path, lasting):
    """A fresh copy of one participant's kit."""
    return lambda name: copy_kit(fresh / "prod_00" / name, tmp_path / name)


@pytest.fixture
def site(kit):
    """A hardened site."""
    folder = kit("site-1")
    fedretina("kit", "harden", folder)
    return folder


@pytest.fixture
def server(kit):
    """A hardened server."""
    folder = kit("server")
    fedretina("kit", "harden", folder, "--bind", "loopback")
    return folder


def findings(folder, code):
    return {found["what"]: found for found in json.loads(fedretina("kit", "check", folder, "--json", code=code))}


def edit(path, change):
    words = json.loads(path.read_text())
    change(words)
    path.write_text(json.dumps(words))


def at_host(host):
    """Let a site's kit know its server by another name."""

    def change(words):
        words["servers"][0]["service"]["target"] = f"{host}:8002"

    return change


def test_a_fresh_kit_fails_and_a_hardened_one_passes(kit):
    for name, options in (("site-1", ()), ("server", ("--bind", "all")), (LEAD, ())):
        folder = kit(name)
        bad = {what for what, found in findings(folder, 1).items() if found["good"] is False}
        assert "file rights" in bad
        if name != LEAD:
            assert {"rights", "allow-list", "log streaming", "configuration formats"} <= bad
        fedretina("kit", "harden", folder, *options)
        assert all(found["good"] is not False for found in findings(folder, 0).values())
        assert "FAIL" not in fedretina("kit", "check", folder)


def test_a_second_hardening_changes_nothing(site):
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert "wrote" not in fedretina("kit", "harden", site)
    assert before == {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}


STARTED = """
import os, sys
from argparse import Namespace
from nvflare.apis.workspace import Workspace
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.app.fl_conf import FLClientStarterConfiger, FLServerStarterConfiger
kit, role, job = sys.argv[1:]
words = {"sp_scheme": "https", "sp_target": "x:1", "parent_url": "tcp://x:1", "parent_conn_sec": "mtls"}
args = Namespace(workspace=kit, job_id=job or None, set=[], **words)
kind = FLServerStarterConfiger if role == "server" else FLClientStarterConfiger
os.chdir(kit)
options = ["secure_train=true", "uid=site-1", "org=o", "config_folder=config"]
kind(workspace=Workspace(kit, "site-1", "config"), args=args, kv_list=options).configure()
print(sorted(type(loader).__name__ for loader in ConfigFactory._fmt2Loader.values()))
"""


@pytest.mark.parametrize("job", ["", "a-job"], ids=["parent", "job"])
@pytest.mark.parametrize("role", ["site", "server"])
def test_every_process_of_a_hardened_kit_reads_json_alone_once_it_is_configured(request, role, job):
    """FLARE configures a process, of a job too, before it looks at a job's files."""
    command = [sys.executable, "-c", STARTED, str(request.getfixturevalue(role)), role, job]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.stdout.splitlines()[-1:] == ["['JsonConfigLoader', 'NoLoader', 'NoLoader']"], said.stdout + said.stderr


@pytest.mark.parametrize("role", ["site", "server"])
def test_a_kit_that_an_earlier_version_hardened_is_found_and_mended(request, role):
    folder = request.getfixturevalue(role)

    def as_before(words):
        words.pop("app_validator", None)
        words["components"] = [part for part in words["components"] if part["id"] != "app_deployer"]

    path = folder / "local" / "resources.json"
    hardened = json.loads(path.read_text())
    edit(path, as_before)
    found = findings(folder, 1)
    assert [name for name, finding in found.items() if finding["good"] is False] == ["configuration formats"]
    assert "fedretina.flare.job_door.Job" in fedretina("kit", "harden", folder, "--dry-run")
    fedretina("kit", "harden", folder)
    assert json.loads(path.read_text()) == hardened
    findings(folder, 0)


def manager_of(folder):
    """FLARE's own manager as the kit words it."""
    from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager

    components = json.loads((folder / "local" / "resources.json").read_text())["components"]
    (found,) = [part for part in components if part["id"] == "resource_manager"]
    return GPUResourceManager(**found["args"])


def test_jobs_are_given_the_cards_that_the_hospital_offers_and_one_each(kit):
    folder = kit("site-1")
    fedretina("kit", "harden", folder)
    assert findings(folder, 0)["GPUs for jobs"]["found"].startswith("none may be asked for")
    asked = {"num_of_gpus": 1, "mem_per_gpu_in_GiB": 12.0}  # as `fedretina job export --gpu` writes it
    assert manager_of(folder).check_resources(asked, FLContext()) == (False, "")
    assert manager_of(folder).check_resources({}, FLContext())[0]  # of a job that asks for none
    fedretina("kit", "harden", folder, "--gpus", 2, "--gpu-memory", 20)
    fedretina("kit", "harden", folder)  # after an upgrade: what was offered stays
    assert findings(folder, 0)["GPUs for jobs"]["found"].startswith("2 of 20 GiB")
    manager, given = manager_of(folder), []
    for _ in range(2):
        enough, token = manager.check_resources(asked, FLContext())
        assert enough
        given.append(manager.allocate_resources(asked, token, FLContext()))
    assert given == [{0: 12.0}, {1: 12.0}]
    assert not manager.check_resources(asked, FLContext())[0]  # 8 GiB are left of each
    manager.free_resources(given[0], "", FLContext())
    assert manager.check_resources(asked, FLContext())[0]
    assert "how much memory" in fedretina("kit", "harden", folder, "--gpus", 1, code=2)
    assert "site's kit" in fedretina("kit", "harden", kit("server"), "--bind", "all", "--gpus", 1, code=2)
    fedretina("kit", "harden", folder, "--gpus", 0)
    assert findings(folder, 0)["GPUs for jobs"]["found"].startswith("none may be asked for")


def test_a_component_of_another_version_is_found(site):
    path = site / "local" / "resources.json"
    path.write_text(path.read_text().replace("fedretina.flare.status_page.", "fedretina.flare.gone."))
    assert "fedretina.flare.gone.StatusPage" in findings(site, 1)["components"]["found"]
    fedretina("kit", "harden", site)
    assert findings(site, 1)["components"]["good"] is False  # hardening takes away only what it knows


def test_a_dry_run_shows_and_changes_nothing(kit):
    folder = kit("site-1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shown = fedretina("kit", "harden", folder, "--dry-run")
    assert '+      "byoc": "none"' in shown
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_the_hospital_set_itself_stays(kit):
    folder = kit("site-1")
    scopes = [
        {"name": "ours", "properties": {"fedretina": {"site_file": "/srv/x.yaml"}, "more": 1}},
        {"name": "second"},
    ]
    scopes[0]["task_result_filters"] = [OTHER_FILTER]
    (folder / "local" / "privacy.json").write_text(json.dumps({"scopes": scopes, "default_scope": "second"}))
    fedretina("kit", "harden", folder)
    found = json.loads((folder / "local" / "privacy.json").read_text())
    assert found["default_scope"] == "second"
    assert found["scopes"][0]["properties"] == scopes[0]["properties"]
    assert found["scopes"][1]["properties"] == {"fedretina": {"site_file": "site.yaml"}}
    assert found["scopes"][0]["task_result_filters"][0] == OTHER_FILTER
    assert all(scope["task_result_filters"][-1]["args"]["scope"] for scope in found["scopes"])
    findings(folder, 0)


def weaken_rights(folder):
    edit(folder / "local" / "authorization.json", lambda words: words["permissions"]["lead"].update(byoc="any"))


def new_role(folder):
    edit(folder / "local" / "authorization.json", lambda words: words["permissions"].update(boss="any"))


def no_rights(folder):
    (folder / "local" / "authorization.json").unlink()


def allow_more(folder):
    edit(folder / "local" / "resources.json", lambda words: words["class_allow_list"].append("nvflare."))


def only_warn(folder):
    edit(folder / "local" / "resources.json", lambda words: words.update(class_list_enforcement_mode="warn"))


def stream_logs(folder):
    edit(folder / "local" / "resources.json", lambda words: words.update(allow_log_streaming=True))


def streamer_elsewhere(folder):
    streamer = {"id": "s", "path": "nvflare.app_common.logging.job_log_streamer.JobLogStreamer"}
    path = folder / "local" / "site__p_resources.json"
    path.write_text(json.dumps({"components": [streamer]}))
    path.chmod(0o600)


def untold(folder):
    def change(words):
        words["components"] = [part for part in words["components"] if "one_machine" not in part["path"]]

    edit(folder / "local" / "resources.json", change)


def tell_the_server(folder):
    edit(folder / "local" / "resources.json", lambda words: words.update(data_root="/srv/fundus"))


def flares_deployer(folder):
    def change(words):
        next(part for part in words["components"] if part["id"] == "app_deployer")["path"] = (
            "nvflare.private.fed.utils.app_deployer.AppDeployer"
        )

    edit(folder / "local" / "resources.json", change)


def drop_the_filter(folder):
    edit(folder / "local" / "privacy.json", lambda words: words["scopes"][0].update(task_result_filters=[]))


def filter_behind_ours(folder):
    change = lambda words: words["scopes"][0]["task_result_filters"].append(OTHER_FILTER)  # noqa: E731
    edit(folder / "local" / "privacy.json", change)


def another_scope(folder):
    edit(folder / "local" / "privacy.json", lambda words: words["scopes"].append({"name": "open"}))


def no_policy(folder):
    (folder / "local" / "privacy.json").unlink()


def readable_key(folder):
    (folder / "startup" / "client.key").chmod(0o644)


def older_tls(folder):
    (folder / "local" / "openssl.cnf").unlink()


def code_beside(folder):
    (folder / "local" / "custom").mkdir(mode=0o700)


def unsigned_jobs(folder):
    edit(folder / "startup" / "fed_client.json", lambda words: words.update(require_signed_jobs=False))


def tls_alone(folder):
    edit(folder / "startup" / "fed_client.json", lambda words: words["client"].update(connection_security="tls"))


@pytest.mark.parametrize(
    ("damage", "what", "said"),
    [
        (weaken_rights, "rights", "lead has byoc: any"),
        (new_role, "rights", "boss may do 'any'"),
        (no_rights, "rights", "FLARE's default"),
        (allow_more, "allow-list", "nvflare."),
        (only_warn, "allow-list", "not enforced"),
        (stream_logs, "log streaming", "allow_log_streaming is not false"),
        (streamer_elsewhere, "log streaming", "site__p_resources.json"),
        (flares_deployer, "configuration formats", "FLARE's own formats are open"),
        (untold, "second machine", "not noticed"),
        (tell_the_server, "settings that leave", "data_root"),
        (drop_the_filter, "site policy", "lacks our filter"),
        (filter_behind_ours, "site policy", "lacks our filter as the last"),
        (another_scope, "site policy", "scope 'open'"),
        (no_policy, "site policy", "no privacy.json"),
        (readable_key, "file rights", "startup/client.key"),
        (code_beside, "code beside the package", "local/custom"),
        (unsigned_jobs, "signed jobs", "not demanded"),
        (tls_alone, "connection", "tls"),
        (older_tls, "TLS", "FLARE takes 1.2 as well"),
    ],
)
def test_each_weakness_of_a_site_is_found(site, damage, what, said):
    damage(site)
    found = findings(site, 1)
    assert [name for name, finding in found.items() if finding["good"] is False] == [what]
    assert said in found[what]["found"]
    assert found[what]["mend"]


def test_stricter_rights_are_welcome(site):
    edit(site / "local" / "authorization.json", lambda words: words["permissions"]["lead"].update(submit_job="none"))
    edit(site / "local" / "authorization.json", lambda words: words["permissions"].update(member="none"))
    findings(site, 0)


def test_certificates_that_end_or_do_not_fit_are_found(site, fresh, server):
    expire(site, fresh / "state")
    assert "days left" in findings(site, 1)["certificate"]["found"]
    shutil.copy(fresh / "prod_00" / "site-2" / "startup" / "client.key", site / "startup" / "client.key")
    assert findings(site, 1)["private key"]["good"] is False
    shutil.copy(fresh / "prod_00" / "site-2" / "startup" / "client.crt", server / "startup" / "rootCA.pem")
    assert "not issued by" in findings(server, 1)["certificate"]["found"]


@pytest.fixture
def login(tmp_path):
    """A file with the login of a proxy."""
    path = tmp_path / "login"
    path.touch(mode=0o600)
    path.write_text("hospital:secret\n")
    return path


def test_a_proxy_is_named_once_kept_and_taken_back(site, login):
    files = [site / "startup" / "fed_client.json", site / "local" / "resources.json"]
    before = [json.loads(path.read_text()) for path in files]
    assert findings(site, 0)["proxy"]["found"] == "none: it goes straight to the server"
    fedretina("kit", "harden", site, "--proxy", "http://proxy.hospital.example:3128", "--proxy-login", login)
    assert "secret" not in "".join(path.read_text() for path in files)
    assert "wrote" not in fedretina("kit", "harden", site)  # as after an upgrade
    found = findings(site, 0)["proxy"]
    assert found["good"] is True
    assert found["found"].startswith(f"http://proxy.hospital.example:3128, with the login in {login};")
    fedretina("kit", "harden", site, "--proxy", "none")
    assert [json.loads(path.read_text()) for path in files] == before


def shared_login(site, login):
    login.chmod(0o640)


def no_login(site, login):
    login.unlink()


def no_password(site, login):
    login.write_text("hospital\n")


def loopback_by_grpc(site, login):
    path = site / "local" / "comm_config.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"internal": {"scheme": "grpc", "resources": {"host": "localhost"}}}))


def scheme_lost(site, login):
    edit(site / "startup" / "fed_client.json", lambda words: words["servers"][0]["service"].update(scheme="http"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shared_login, "can be read by others"),
        (no_login, "cannot be read (FileNotFoundError)"),
        (no_password, "holds no login"),
        (loopback_by_grpc, "this machine's own processes speak 'grpc'"),
        (scheme_lost, "startup/ says nothing of the proxy"),
    ],
)
def test_each_fault_of_a_kits_proxy_is_found(site, login, damage, said):
    fedretina("kit", "harden", site, "--proxy", "http://192.0.2.1:3128", "--proxy-login", login)
    damage(site, login)
    found = findings(site, 1)
    assert [name for name, finding in found.items() if finding["good"] is False] == ["proxy"]
    assert said in found["proxy"]["found"]
    assert found["proxy"]["mend"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("site-1", ("--proxy", "proxy.example:3128"), "is no address of a proxy"),
        ("site-1", ("--proxy", "https://proxy.example:3128"), "is no address of a proxy"),
        ("site-1", ("--proxy", "http://proxy.example"), "is no address of a proxy"),
        ("site-1", ("--proxy", "http://me:secret@proxy.example:3128"), "name it with --proxy-login"),
        ("site-1", ("--proxy-login", "login"), "name the proxy, too"),
        ("site-1", ("--proxy", "http://192.0.2.1:3128", "--proxy-login", "login"), "cannot be read"),
        ("server", ("--bind", "all", "--proxy", "http://192.0.2.1:3128"), "hospitals connect to the server"),
    ],
)
def test_a_proxy_that_cannot_be_is_refused(kit, name, words, said):
    shown = fedretina("kit", "harden", kit(name), *words, code=2)
    assert said in shown
    assert "secret" not in shown


def test_a_kit_that_speaks_another_way_goes_through_no_proxy(site):
    edit(site / "startup" / "fed_client.json", lambda words: words["servers"][0]["service"].update(scheme="grpc"))
    assert "speaks 'grpc'" in fedretina("kit", "harden", site, "--proxy", "http://192.0.2.1:3128", code=2)


@pytest.mark.parametrize("which", ["certificate", "authority"])
def test_a_clock_that_is_behind_is_named(site, fresh, which):
    names = {"certificate": "client.crt", "authority": "rootCA.pem"}
    if which == "authority":  # signed by the authority, as a root is by itself
        shutil.copy(fresh / "prod_00" / "site-1" / "startup" / "rootCA.pem", site / "startup" / "rootCA.pem")
    certify(site / "startup" / names[which], fresh / "state", days=(2, 300))
    found = findings(site, 1)
    assert next(what for what, finding in found.items() if finding["good"] is False) == which
    assert "the clock is behind" in found[which]["found"]
    assert "NTP" in found[which]["mend"]


def test_a_site_file_elsewhere_leaves_no_second_one(kit, tmp_path):
    folder = kit("site-1")
    fedretina("kit", "harden", folder, "--site-file", tmp_path / "site.yaml")
    assert not (folder / "local" / "site.yaml").exists()
    fedretina("kit", "harden", folder, "--site-file", folder / "local" / "site.yaml")
    assert "docs/settings.md" in (folder / "local" / "site.yaml").read_text()


@pytest.mark.attack(
    "an accident",
    "the authority's private key lies in a file that every user of the machine can read",
    "`kit check` and `kit renew` fail with a sentence, and our commands take the rights away",
)
def test_an_authoritys_key_that_others_can_read_is_found_and_mended(fresh, tmp_path):
    workspace = shutil.copytree(fresh, tmp_path / "fedretina")
    state, folder = workspace / "state", workspace / "prod_00" / "site-1"
    held = state / "cert.json"
    assert held.stat().st_mode & 0o077  # as FLARE leaves it
    assert "other users" in findings(folder, 1)["authority's key"]["found"]
    told = fedretina("kit", "renew", state, "site-1", code=1)
    assert "nothing was renewed" in told
    assert "found a new authority" in told
    assert (state.stat().st_mode & 0o777, held.stat().st_mode & 0o777) == (0o700, 0o600)
    assert "site-1" in json.loads(held.read_text())
    assert "forgotten: site-1" in fedretina("kit", "renew", state, "site-1")
    held.chmod(0o644)
    fedretina("kit", "harden", folder)
    assert held.stat().st_mode & 0o777 == 0o600
    assert findings(folder, 0)["authority's key"]["good"] is True


@pytest.fixture
def units(tmp_path, monkeypatch):
    """An empty folder of systemd's units, in place of this machine's."""
    folder = tmp_path / "system"
    folder.mkdir()
    monkeypatch.setattr(addresses, "UNIT_FOLDER", folder)
    return folder


def test_a_sites_service_is_held_to_its_server(site, units):
    assert findings(site, 0)["addresses"]["good"] is None
    unit = units / "fedretina-site.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert "every address" in findings(site, 1)["addresses"]["found"]
    shutil.copy(REPOSITORY / "provisioning" / unit.name, unit)
    assert "nothing outside this machine" in findings(site, 1)["addresses"]["found"]
    edit(site / "startup" / "fed_client.json", at_host("fl.consortium.example"))
    shown = fedretina("kit", "addresses", site, "192.0.2.10", "--dry-run")
    assert not (units / f"{unit.name}.d").exists()
    fedretina("kit", "addresses", site, "192.0.2.10")
    hosts, conf = (units / f"{unit.name}.d" / name for name in ("hosts", "addresses.conf"))
    assert hosts.read_text() == "127.0.0.1 localhost\n::1 localhost\n192.0.2.10 fl.consortium.example\n"
    assert conf.read_text().splitlines()[2:] == [
        "[Service]",
        "IPAddressDeny=",
        "IPAddressDeny=any",
        "IPAddressAllow=",
        "IPAddressAllow=127.0.0.1 ::1 192.0.2.10",
        f"BindReadOnlyPaths={hosts}:/etc/hosts",
    ]
    assert all(path.read_text() in shown for path in (hosts, conf))
    assert "speak with 192.0.2.10 and this machine" in findings(site, 0)["addresses"]["found"]


def test_a_service_behind_a_proxy_is_held_to_the_proxy(site, units):
    shutil.copy(REPOSITORY / "provisioning" / "fedretina-site.service", units)
    fedretina("kit", "harden", site, "--proxy", "http://proxy.hospital.example:3128")
    fedretina("kit", "addresses", site, "10.1.2.3")
    folder = units / "fedretina-site.service.d"
    assert (folder / "hosts").read_text().splitlines()[
        -1
    ] == "10.1.2.3 proxy.hospital.example"  # it asks for the server
    assert "IPAddressAllow=127.0.0.1 ::1 10.1.2.3" in (folder / "addresses.conf").read_text().splitlines()


def test_a_server_below_port_1024_gets_the_right_to_listen_there_and_no_other(server, units):
    conf = units / "fedretina-server.service.d" / "addresses.conf"
    fedretina("kit", "addresses", server, "any")
    assert "Capabilit" not in conf.read_text()
    point_to(server, 443)
    fedretina("kit", "addresses", server, "any")
    assert conf.read_text().splitlines()[-2:] == [
        "AmbientCapabilities=CAP_NET_BIND_SERVICE",
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
    ]


def test_a_container_and_a_server_are_held_to_addresses_too(site, server, units):
    fedretina("kit", "addresses", site, "192.0.2.10", "--unit", "fedretina.slice")
    (conf,) = (units / "fedretina.slice.d").iterdir()
    assert "[Slice]" in conf.read_text()
    assert "BindReadOnlyPaths" not in conf.read_text()  # a slice has no files of its own
    assert "speak with 192.0.2.10 and" in findings(site, 0)["addresses"]["found"]
    shutil.copy(REPOSITORY / "provisioning" / "fedretina-server.service", units)
    fedretina("kit", "addresses", server, "192.0.2.0/24", "2001:db8::7")
    assert "192.0.2.0/24, 2001:db8::7" in findings(server, 0)["addresses"]["found"]
    fedretina("kit", "addresses", server, "any")
    assert "IPAddressAllow=any" in (units / "fedretina-server.service.d" / "addresses.conf").read_text()


def test_a_second_federation_does_not_cut_off_the_first(kit, site, units):
    second = kit("site-2")
    fedretina("kit", "harden", second)
    first_unit, unit = units / "fedretina-site.service", units / "fedretina-b.service"
    for path in (first_unit, unit):
        shutil.copy(REPOSITORY / "provisioning" / first_unit.name, path)
    fedretina("kit", "addresses", site, "192.0.2.10")
    conf = units / f"{first_unit.name}.d" / "addresses.conf"
    before = conf.read_text()
    assert f"another kit, {site}, " in findings(second, 0)["addresses"]["found"]  # not that of whose kit it is
    said = fedretina("kit", "addresses", second, "192.0.2.20", code=2)
    assert f"another kit, {site}, " in said
    assert "--unit" in said
    assert "another kit" in fedretina("kit", "addresses", second, "192.0.2.20", "--dry-run", code=2)
    fedretina("kit", "addresses", second, "192.0.2.20", "--unit", unit.name)
    assert conf.read_text() == before
    assert "speak with 192.0.2.10 and" in findings(site, 0)["addresses"]["found"]
    assert "speak with 192.0.2.20 and" in findings(second, 0)["addresses"]["found"]
    fedretina("kit", "addresses", second, "192.0.2.21")  # again, and the unit is known
    own = (units / f"{unit.name}.d" / "addresses.conf").read_text()
    assert f"`fedretina kit addresses {second} --unit {unit.name}`" in own.splitlines()[0]
    assert "192.0.2.21" in own
    edit(second / "startup" / "fed_client.json", at_host("127.0.0.2"))
    assert f"--unit {unit.name}" in addresses.moved_finding(open_kit(second)).mend


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("site-1", ("any",), "no range"),
        ("site-1", ("192.0.2.0/24",), "no range"),
        ("site-1", ("fl.consortium.example",), "is no address"),
        ("site-1", ("192.0.2.10", "--unit", "fedretina"), "name a .service or a .slice"),
        ("server", (), "say which addresses"),
        (LEAD, ("192.0.2.10",), "runs as no service"),
    ],
)
def test_addresses_that_cannot_be_are_refused(kit, units, name, words, said):
    assert said in fedretina("kit", "addresses", kit(name), *words, code=2)
    assert not list(units.iterdir())


def test_a_server_whose_name_has_no_address_is_said(site, units):
    edit(site / "startup" / "fed_client.json", at_host("no-such-server.invalid"))
    assert "no-such-server.invalid has no address" in fedretina("kit", "addresses", site, code=2)


def test_a_server_says_where_it_listens_and_keeps_its_jobs(kit):
    folder = kit("server")
    assert "--bind all" in fedretina("kit", "harden", folder, code=2)
    fedretina("kit", "harden", folder, "--bind", "all", "--storage", folder.parent / "lasting")
    found = findings(folder, 0)
    assert "every interface" in found["listens on"]["found"]
    assert str(folder.parent / "lasting" / "jobs") in found["storage"]["found"]
    privacy = json.loads((folder / "local" / "privacy.json").read_text())
    state = {"fedretina_server": {"state_root": str(folder.parent / "lasting" / "runs")}}
    assert privacy["scopes"][0]["properties"] == state
    edit(folder / "startup" / "fed_server.json", lambda words: words["servers"][0]["service"].update(target="fl:8002"))
    assert "not stated" in findings(folder, 1)["listens on"]["found"]
    assert "may be emptied" in fedretina("kit", "harden", folder, "--bind", "all", "--storage", "/var/tmp/x", code=2)


def test_flares_temporary_storage_is_found(server):
    def temporary(words):
        next(part for part in words["components"] if part["id"] == "job_manager")["args"]["uri_root"] = (
            "/tmp/nvflare/jobs"
        )

    edit(server / "local" / "resources.json", temporary)
    assert "/tmp/nvflare/jobs" in findings(server, 1)["storage"]["found"]
    fedretina("kit", "harden", server)
    findings(server, 0)


def test_options_that_do_not_belong_are_refused(kit, tmp_path):
    assert "for a server's kit" in fedretina("kit", "harden", kit("site-1"), "--bind", "all", code=2)
    assert "for a site's kit" in fedretina("kit", "harden", kit("server"), "--site-file", tmp_path / "x", code=2)
    assert "is no startup kit" in fedretina("kit", "check", tmp_path, code=2)


def test_the_allow_list_is_written_as_it_stands(site):
    assert json.loads((site / "local" / "resources.json").read_text())["class_allow_list"] == sorted(ALLOWED_CLASSES)


def test_renewal_lists_and_refuses_strangers(fresh, tmp_path):
    state = shutil.copytree(fresh / "state", tmp_path / "state")
    for path in (state, state / "cert.json"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    listed = fedretina("kit", "renew", state).splitlines()
    assert listed[0].endswith("3650 days  authority") or listed[0].endswith("3649 days  authority")
    assert {line.split()[-1] for line in listed[1:]} >= set(SITES)
    assert "site-9 has no certificate" in fedretina("kit", "renew", state, "site-9", code=2)
    fedretina("kit", "renew", state, "site-1", "site-2")
    held = json.loads((state / "cert.json").read_text())
    assert not {"site-1", "site-2"} & set(held)
    assert {"root_cert", "root_pri_key", "site-3"} <= set(held)
    assert "site-1" in json.loads((state / "cert.json.before_renewal").read_text())
    assert (state / "cert.json").stat().st_mode & 0o077 == 0
    assert "cert.json" in fedretina("kit", "renew", tmp_path, code=2)
