"""What a hardened federation does with good jobs: bits, wire, ledgers, policies; and its hospitals that come and go."""

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from credentials import expire
from hospital import SECRETS
from jobs import IN_FLOAT32, SITES, WORDS, export, own_filters
from simulation import results

from federation import (
    LEAD,
    PROJECT_ADMIN,
    REPOSITORY,
    WITH_CARDS,
    copy_kit,
    ended,
    fedretina,
    files_below,
    nvflare,
    processes_of,
    wait_for,
)
from fedretina.data.site_data import load_site_data
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition
from fedretina.kit.approvals import Approvals, AskedPlan
from fedretina.kit.startup_kit import open_kit
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.report.text import size
from fedretina.settings.exchange import Kind
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
OUR_WORDS = {"fedretina", "fedretina_plain_bytes", "stamp", "scalars", "train", "validate", "finalise", "good", *SITES}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


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


def test_pages_are_written_by_the_processes_that_run(federation):
    """After `good`: what its site's page says of the ledger and the server's of its sites, refreshed by nobody else."""
    page = federation.hospital("site-1") / "runs" / "status" / "site-1.html"
    lines = Ledger(federation.hospital("site-1") / "runs" / "good" / "site-1" / "ledger.jsonl").lines()
    left = size(sum(line["bytes"] for line in lines))
    text = wait_for(lambda: "Connected since" in page.read_text() and page.read_text(), "site-1's page")
    assert "good" in text
    assert f"{left} in {len(lines)}" in wait_for(
        lambda: f"{left} in {len(lines)}" in page.read_text() and page.read_text(), "the ledger is on the page"
    )
    assert "has answered" in page.read_text()
    assert 'http-equiv="refresh"' in text
    for word in (*SECRETS, str(federation.folder)):
        assert word not in page.read_text(), word
    server = federation.storage / "runs" / "status" / "server.html"

    def at_the_end():
        text = server.read_text()
        return text if "all steps are done" in text and "complete" in text else None

    text = wait_for(at_the_end, "the run's end is on the server's page")
    assert all(f'<span class="mark">{site}</span> connected since' in text for site in SITES)
    fedretina("site", "page", federation.kit("server"))
    assert "The server runs since" in server.read_text()
    for name in ("server", "site-1"):  # after a run and a page: the process that lasts is small
        for process in federation.running[name].processes():
            assert not any("libtorch" in mapped.path for mapped in process.memory_maps()), process.cmdline()


def test_sign_ins_and_jobs_stand_in_each_ends_audit_log(federation):
    def events(name):
        return json.loads(fedretina("site", "audit", federation.kit(name), "--json").partition("\nok ")[0])

    def told(name):
        return [event["event"] for event in events(name)]

    wait_for(lambda: "job ended" in told("site-1") and "job ended" in told("server"), "the end of `good` is written")
    site = told("site-1")
    assert site.index("signed in at the server") < site.index("job taken") < site.index("job started")
    assert site.index("job started") < site.index("job ended")
    taken = next(event for event in events("site-1") if event["event"] == "job taken")
    assert taken["submitter"] == LEAD
    assert {event["site"] for event in events("server") if event["event"] == "site signed in"} >= set(SITES)
    assert {"service started", "job submitted", "job started"} <= set(told("server"))
    submitted = next(event for event in events("server") if event.get("job") == taken["job"])
    assert (submitted["event"], submitted["submitter"]) == ("job submitted", LEAD)
    assert "admin signed in" in [event["event"] for event in events("server") if event.get("user") == LEAD]
    copy = federation.folder / "audited"
    shutil.copytree(federation.kit("site-1"), copy)
    log = copy / "audit.jsonl"
    log.write_text(log.read_text().replace("job taken", "job token", 1))
    assert f"FAIL  event {taken['number']} is not the one" in fedretina("site", "audit", copy, code=1)
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def tapped(federation):
    """What the server decoded, message by message, of those that sites sent outside of jobs and in `good`."""
    lines = [line for path in (federation.folder / "tap").glob("*.jsonl") for line in path.read_text().splitlines()]
    origins = {*SITES, *(f"{site}.{federation.ended['good']['job_id']}" for site in SITES)}
    messages = [json.loads(line) for line in lines]
    return [message for message in messages if message["headers"].get("cn__origin", "") in origins]


def test_a_run_ends_with_the_bits_of_the_plain_loop(federation, oracle):
    assert federation.ended["good"]["status"] == "FINISHED:COMPLETED", federation.running["server"].text()[-4000:]
    assert results(federation.storage / "runs", "good") == oracle
    for site in SITES:
        ours = federation.hospital(site) / "runs" / "good" / site / "final"
        loops = federation.folder / "loop" / "oracle" / site / "final"
        assert json.loads((ours / "figures.json").read_text()) == json.loads((loops / "figures.json").read_text())


