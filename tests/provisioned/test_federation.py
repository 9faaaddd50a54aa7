"""What a hardened federation does with a good job, with bad ones, and with those who may not connect."""

import json
import re
import shutil
import time
from ssl import TLSVersion
from types import SimpleNamespace

import psutil
import pytest
import torch
import yaml
from credentials import connected, expire, knock, register_aside, with_the_servers_token
from hospital import SECRETS
from hostile_jobs import ENVIRONMENT, PLANTED, hostile_jobs, listening, plant
from jobs import ANOTHER, SITES, WORDS, another_class, bring_code, change_in_store, export, own_filters
from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.utils.admin_name_utils import new_admin_client_name
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import TrainingTopic
from simulation import results

from federation import (
    LEAD,
    MEMBER,
    ORG_ADMIN,
    PROJECT_ADMIN,
    REPOSITORY,
    copy_kit,
    ended,
    fedretina,
    files_below,
    processes_of,
    wait_for,
)
from fedretina.data.site_data import load_site_data
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition
from fedretina.kit.job_folder import ALLOWED_CLASSES
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import read_site_settings
from fedretina.storage import read_tensors

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]

# What FLARE wraps around an answer: names of headers and of properties that say whose answer it is, to which task.
ENVELOPE = {
    *("DXO", "WEIGHTS", "kind", "data", "meta", "props", "value", "mask", "model", "logger", "WHY"),
    *("__headers__", "__peer_ctx__", "__cookie_jar__", "__content_type__", "__audit_event_id__", "__msg_root_id__"),
    *("__client_name__", "__current_job_id__", "__fqsn__", "__identity_name__", "__is_leaf__", "__run_num__"),
    *("__task_id__", "__task_name__", "__workflow__"),
}
OUR_WORDS = {"fedretina", "stamp", "scalars", "train", "validate", "finalise", "good", *SITES}
NOT_LISTED = f"Component '{ANOTHER}' at config path"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def federation(kits):
    """Server under a tap; a job changed in its store; then the sites; then the run `good`, done."""
    tap = kits.folder / "tap"
    server = kits.start("server", FEDRETINA_TEST_TAP=str(tap))
    server.wait_until("Server started", 60)
    with kits.session(LEAD) as session:
        changed = session.submit_job(str(export(kits, "changed")))
        change_in_store(kits.storage, changed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENVIRONMENT, PLANTED["environment"])  # the server has another
            for site in SITES:
                kits.start(site)
        for site in SITES:
            kits.running[site].wait_until("Successfully registered")
        kits.ended = {"changed": ended(session, changed)}
        kits.ended["good"] = ended(session, session.submit_job(str(export(kits, "good"))))
    yield kits
    kits.stop()
    shutil.rmtree(tap)


@pytest.fixture(scope="module")
def oracle(kits):
    """Results of the plain loop over the same hospitals."""
    experiment = Experiment.resolve(WORDS)
    data = {}
    for site in SITES:
        found = read_site_settings({"fedretina": {"site_file": kits.hospital(site) / "site.yaml"}}, site, kits.folder)
        data[site] = load_site_data(site, found.data, experiment.images, experiment.seed, kits.folder / "cache" / site)
    run_loop(experiment, data, kits.folder / "loop", "oracle")
    return results(kits.folder / "loop", "oracle")


@pytest.fixture(scope="module")
def tapped(federation):
    """What the server decoded, message by message, of those that sites sent."""
    lines = [line for path in (federation.folder / "tap").glob("*.jsonl") for line in path.read_text().splitlines()]
    messages = [json.loads(line) for line in lines]
    return [message for message in messages if message["headers"].get("cn__origin", "").startswith("site-")]


