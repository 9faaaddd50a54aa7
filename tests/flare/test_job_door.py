"""The door at which jobs come in: formats, known files, variables, and the words that go back."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError

from fedretina.flare.whitelist_filter import WhitelistFilter, require_known_filters
from fedretina.kit.job_folder import FILES, LARGEST, refusal

CLIENT = "config/config_fed_client.json"
FILTER = "fedretina.flare.whitelist_filter.WhitelistFilter"


def good():
    config = json.dumps({"format_version": 2, "executors": [{"tasks": ["*"], "executor": {"path": "x", "args": {}}}]})
    return {
        **dict.fromkeys(sorted(FILES), b"{}"),
        "config/config_fed_server.json": config.encode(),
        CLIENT: config.encode(),
        "config/experiment.yaml": b"row: feduaa\n",
    }


def with_argument(value):
    return {**good(), CLIENT: json.dumps({"args": {"experiment_file": value}}).encode()}


def test_an_exported_job_passes_signed_or_not():
    assert refusal(good()) is None
    assert refusal({name: data for name, data in good().items() if "nvfl" not in name}) is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({**good(), "config/config_fed_client.conf": b""}, "config/config_fed_client.conf"),
        ({**good(), "config/log_config.json": b"{}"}, "config/log_config.json"),
        ({**good(), "config/sub/config_fed_client.json": b"{}"}, "config/sub/"),
        ({**good(), "resources.json": b"{}"}, "resources.json"),
        ({**good(), "custom/README.md": b""}, "BYOC not permitted: the job brings custom/README.md"),
        ({name: data for name, data in good().items() if name != CLIENT}, "lacks config_fed_client.json"),
        ({**good(), CLIENT: b"include file(x)"}, "config_fed_client.json of the job is no JSON"),
        ({**good(), CLIENT: "{}".encode("utf-16")}, "is no JSON"),
        ({**good(), CLIENT: b"[" * 200_000}, "is no JSON"),
        ({**good(), CLIENT: b"[]"}, "holds no JSON object"),
        ({**good(), CLIENT: b" " * (LARGEST + 1)}, "is larger than"),
        (with_argument("{WORKSPACE}/{ROOT_URL}"), "holds a variable in braces"),
        (with_argument("{$HOME}"), "holds a variable in braces"),
        (with_argument("${secret:file:/etc/hostname}"), "holds a variable in braces"),
        ({**good(), CLIENT: b'{"\\u007bSITE_NAME\\u007d": 1}'}, "holds a variable in braces"),
        ({**good(), CLIENT: json.dumps({"x": [{"path": FILTER, "args": {"scope": 1}}]}).encode()}, "site's scope"),
    ],
)
def test_what_else_a_job_holds_is_named_and_refused(files, said):
    assert said in refusal(files)


def test_a_name_of_a_file_cannot_break_a_log():
    assert "\n" not in refusal({**good(), "config/a\nb": b""})


def job_with(claims, chain="task_result_filters"):
    runner = SimpleNamespace(task_result_filters={}, task_data_filters={})
    direction = "answer" if chain == "task_result_filters" else "order"
    getattr(runner, chain)["train"] = [WhitelistFilter(direction, scope=claims)]
    fl_ctx = FLContext()
    fl_ctx.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    return fl_ctx


@pytest.mark.parametrize("chain", ["task_result_filters", "task_data_filters"])
def test_a_sites_filter_leaves_a_job_whose_own_claims_its_place(chain):
    require_known_filters(job_with(False, chain))
    with pytest.raises(UnsafeJobError, match="claims the site's scope"):
        require_known_filters(job_with(True, chain))


IN_A_PROCESS = """
import io, json, sys, zipfile
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.admin_defs import Message
from fedretina.flare import job_door
folder = sys.argv[1]
open(folder + "/secret.json", "w").write('{"word": "planted"}')
open(folder + "/config_fed_client.conf", "w").write('include file("' + folder + '/secret.json")')
open(folder + "/config_fed_server.yml", "w").write('word: ${oc.env:HOME}')
print("before", ConfigFactory.load_config("config_fed_client.json", [folder]).to_dict())
job_door.JobDeployer()
job_door.JobDeployer()
for name in ("config_fed_client.json", "config_fed_server.json"):
    try:
        print("after", ConfigFactory.load_config(name, [folder]).to_dict())
    except ValueError as error:
        print("refused", error)
data = io.BytesIO()
with zipfile.ZipFile(data, "w") as archive:
    archive.writestr("j/meta.conf", "x = 1")
job_door.JobValidator()
job_door.JobValidator()
for extra in ((), ("j/notes.txt",), ("other/app/config/x",), ("j/.__nvfl_sig.json",)):
    with zipfile.ZipFile(held := io.BytesIO(), "w") as archive:
        meta = {"name": "j", "deploy_map": {"app": ["@ALL"]}, "min_clients": 1, "resource_spec": {}}
        archive.writestr("j/meta.json", json.dumps(meta))
        for name in ("j/app/", "j/app/config/"):
            archive.writestr(name, "")
        for name in ("config_fed_server.json", "config_fed_client.json"):
            archive.writestr("j/app/config/" + name, "{}")
        for name in extra:
            archive.writestr(name, "x")
    print("submitted", extra, JobMetaValidator().validate("j", held.getvalue())[:2])
print("meta", JobMetaValidator().validate("j", data.getvalue()))
for entry in ClientRequestProcessors.request_processors:
    for topic in entry.get_topics():
        if topic.endswith("deploy"):
            print("before a job", type(entry).__name__)
        if topic.endswith(("shell", "report_env", "show_errors")):
            print("asked", entry.process(Message(topic, "cat " + folder + "/secret.json"), None).body)
print("in jobs", sorted(type(entry).__name__ for entry in AdminCommands.commands))
"""


@pytest.mark.flare
def test_a_process_that_holds_the_door_reads_json_alone_and_gives_no_file_away(tmp_path):
    said = subprocess.run([sys.executable, "-c", IN_A_PROCESS, tmp_path], capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert lines[0] == "before {'word': 'planted'}"  # FLARE's own way, and the test's: it would fail without the door
    assert [line.split()[0] for line in lines].count("refused") == 2
    assert "after" not in said.stdout
    taken = [line for line in lines if line.startswith("submitted")]
    assert [line.endswith("(True, '')") for line in taken] == [True, False, False, True], taken
    assert "and nothing else, but this one has notes.txt: leave it out." in taken[1]
    assert any(line.startswith("meta (False, 'this federation reads configuration in JSON") for line in lines)
    assert "before a job DeployCommand" in lines
    assert lines.count("asked this site does not answer that: it tells nothing of its files, logs and machine.") == 3
    assert lines[-1] == "in jobs ['AbortCommand', 'AbortTaskCommand', 'ByeCommand', 'CheckStatusCommand']"
    assert "planted" not in "".join(lines[1:])