def test_a_run_that_was_submitted_by_flares_recipe_is_known(federation):
    """`good` was: it named the run, so all commands find it; and it sent the bytes that `fedretina submit` sends."""
    kit = ("--kit", federation.kit(LEAD))
    assert "is there, FINISHED:COMPLETED" in fedretina("submit", export(federation, "good"), *kit)
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


def test_a_running_site_is_checked_without_being_disturbed(federation, tmp_path):
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(yaml.safe_dump(WORDS))
    joined = federation.running["server"].text().count("New client site-1")
    text = fedretina("site", "check", federation.kit("site-1"), "--experiment", experiment)
    assert f"localhost:{federation.port} knows this site's certificate" in text
    assert "one provisioning" in text  # read off the server's certificate, in the handshake
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
    assert f"run good: 4 messages, {size(sum(line['bytes'] for line in lines))} of tensors" in text
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
    words = {**WORDS, **IN_FLOAT32, "phases": [{"name": "train", "rounds": 2}], "quorum": 2}
    with federation.session(LEAD) as session:
        job = export(federation, "policies", words, own_filters())
        assert ended(session, session.submit_job(str(job)))["status"] == "FINISHED:COMPLETED"
    steps = results(federation.storage / "runs", "policies")["steps"]
    ledgers = {
        site: Ledger(federation.hospital(site) / "runs" / "policies" / site / "ledger.jsonl").lines() for site in SITES
    }
    assert [line["phase"] for line in ledgers["site-1"]] == ["train", "train", "validate", "finalise"]
    assert set(steps[0]["scalars"]["site-2"]) == {"theta"}
    assert ledgers["site-2"][0]["held_back"] == ["images", "patients"]  # these say much the same
    assert all(float(f"{value:.1e}") == value for value in steps[1]["scalars"]["site-2"].values())
    assert ledgers["site-3"][0]["privacy"]["rho"] == 0.5
    assert [line["phase"] for line in ledgers["site-3"]] == ["train", "train", "validate", "finalise"]
    assert "privacy budget is spent" in ledgers["site-3"][1]["words"]
    assert "privacy budget is spent" in steps[1]["refused"]["site-3"]
    assert "privacy budget is spent" in federation.running["site-3"].text()
    assert set(steps[1]["weights"]) == {"site-1", "site-2"}