def refused(federation, name, change, why):
    """Submit a changed job; no site may have begun it, and the lead is told why, before it is sent and afterwards."""
    kit = ("--kit", federation.kit(LEAD))
    before = set((federation.storage / "jobs").iterdir())
    job = export(federation, name, change=change)
    assert "A hardened federation would refuse it" in fedretina("submit", job, *kit, code=2)
    assert set((federation.storage / "jobs").iterdir()) == before
    with federation.session(LEAD) as session:  # FLARE's own way asks nothing
        meta = ended(session, session.submit_job(str(job)))
    assert meta["status"].startswith("FINISHED:")
    assert "COMPLETED" not in meta["status"]
    assert not any((federation.hospital(site) / "runs" / name).exists() for site in SITES)
    for command, code in (("watch", 1), ("status", 0), ("results", 1)):
        out = ("--out", federation.folder / "fetched") if command == "results" else ()
        said = fedretina(command, "--run", name, *out, *kit, code=code)
        assert why in said
        assert "their logs say which" not in said


def test_a_run_ends_with_the_bits_of_the_plain_loop(federation, oracle):
    assert federation.ended["good"]["status"] == "FINISHED:COMPLETED", federation.running["server"].text()[-4000:]
    assert results(federation.storage / "runs", "good") == oracle
    for site in SITES:
        ours = federation.hospital(site) / "runs" / "good" / site / "final"
        loops = federation.folder / "loop" / "oracle" / site / "final"
        assert json.loads((ours / "figures.json").read_text()) == json.loads((loops / "figures.json").read_text())


def test_a_run_that_was_submitted_by_flares_api_is_known(federation):
    """`good` was: its exported job names the run, so that all commands find it."""
    kit = ("--kit", federation.kit(LEAD))
    assert "FINISHED:COMPLETED" in fedretina("status", "--run", "good", *kit)
    assert "run good has completed" in fedretina("resume", "good", *kit)


@pytest.mark.attack(
    "a hostile server",
    "it compares what arrives with what the sites' ledgers list",
    "the same tensors and scalars, digest by digest",
)
def test_what_arrives_is_what_the_ledgers_list(federation, tapped):
    experiment = Experiment.resolve(WORDS)
    parts = partition(build_on_meta(experiment.network, 5), experiment.exchange)
    assert not [message["error"] for message in tapped if "error" in message]
    answers = {site: [] for site in SITES}
    digests = {experiment.digest(parts)}
    for message in tapped:
        assert message["loose_arrays"] == 0
        if message["headers"].get("sm__tp") != "submit_update":
            assert not message["tensors"], message["headers"]
            continue
        if message["strings"]:  # the server's parent process passes the same bytes on, unread
            answers[message["headers"]["cn__origin"].partition(".")[0]].append(message)
    for site in SITES:
        lines = Ledger(federation.hospital(site) / "runs" / "good" / site / "ledger.jsonl").lines()
        assert [line["phase"] for line in lines] == ["train", "train", "validate", "finalise"]
        assert len(answers[site]) == len(lines)
        for line, answer in zip(lines, answers[site], strict=True):
            assert answer["scalars"] == [line["scalars"]]
            assert sorted(answer["floats"]) == sorted(line["scalars"].values())
            sent = [(found["digest"], found["bytes"], len(found["keys"])) for found in answer["tensors"]]
            assert sent == ([(line["digest"], line["bytes"], sum(line["tensors"].values()))] if line["tensors"] else [])
            assert set(line["tensors"]) <= {Kind.ENCODER.value}
            assert all(found["keys"] == list(parts.shared) for found in answer["tensors"])
            strange = set(answer["strings"]) - ENVELOPE - OUR_WORDS - set(line["scalars"]) - digests
            assert not {word for word in strange if not UUID.fullmatch(word)}


