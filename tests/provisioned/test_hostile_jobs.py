"""What a hardened federation does with a lead's bad jobs: refused by server and sites, and nothing is read or told."""

import json

import pytest
from hostile_jobs import PLANTED, hostile_jobs, listening, plant
from jobs import ANOTHER, SITES, WORDS, another_class, bring_code, export, own_filters

from federation import (
    LEAD,
    MEMBER,
    ORG_ADMIN,
    ended,
    fedretina,
    files_below,
    processes_of,
    wait_for,
)
from fedretina.kit.job_folder import ALLOWED_CLASSES

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
NOT_LISTED = f"Component '{ANOTHER}' at config path"


def refused(federation, name, change, why, sites=SITES):
    """Submit a changed job; no site may have begun it, and the lead is told why, before it is sent and afterwards."""
    kit = ("--kit", federation.kit(LEAD))
    before = set((federation.storage / "jobs").iterdir())
    job = export(federation, name, {**WORDS, "quorum": len(sites)}, change, sites)
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
    assert federation.audited("server", "command refused")[-1]["user"] == user
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
    assert "code" in [event["name"] for event in federation.audited("server", "job submitted")]
    assert "Failed to deploy app 'app': BYOC not permitted: the job brings" in federation.running["server"].text()


@pytest.fixture(scope="module")
def looked_up(federation):
    """What became of each hostile job: the reason at submission, or the job's meta and what `fedretina watch` said.

    More forms of them are refused in tests/flare/test_job_door.py, by the same sentences.
    """
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
            words = [str(job), "--kit", str(federation.kit(LEAD)), "--timeout", "600"]
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
        ("include-key", "else, but this one has config/config_fed_client.conf"),
        ("include-address", "else, but this one has config/config_fed_client.conf"),
        ("environment", "else, but this one has config/config_fed_client.conf"),
        ("of-the-server", "this federation reads configuration in JSON and no other format"),
        ("yaml", "else, but this one has config/config_fed_client.yml"),
        ("variables", "config_fed_client.json of the job holds a variable in braces"),
        ("server-variables", "config_fed_server.json of the job holds a variable in braces"),
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
    why = f"the server's allow-list does not hold {ANOTHER}"
    refused(federation, "at-server", another_class("server"), why, SITES[:1])
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
        federation.running["site-1"].wait_until(f"the job puts {adds} behind the site's filter")
        wait_for(lambda: not processes_of(federation.kit("site-1"), job), "the site's process of the job ends")
        # FLARE's server notices by itself only where a heartbeat fell into the seconds that the site was in the job.
        session.abort_job(job)
        assert ended(session, job)["status"] in ("FINISHED:ABORTED", "FINISHED:EXECUTION_EXCEPTION")
    assert not (federation.hospital("site-1") / "runs" / "another-filter").exists()
    assert not list((federation.storage / "runs" / "another-filter" / "server").glob("train-*"))
    path.write_text(before)
