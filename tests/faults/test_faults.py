"""What breaks in a federation, done to real processes: no finished round and no personal state is lost.

Each round of a run is hurt in another way, because each run takes three processes.

The faults that are not here: docs/faults.md names the test of each.
"""

import time

import pytest
from disturbed import HAS_TENSORBOARD, SITES, Disturbed, curve, rounds, undisturbed
from poc.project import SERVER
from standing import CEILING_S

pytestmark = pytest.mark.flare


@pytest.fixture(scope="module")
def federation(tmp_path_factory, once):
    once("the federation of the faults")
    disturbed = Disturbed(tmp_path_factory.mktemp("faults"))
    try:
        disturbed.start()
        yield disturbed
    finally:
        disturbed.stop()


@pytest.fixture
def disks(federation):
    if not federation.has_disks:
        pytest.skip("small disks cannot be mounted here: that needs root")


def test_killed_trainers_and_jobs_and_full_disks_cost_an_answer_or_a_job_and_never_a_bit(federation, disks, tmp_path):
    words = rounds(6)
    federation.train_in_a_child(True)  # the first site
    federation.let(1)
    job = federation.submit("hurt", words, repeats=20)

    def done(number):
        federation.wait_for(lambda: federation.done("hurt") == number, f"{number} rounds")
        return federation.durable("hurt")

    def ended_at(steps):
        end = federation.ends("hurt", complete=False)
        assert federation.done("hurt") in steps
        assert end["status"] == "FINISHED:EXECUTION_EXCEPTION"
        assert federation.kept("hurt", before)
        assert "`fedretina resume hurt` goes on with its run." in end["why"]
        return end["why"]

    # Round 1: the trainer is killed; the job goes on.
    before = done(1)
    site = federation.job_process("site-1", job)
    federation.wait_for(lambda: federation.child(job), "a trainer in round 1").kill()
    federation.let(2)
    done(2)
    assert federation.kept("hurt", before)
    assert site.is_running()
    assert "the answer of site-1 does not count: the trainer was killed by signal 9" in federation.said(SERVER)

    # Round 2: the site's process of the job is killed, with its trainer at work.
    before = federation.durable("hurt")
    trainer = federation.wait_for(lambda: federation.child(job), "a trainer in round 2")
    site.kill()
    federation.let(3)
    federation.wait_for(lambda: not trainer.is_running(), "the trainer's end")
    ended_at({2})
    federation.train_in_a_child(False)  # with the same bits

    # Round 3: the site's disk is full; the job goes on.
    job = federation.admin("resume", "hurt")[0]["job"]
    before = done(3)
    site = federation.job_process("site-1", job)
    with federation.full("site-1"):
        federation.let(4)
        federation.wait_for(
            lambda: "StateError: the site's own log says what and where." in federation.said(SERVER), "a refusal"
        )
        assert site.is_running()
    done(4)
    assert federation.kept("hurt", before)
    assert "the disk is full" in federation.said("site-1")
    assert str(federation.disks["site-1"]) not in federation.said(SERVER)
    own = federation.lines(federation.site_folder("hurt", "site-1"))
    assert {line["event"] for line in own} == {"answered", "failed"}
    lines = federation.lines(federation.server_folder("hurt"))
    closed = [(line["phase"], line["round"], line["attempt"]) for line in lines if line["event"] == "closed"]
    assert closed[:2] == [("train", 0, 0), ("train", 1, 1)]
    assert lines[0]["event"] == "opened"

    # Round 4: the server's process of the job is killed.
    before = done(4)
    federation.job_process(SERVER, job).kill()
    federation.let(5)
    ended_at({4})

    # Round 5: the server's disk is full.
    federation.admin("resume", "hurt")
    before = done(5)
    with federation.full(SERVER):
        federation.let()
        # What the round gives back at its end may hold the last steps of so small a model, never the results.
        why = ended_at({5, 6, 7})
    assert "the disk is full" in why

    federation.admin("resume", "hurt")
    federation.ends("hurt", complete=True)
    assert federation.results("hurt") == undisturbed(tmp_path, words)
    assert (federation.server_folder("hurt") / "log.jsonl").read_text().count('"event": "completed"') == 1
    if HAS_TENSORBOARD:  # each point once, though four jobs wrote them
        points = curve(federation.server_folder("hurt") / "tensorboard", "train/theta/site-1")
        told = [step["scalars"]["site-1"]["theta"] for step in federation.results("hurt")["steps"][:6]]
        assert points == [(number, pytest.approx(theta)) for number, theta in enumerate(told)]
    for site in SITES:
        ours, expected = (
            root / "final" / "figures.json" for root in (federation.site_folder("hurt", site), tmp_path / site)
        )
        assert ours.read_bytes() == expected.read_bytes()


def test_a_site_that_is_off_or_frozen_beyond_the_heartbeat_takes_part_again_with_what_it_had(federation, tmp_path):
    words = rounds(6, quorum=1)
    federation.let(1)
    job = federation.submit("away", words, grace_s=1.0)

    def done(number, what):
        federation.wait_for(lambda: federation.done("away") == number, what)
        return federation.durable("away")

    # Off for two rounds.
    before = done(1, "round 0")
    federation.switch_off("site-2")
    federation.let(3)
    done(3, "two rounds without it")
    federation.switch_on("site-2")
    # FLARE 2.9 gives a site that was started anew no part in a job that runs: the lead ends the job, and resumes.
    with federation.local.session() as session:
        session.abort(job)
    federation.let(4)
    federation.local.wait_for_sites(CEILING_S)
    federation.ends("away", complete=False)
    assert federation.kept("away", before)
    job = federation.admin("resume", "away")[0]["job"]

    # Frozen for one, in the same job.
    before = done(4, "a round with it again")
    removed = "Remove the dead Client. Name: site-2"
    deaths = federation.said(SERVER).count(removed)
    frozen = federation.processes("site-2")
    assert federation.job_process("site-2", job) in frozen
    for process in frozen:
        process.suspend()
    federation.wait_for(lambda: federation.said(SERVER).count(removed) > deaths, "the server takes it for dead")
    federation.let(5)
    done(5, "a round without it")
    fetched = federation.said(SERVER).count("assigned task to client site-2: name=train")
    for process in frozen:
        process.resume()

    # In the next one it is slower than the grace, with its order fetched.
    federation.wait_for(
        lambda: federation.said(SERVER).count("assigned task to client site-2: name=train") > fetched, "its order"
    )
    slow = federation.job_process("site-2", job)
    slow.suspend()
    answers = federation.said(SERVER).count("got result from client site-1 for task: name=train")
    federation.let()
    federation.wait_for(
        lambda: federation.said(SERVER).count("got result from client site-1 for task: name=train") > answers,
        "the other's answer",
    )
    time.sleep(4)
    assert federation.done("away") == 5
    slow.resume()
    federation.ends("away", complete=True)
    federation.local.wait_for_sites(CEILING_S)
    assert federation.kept("away", before)
    found = federation.results("away")
    refused = [step["refused"] for step in found["steps"]]
    assert refused[0] == refused[3] == refused[5] == refused[-1] == {}
    assert refused[1] == refused[2] == refused[4] == {"site-2": "it did not answer in time."}
    assert found == undisturbed(tmp_path, words, refused)
    assert "site-2" in found["sites"]