@pytest.mark.attack(
    "a hostile server",
    "it keeps every byte that comes in, and looks for names of files, patients, grades, labels and heads",
    "none is there",
)
def test_no_file_path_label_or_head_reaches_the_server(federation, tapped):
    frames = b"".join(path.read_bytes() for path in (federation.folder / "tap").glob("*.frames"))
    stored = [path.read_bytes() for path in files_below(federation.storage, federation.kit("server"))]
    probes = {bytes.fromhex(found["probe"]) for message in tapped for found in message["tensors"]}
    assert len(probes) == 2 * len(SITES)
    assert all(probe in frames for probe in probes)  # the tap sees what does come
    folders = [federation.hospital(site) for site in SITES] + [federation.kit(site) for site in SITES]
    for word in [*SECRETS, *map(str, folders)]:
        assert word.encode() not in frames, word
        assert not any(word.encode() in data for data in stored), word
    personal = set()
    for site in SITES:
        for path in (federation.hospital(site) / "runs" / "good" / site).glob("*.safetensors"):
            tensors = read_tensors(path)[0]
            heads = [key for key in tensors if key.startswith("head.")]
            for key in [*heads, *sorted(key for key in tensors if key.endswith("running_mean"))[:2]]:
                values = tensors[key].numpy().reshape(-1)[:8]
                if len(set(values.tolist())) == 8:  # anything else may be found by chance
                    personal.add(values.tobytes())
    assert len(personal) >= 4 * len(SITES)
    for window in personal:
        assert window not in frames
        assert not any(window in data for data in stored)
    assert not list(federation.storage.rglob("spool/*"))


@pytest.mark.attack(
    "a hostile server",
    "a job that was changed after a lead had signed it",
    "server and sites refuse it",
)
def test_a_job_changed_in_the_servers_store_is_refused(federation):
    assert federation.ended["changed"]["status"] == "FINISHED:FAILED_TO_RUN"
    assert "app app does not pass signature verification" in federation.running["server"].text()
    assert not (federation.storage / "runs" / "changed").exists()


@pytest.mark.parametrize("user", [ORG_ADMIN, MEMBER])
@pytest.mark.attack(
    "another admin",
    "an organisation's admin or a member submits a job",
    "not authorized, and nothing is stored",
)
def test_who_is_no_lead_submits_nothing(federation, user):
    before = set((federation.storage / "jobs").iterdir())
    with federation.session(user) as session, pytest.raises(Exception, match="not authorized"):
        session.submit_job(str(export(federation, f"of-{user[:2]}")))
    assert set((federation.storage / "jobs").iterdir()) == before


@pytest.mark.attack(
    "a lead",
    "a job that brings Python code",
    "refused at the server before anything is sent",
)
@pytest.mark.attack(
    "an accident",
    "a lead submits a job that hardened sites refuse, such as one with code",
    "told before it is sent with the command that mends it, and by FLARE's own way at its end",
)
def test_a_job_with_code_is_refused(federation):
    refused(federation, "code", bring_code, "the server did not take the job: the job brings code")
    assert "Failed to deploy app 'app': BYOC not permitted: the job brings" in federation.running["server"].text()


@pytest.fixture(scope="module")
def looked_up(federation):
    """What became of each hostile job: the reason at submission, or the job's meta and what `fedretina watch` said."""
    loot = plant(federation.hospital("site-1") / "loot.json", "file")
    own = plant(federation.folder / "of-the-server.json", "server")
    key = federation.kit("site-1") / "startup" / "client.key"
    became = {}
    with listening() as (address, asked), federation.session(LEAD) as session:
        jobs = {}
        for name, change in hostile_jobs(loot, own, key, address).items():
            try:
                jobs[name] = session.submit_job(str(export(federation, name, change=change)))
            except Exception as error:  # noqa: BLE001 - FLARE's API has no class of its own for a refused job
                became[name] = str(error)
        for name, job in jobs.items():
            meta = ended(session, job)
            words = [str(job), "--kit", str(federation.kit(LEAD)), "--timeout", "60"]
            became[name] = json.dumps(meta) + fedretina("watch", *words, code=1)
    return became, asked