class TwoDaysAgo(datetime):
    """A clock for the test's own process."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) - timedelta(days=2)


@pytest.mark.attack(
    "a hostile server",
    "start a run at hospitals that ask for their approval: under an old yes, one that ends in mid-run, a yes to other "
    "settings, a withdrawn one, a no",
    "each waits or stops: only what was approved, for as long as it is, leaves",
)
def test_hospitals_that_ask_for_approval_wait_decide_and_withdraw(federation, monkeypatch):
    asking = {site: federation.kit(site) for site in ("site-1", "site-3")}
    words = {**WORDS, "phases": [{"name": "train", "rounds": 3}]}
    job = export(federation, "asked", words, options=("--gpu", WITH_CARDS, "--gpu-memory", 12))
    plan = Experiment.load(job / "app" / "config" / "experiment.yaml")
    reason = ("--reason", "vote 7 of Margarete", "--by", "Dr. Eye")
    before = {site: (federation.hospital(site) / "site.yaml").read_text() for site in asking}
    for site, text in before.items():
        own = {"policy": {}, "approval": "required"}  # encoded updates go with no noise
        (federation.hospital(site) / "site.yaml").write_text(yaml.safe_dump({**yaml.safe_load(text), **own}))
    # site-1 said yes to the same run with one setting changed; the yes of site-3 ended yesterday.
    changed = AskedPlan.of(plan.model_copy(update={"seed": 4}), "asked", LEAD)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    Approvals(open_kit(asking["site-1"])).decide(changed, True, "Dr. Eye", "vote 6", tomorrow)

    def last_day_passes(site):
        with monkeypatch.context() as patch:
            patch.setattr("fedretina.kit.approvals.datetime", TwoDaysAgo)
            held = Approvals(open_kit(asking[site]))
            held.decide(AskedPlan.of(plan, "asked", LEAD), True, "Dr. Eye", "vote 6", tomorrow - timedelta(days=2))

    last_day_passes("site-3")

    def left(site):
        return Ledger(federation.hospital(site) / "runs" / "asked" / site / "ledger.jsonl").lines()

    with federation.session(LEAD) as session:
        number = session.submit_job(str(job))
        for site, kit in asking.items():
            wait_for(lambda kit=kit: WaitingPlans(open_kit(kit)).all(), f"{site} waits")
        wait_for(lambda: left("site-2"), "site-2 answers at once")
        server = federation.running["server"]
        for site in asking:
            server.wait_until(f"{site} is waiting for the hospital's approval")
        fedretina("site", "page", federation.kit("server"))
        page = (federation.storage / "runs" / "status" / "server.html").read_text()
        assert page.count("; waiting for the hospital&#39;s approval.") == 2
        assert not any((federation.hospital(site) / "runs" / "asked").exists() for site in asking)
        # FLARE gave the job of site-2 the first of its two cards, as the lead asked, and no other site's a card.
        shown = [Path(f"/proc/{pid}/environ").read_bytes() for pid in processes_of(federation.kit(WITH_CARDS), number)]
        assert shown
        assert all(b"\0CUDA_VISIBLE_DEVICES=0\0" in found for found in shown)
        text = fedretina("site", "approve", asking["site-3"])
        assert f"{LEAD} (" in text
        assert "24 images of 24 patients to train on" in text
        assert re.search(r"Leaves in each round of training, 3 times:\s+encoder: weights of the image network", text)
        assert "Nothing is decided" in text
        fedretina("site", "approve", asking["site-3"], "--yes", "--until", tomorrow, *reason)
        wait_for(lambda: left("site-3"), "site-3 answers")
        assert not left("site-1")  # the step waits for its quorum, and no attempt is used up
        # In mid-run the last day of site-3 passes, so it waits at its next round, and later that of site-1.
        last_day_passes("site-3")
        fedretina("site", "approve", asking["site-1"], "asked", "--yes", *reason)
        wait_for(lambda: WaitingPlans(open_kit(asking["site-3"])).all(), "site-3 waits again")
        wait_for(lambda: len(left("site-1")) == 2, "site-1 answers in round 1")
        last_day_passes("site-1")
        fedretina("site", "approve", asking["site-3"], "asked", "--yes", *reason)
        wait_for(lambda: WaitingPlans(open_kit(asking["site-1"])).all(), "site-1 waits again")
        wait_for(lambda: len(left("site-3")) == 3, "site-3 answers in round 2")
        text = fedretina("site", "withdraw", asking["site-3"], "asked", *reason)
        assert "What 3 messages brought to the server stays with the others" in text
        fedretina("site", "approve", asking["site-1"], "asked", "--no", *reason)
        assert ended(session, number)["status"] == "FINISHED:EXECUTION_EXCEPTION"
    for site, text in before.items():
        (federation.hospital(site) / "site.yaml").write_text(text)
    run = federation.storage / "runs" / "asked" / "server"
    assert json.loads((run / "run.json").read_text())["done"] == 2
    assert not (run / "spool").exists()  # what single sites sent for the round that came to nothing
    # A round that waits is no new attempt; one that was refused is, and there are three.
    assert [(bool(line["tensors"]), line["attempt"]) for line in left("site-1")] == [
        *[(True, 0), (True, 0)],
        *[(False, 0), (False, 1), (False, 2)],
    ]
    assert "refused this run" in left("site-1")[2]["words"]
    assert [(bool(line["tensors"]), line["attempt"]) for line in left("site-3")] == [
        *[(True, 0), (True, 0), (True, 0)],
        *[(False, 1), (False, 2)],
    ]
    assert "withdrawn its approval" in left("site-3")[3]["words"]
    for said in ("withdrawn its approval", "refused this run"):
        assert said in server.text()
    told = json.loads(fedretina("site", "audit", asking["site-3"], "--json").partition("\nok ")[0])
    events = [event["event"] for event in told if event.get("run") == "asked"]
    assert events == [
        *["approval asked for", "run approved"],
        *["approval asked for", "run approved", "approval withdrawn"],
    ]
    stored = [path.read_bytes() for path in files_below(federation.storage, federation.kit("server"))]
    assert not any(b"Margarete" in data for data in stored)


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
    federation.running["site-6"].wait_until("disabled")
    assert "Successfully registered" not in federation.running["site-6"].text()
    federation.stop("site-6")
    back = ("enable-client", "site-6", "--force", "--startup-kit", federation.kit(PROJECT_ADMIN))
    nvflare(federation.home, "system", *back)
    federation.start("site-6", federation.kit("site-6", 1)).wait_until("Successfully registered")
    federation.stop("site-6")
    settled = {path: data for path, data in before.items() if "startup" in path.parts or path.suffix == ".json"}
    kept = {path for path in settled if path.parent.name in ("startup", "local")}
    assert kept
    assert all(path.read_bytes() == before[path] for path in kept)
