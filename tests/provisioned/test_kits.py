"""Hardening and its check on kits as FLARE's provisioning writes them; nothing is started."""

import json
import shutil

import pytest
from credentials import expire
from jobs import SITES

from federation import LEAD, copy_kit, fedretina, free_port, loopback_project, nvflare
from fedretina.kit.allowed import ALLOWED_CLASSES

pytestmark = pytest.mark.provisioned
OTHER_FILTER = {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars", "args": {}}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The workspace as provisioning leaves it."""
    home = tmp_path_factory.mktemp("fresh")
    nvflare(home, "provision", "-p", loopback_project(home, free_port()), "-w", home / "workspace")
    return home / "workspace" / "fedretina"


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


def test_a_fresh_kit_fails_and_a_hardened_one_passes(kit):
    for name, options in (("site-1", ()), ("server", ("--bind", "all")), (LEAD, ())):
        folder = kit(name)
        bad = {what for what, found in findings(folder, 1).items() if found["good"] is False}
        assert "file rights" in bad
        if name != LEAD:
            assert {"rights", "allow-list", "log streaming"} <= bad
        fedretina("kit", "harden", folder, *options)
        assert all(found["good"] is not False for found in findings(folder, 0).values())
        assert "FAIL" not in fedretina("kit", "check", folder)


def test_a_second_hardening_changes_nothing(site):
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert "wrote" not in fedretina("kit", "harden", site)
    assert before == {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}


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
    edit(folder / "local" / "resources.json", lambda words: words["components"].pop())


def tell_the_server(folder):
    edit(folder / "local" / "resources.json", lambda words: words.update(data_root="/srv/fundus"))


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