@pytest.mark.attack(
    "a lead", "a job whose configuration includes files, addresses or the environment", "refused, nothing is read"
)
@pytest.mark.attack("a lead", "a variable of FLARE's in a job's arguments", "refused, nothing is filled in")
@pytest.mark.attack("a lead", "a file in a job that no job of this package has", "refused before it is read")
@pytest.mark.attack("a lead", "a filter of a job that says it is the site's", "refused, and nothing is charged twice")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("include-told", "else, but this one has config/config_fed_client.conf"),
        ("include-failing", "else, but this one has config/config_fed_client.conf"),
        ("include-key", "else, but this one has config/config_fed_client.conf"),
        ("include-address", "else, but this one has config/config_fed_client.conf"),
        ("include-beside", "else, but this one has config/config_fed_client.conf"),
        ("environment", "else, but this one has config/config_fed_client.conf"),
        ("of-the-server", "this federation reads configuration in JSON and no other format"),
        ("yaml", "else, but this one has config/config_fed_client.yml"),
        ("variables", "config_fed_client.json of the job holds a variable in braces"),
        ("server-variables", "config_fed_server.json of the job holds a variable in braces"),
        ("own-variable", "config_fed_client.json of the job holds a variable in braces"),
        ("log-config", "else, but this one has config/log_config.json"),
        ("resources", "else, but this one has config/resources.json"),
        ("nested", "else, but this one has config/more/comm_config.json"),
        ("beside-config", "else, but this one has notes.txt"),
        ("claims-scope", "a filter that claims the site's scope"),
    ],
)
def test_a_job_that_would_be_looked_up_is_refused_and_says_why(federation, looked_up, name, said):
    became, _ = looked_up
    assert said in became[name]
    assert not any((federation.hospital(site) / "runs" / name).exists() for site in SITES)


def test_nothing_that_a_hostile_job_asked_for_came_out(federation, looked_up):
    became, asked = looked_up
    assert asked == []
    key = (federation.kit("site-1") / "startup" / "client.key").read_text().splitlines()[1]
    stored = files_below(federation.storage, federation.kit("server"), federation.folder / "tap")
    seen = [path.read_bytes() for path in stored] + [words.encode() for words in became.values()]
    for word in (*PLANTED.values(), key, str(federation.kit("site-2"))):  # a job of the lead's names site-1's
        assert not any(word.encode() in data for data in seen), word


@pytest.mark.attack(
    "a lead",
    "a job that builds another class at the server",
    "refused, and nothing of it is built",
)
def test_a_job_with_a_class_outside_the_list_is_refused_by_the_server(federation):
    refused(federation, "at-server", another_class("server"), f"the server's allow-list does not hold {ANOTHER}")
    assert NOT_LISTED in federation.running["server"].text()
    assert not (federation.storage / "runs" / "at-server").exists()


@pytest.mark.attack(
    "a lead",
    "a job that builds another class at the sites",
    "refused by each site, and nothing of it is built",
)
def test_a_job_with_a_class_outside_the_list_is_refused_by_every_site(federation):
    refused(federation, "at-sites", another_class("client"), "most likely a site did not build it")
    for site in SITES:
        assert NOT_LISTED in federation.running[site].text()


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
        reply = cell.send_request(channel=channel, topic="process_info", target=target, request=request, timeout=2)
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK, reply.payload
        wait_for(lambda: server.text().count(words) > before, words, 60)

    with with_the_servers_token(federation.port, federation.kit(user), name) as cell:
        # Neither topic does harm where it is answered; those that end a site or the server go the same way.
        order = Message(payload=Order(TrainingTopic.CHECK_STATUS, ""))
        dropped(cell, CellChannel.CLIENT_MAIN, "site-3", order, "it goes to another site")
        for one in (cell, cell.core_cell):  # the first sends it as a stream
            dropped(one, "_net_manager", "server", Message(), "it asks what only")
        in_the_servers_name = {MessageHeaderKey.ORIGIN: "server"}
        cell.core_cell.add_outgoing_request_filter("*", "*", lambda message: message.add_headers(in_the_servers_name))
        dropped(cell.core_cell, "_net_manager", "server", Message(), "it comes in another's name")


def test_a_running_site_is_checked_without_being_disturbed(federation, tmp_path):
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(yaml.safe_dump(WORDS))
    joined = federation.running["server"].text().count("New client site-1")
    text = fedretina("site", "check", federation.kit("site-1"), "--experiment", experiment)
    assert f"localhost:{federation.port} knows this site's certificate" in text
    assert re.search(r"^note  server's TLS: TLSv1.3$", text, re.MULTILINE)
    assert re.search(r"^ok    clock: \d s (ahead of|behind) the server's$", text, re.MULTILINE)
    assert federation.running["server"].text().count("New client site-1") == joined
    expired = copy_kit(federation.kit("site-5"), tmp_path / "expired")
    expire(expired, federation.state)
    text = fedretina("site", "check", expired, "--phantom", "--experiment", experiment, code=1)
    assert "refused this site's certificate" in text


def test_the_ledger_is_read_by_the_sites_own_officer(federation):
    lines = Ledger(federation.hospital("site-2") / "runs" / "good" / "site-2" / "ledger.jsonl").lines()
    assert json.loads(fedretina("site", "ledger", federation.kit("site-2"), "--json", "--run", "good")) == lines
    text = fedretina("site", "ledger", federation.kit("site-2"), "--run", "good")
    assert "run good: 4 messages, 26.6 MB of tensors" in text
    assert "in all: kinds encoder; scalars" in text


@pytest.mark.attack(
    "a lead",
    "a job that brings filters of its own against a site's policy",
    "the site's policy holds: kinds, scalars, rounding and noise",
)
def test_each_site_sends_what_its_own_policy_lets_go_whatever_the_job_brings(federation):
    noise = {"kind": "gaussian", "clip": 0.1, "multiplier": 2.0, "max_epsilon": 7}
    policies = {"site-1": {}, "site-2": {"hold_back": ["images"], "scalar_digits": 2}, "site-3": {"noise": noise}}
    for site, policy in policies.items():  # a site's next job reads it; nothing is restarted
        path = federation.hospital(site) / "site.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "policy": policy}))
    words = {**WORDS, "phases": [{"name": "train", "rounds": 2}], "quorum": 2}
    with federation.session(LEAD) as session:
        job = export(federation, "policies", words, own_filters())
        assert ended(session, session.submit_job(str(job)))["status"] == "FINISHED:COMPLETED"
    steps = results(federation.storage / "runs", "policies")["steps"]
    ledgers = {
        site: Ledger(federation.hospital(site) / "runs" / "policies" / site / "ledger.jsonl").lines() for site in SITES
    }
    assert [line["phase"] for line in ledgers["site-1"]] == ["train", "train", "validate", "finalise"]
    assert set(steps[0]["scalars"]["site-2"]) == {"theta"}
    assert ledgers["site-2"][0]["held_back"] == ["images"]
    assert all(float(f"{value:.1e}") == value for value in steps[1]["scalars"]["site-2"].values())
    assert ledgers["site-3"][0]["privacy"]["rho"] == 0.5
    assert [line["phase"] for line in ledgers["site-3"]] == ["train", "train", "validate", "finalise"]
    assert "privacy budget is spent" in ledgers["site-3"][1]["words"]
    assert "privacy budget is spent" in steps[1]["refused"]["site-3"]
    assert "privacy budget is spent" in federation.running["site-3"].text()
    assert set(steps[1]["weights"]) == {"site-1", "site-2"}


def test_a_head_travels_encrypted_from_a_child_process_and_from_its_parent(federation):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    sites = ("site-1", "site-3")  # five grades each
    keys = federation.folder / "he-keys"
    fedretina("kit", "he-keys", keys)
    privacy = federation.kit("server") / "local" / "privacy.json"
    before = {
        path: path.read_text() for path in (privacy, *(federation.hospital(site) / "site.yaml" for site in sites))
    }
    words = json.loads(before[privacy])
    words["scopes"][0]["properties"]["fedretina_server"]["he_keys"] = str(keys / SERVER_FILE)
    privacy.write_text(json.dumps(words))
    for site, trainer in zip(sites, ("child", "inline"), strict=True):
        path = federation.hospital(site) / "site.yaml"
        own = {"policy": {"kinds": ["encoder", "head"]}, "he_keys": str(keys / SITE_FILE), "trainer": trainer}
        path.write_text(yaml.safe_dump({**yaml.safe_load(before[path]), **own}))
    exchange = {"personal": "nothing", "encrypt": "head"}
    words = {**WORDS, "grades": 5, "exchange": exchange, "quorum": 2}
    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, "sealed", words, sites=sites)))
        status = ended(session, job, 400)["status"]  # a child imports torch for each of its four answers
    for path, text in before.items():
        path.write_text(text)
    assert status == "FINISHED:COMPLETED", federation.running["site-1"].text()[-4000:]
    run = federation.storage / "runs" / "sealed" / "server"
    found = json.loads((run / "results.json").read_text())
    assert sorted(found["steps"][1]["weights"]) == list(sites)
    mixed, _ = read_tensors(run / f"{found['chosen']}.safetensors")
    heads = {key: value for key, value in mixed.items() if key.startswith("head.")}
    assert heads
    opens = cipher_for(ExchangeSettings(**exchange), keys / SITE_FILE, private=True)
    for site in sites:
        final, _ = read_tensors(federation.hospital(site) / "runs" / "sealed" / site / "final" / "model.safetensors")
        for key, value in heads.items():
            assert value.dtype == torch.uint8
            assert torch.equal(opens.open(key, value, tuple(final[key].shape), final[key].dtype), final[key])
        lines = Ledger(federation.hospital(site) / "runs" / "sealed" / site / "ledger.jsonl").lines()
        assert [line["tensors"].get("head", 0) for line in lines] == [len(heads), len(heads), 0, 0]


@pytest.mark.attack(
    "a lead",
    "a job that puts another filter behind the site's own",
    "the site leaves the job before anything has left it",
)
def test_a_site_leaves_a_job_that_puts_another_filter_behind_its_own(federation):
    adds = "nvflare.app_common.filters.exclude_vars.ExcludeVars"
    path = federation.kit("site-1") / "local" / "resources.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "class_allow_list": [*ALLOWED_CLASSES, adds]}))
    words = {**WORDS, "quorum": 1}
    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, "another-filter", words, own_filters((adds, {})), ["site-1"])))
        wait_for(lambda: processes_of(federation.kit("site-1"), job), "the site works on the job")
        federation.running["site-1"].wait_until(f"the job puts {adds} behind the site's filter")
        wait_for(lambda: not processes_of(federation.kit("site-1"), job), "the site's process of the job ends")
        # FLARE's server notices by itself only where a heartbeat fell into the seconds that the site was in the job.
        session.abort_job(job)
        assert ended(session, job)["status"] in ("FINISHED:ABORTED", "FINISHED:EXECUTION_EXCEPTION")
    assert not (federation.hospital("site-1") / "runs" / "another-filter").exists()
    assert not list((federation.storage / "runs" / "another-filter" / "server").glob("train-*"))
    path.write_text(before)


@pytest.mark.attack(
    "an outsider",
    "a connection without a certificate, with one of another authority, or with one that has ended",
    "not a byte from the server",
)
def test_without_a_certificate_of_the_consortium_the_server_says_nothing(federation, foreign, tmp_path):
    expired = copy_kit(federation.kit("site-4"), tmp_path / "expired")
    expire(expired, federation.state)
    assert knock(federation.port, federation.kit("site-4")).startswith(b"HTTP/1.1 404")
    for kit in (None, foreign, expired):
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
        wait_for(lambda: done() >= 1, "round 0", 240)
        held = [psutil.Process(pid) for pid in processes_of(federation.kit("site-2"), job)]
        for process in held:  # no round ends, however long the next lines take
            process.suspend()
        copy = federation.start("copy", copy_kit(kit, tmp_path / "copy" / "site-1"))
        server.wait_until("site-1: a second machine with its kit, at 127.0.0.1, is being refused", 240)
        first.wait_until("a second machine with this site's kit, at 127.0.0.1, tries to join and is refused", 240)
        copy.wait_until("the server refuses this machine, at 127.0.0.1: another one with this site's kit", 240)
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

        before = done()
        for process in held:
            process.resume()
        wait_for(lambda: done() > before, "a round beside the second machine", 240)
        frozen = first.processes()
        for process in frozen:
            process.suspend()
        for name in ("from endpoint site-1 for exceeding", "Client: site-1 already registered"):
            assert name not in server.text()
        assert "Successfully registered" not in copy.text()
        assert copy.process.poll() is None

        copy.wait_until("Successfully registered client:site-1", 240)
        for process in held:  # what a site says of a job's end while another has its place is lost
            process.suspend()
        for process in frozen:
            process.resume()
        first.wait_until("the server refuses this machine", 240)
        federation.stop("copy")
        server.wait_until("Re-activate the client: site-1", 240)
        for process in held:
            process.resume()
        assert ended(session, job, 300)["status"] == "FINISHED:COMPLETED"
    found = json.loads((run.parent / "results.json").read_text())
    assert [step["refused"] for step in found["steps"]] == [{}] * len(found["steps"])
    assert "get_task request authentication failed" not in first.text()
    # A restarted site joins at once: its process left no connection that could answer.
    federation.stop("site-1")
    federation.start("site-1").wait_until("Successfully registered", 240)
    assert server.text().count("site-1: the connection from 127.0.0.1 is gone or does not answer") == 1

    greet, greeted = SfmConnection.send_handshake, []
    monkeypatch.setattr(SfmConnection, "send_handshake", lambda self, kind: greet(self, Types.READY))
    with connected(federation.port, kit, "site-1") as cell:  # as if it were there already
        noting = SimpleNamespace(state_change=lambda endpoint: greeted.append(endpoint.name))
        cell.core_cell.communicator.register_monitor(noting)
        wait_for(lambda: "server.refused" in greeted, "a refusal", 240)
    assert "server" not in greeted
    assert server.text().count("from endpoint site-1 for exceeding") == 1  # by the copy, of the frozen one


@pytest.mark.attack(
    "an outsider",
    "a site's stolen kit, after the project admin has disabled the site",
    "it does not register again",
)
def test_a_hospital_is_added_and_another_renewed_without_touching_the_rest(federation):
    before = {path: path.read_bytes() for path in files_below(federation.kit("site-2"), federation.kit("server"))}
    added = REPOSITORY / "provisioning" / "add_hospital.yml"
    federation.provision("--add-client", added, "--force")
    fedretina("kit", "harden", federation.kit("site-6", 1))
    federation.start("site-6", federation.kit("site-6", 1)).wait_until("Successfully registered")
    with federation.session(PROJECT_ADMIN) as session:
        session.api.do_command("disable_client site-6")
    federation.stop("site-6")
    federation.start("site-6", federation.kit("site-6", 1))  # as whoever stole the kit would
    listed = fedretina("kit", "renew", federation.state, "site-3")
    assert re.search(r"^ +3\d\d days  site-3$", listed, re.MULTILINE)
    federation.provision("--force")
    old, new = federation.kit("site-3"), federation.kit("site-3", 2)
    names = ("client.crt", "client.key")
    assert all((old / "startup" / name).read_bytes() != (new / "startup" / name).read_bytes() for name in names)
    others = [federation.kit(name, 2) / "startup" / "client.crt" for name in ("site-2", LEAD)]
    assert [path.read_bytes() for path in others] == [
        (federation.kit(name) / "startup" / "client.crt").read_bytes() for name in ("site-2", LEAD)
    ]
    federation.stop("site-3")
    for name in names:
        shutil.copy(new / "startup" / name, old / "startup" / name)
    federation.start("site-3").wait_until("Successfully registered")
    federation.running["site-6"].wait_until("disabled", 30)
    assert "Successfully registered" not in federation.running["site-6"].text()
    federation.stop("site-6")
    settled = {path: data for path, data in before.items() if "startup" in path.parts or path.suffix == ".json"}
    kept = {path for path in settled if path.parent.name in ("startup", "local")}
    assert kept
    assert all(path.read_bytes() == before[path] for path in kept)
