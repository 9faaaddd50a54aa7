"""What breaks in a federation, done to real processes: no finished round and no personal state is lost.

The faults that are not here: docs/faults.md names the test of each.
"""

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
def children(federation):
    """The first site trains in child processes."""
    federation.train_in_a_child(True)
    yield
    federation.train_in_a_child(False)


@pytest.fixture
def disks(federation):
    if not federation.has_disks:
        pytest.skip("small disks cannot be mounted here: that needs root")


def test_a_killed_trainer_and_a_full_disk_at_its_site_cost_an_answer_each(federation, children, disks, tmp_path):
    words = rounds(3)
    federation.let(1)
    job = federation.submit("answers", words, repeats=20)
    federation.wait_for(lambda: federation.done("answers") == 1, "round 0")
    site = federation.job_process("site-1", job)
    before = federation.durable("answers")
    federation.wait_for(lambda: federation.child(job), "a trainer in round 1").kill()
    federation.let(2)
    federation.wait_for(lambda: federation.done("answers") == 2, "round 1, again")
    assert site.is_running()
    assert "the answer of site-1 does not count: the trainer was killed by signal 9" in federation.said(SERVER)
    assert federation.kept("answers", before)

    with federation.full("site-1"):
        federation.let()
        federation.wait_for(
            lambda: "StateError: the site's own log says what and where." in federation.said(SERVER), "a refusal"
        )
        assert site.is_running()
    federation.ends("answers", complete=True)
    assert "the disk is full" in federation.said("site-1")
    assert str(federation.disks["site-1"]) not in federation.said(SERVER)
    assert federation.results("answers") == undisturbed(tmp_path, words)
    own = federation.lines(federation.site_folder("answers", "site-1"))
    assert {line["event"] for line in own} == {"answered", "failed"}
    lines = federation.lines(federation.server_folder("answers"))
    closed = [(line["phase"], line["round"], line["attempt"]) for line in lines if line["event"] == "closed"]
    assert closed[:2] == [("train", 0, 0), ("train", 1, 1)]
    assert (lines[0]["event"], lines[-1]["event"]) == ("opened", "completed")


def test_where_the_job_ends_a_resume_ends_with_the_bits_of_an_undisturbed_run(federation, children, disks, tmp_path):
    words = rounds(4)
    federation.let(1)
    job = federation.submit("jobs", words)

    def ended_at(done, status):
        end = federation.ends("jobs", complete=False)
        assert federation.done("jobs") in done
        assert end["status"] == status
        assert federation.kept("jobs", before)
        assert "`fedretina resume jobs` goes on with its run." in end["why"]
        return end["why"]

    federation.wait_for(lambda: federation.done("jobs") == 1, "round 0")
    before = federation.durable("jobs")
    trainer = federation.wait_for(lambda: federation.child(job), "a trainer in round 1")
    federation.job_process("site-1", job).kill()
    federation.let(2)
    federation.wait_for(lambda: not trainer.is_running(), "the trainer's end")
    ended_at({1}, "FINISHED:EXECUTION_EXCEPTION")
    federation.train_in_a_child(False)  # with the same bits

    job = federation.admin("resume", "jobs")[0]["job"]
    federation.wait_for(lambda: federation.done("jobs") == 2, "round 1")
    before = federation.durable("jobs")
    federation.job_process(SERVER, job).kill()
    federation.let(3)
    ended_at({2}, "FINISHED:EXECUTION_EXCEPTION")

    federation.admin("resume", "jobs")
    federation.wait_for(lambda: federation.done("jobs") == 3, "round 2")
    before = federation.durable("jobs")
    with federation.full(SERVER):
        federation.let()
        # What the round gives back at its end may hold the last steps of so small a model, never the results.
        why = ended_at({3, 4, 5}, "FINISHED:EXECUTION_EXCEPTION")
    assert "the disk is full" in why

    federation.admin("resume", "jobs")
    federation.ends("jobs", complete=True)
    assert federation.results("jobs") == undisturbed(tmp_path, words)
    if HAS_TENSORBOARD:  # each point once, though four jobs wrote them
        points = curve(federation.server_folder("jobs") / "tensorboard", "train/theta/site-1")
        told = [step["scalars"]["site-1"]["theta"] for step in federation.results("jobs")["steps"][:4]]
        assert points == [(number, pytest.approx(theta)) for number, theta in enumerate(told)]
    for site in SITES:
        ours, expected = (
            root / "final" / "figures.json" for root in (federation.site_folder("jobs", site), tmp_path / site)
        )
        assert ours.read_bytes() == expected.read_bytes()


def test_a_site_that_is_off_for_two_rounds_comes_back_with_what_it_had(federation, tmp_path):
    words = rounds(5, quorum=1)
    federation.let(1)
    job = federation.submit("off", words, grace_s=1.0)
    federation.wait_for(lambda: federation.done("off") == 1, "round 0")
    before = federation.durable("off")
    federation.switch_off("site-2")
    federation.let(3)
    federation.wait_for(lambda: federation.done("off") == 3, "two rounds without it")
    federation.switch_on("site-2")
    # FLARE 2.9 gives a site that was started anew no part in a job that runs: the lead ends the job, and resumes.
    with federation.local.session() as session:
        session.abort(job)
    federation.let()
    federation.local.wait_for_sites(CEILING_S)
    federation.ends("off", complete=False)
    assert federation.kept("off", before)
    federation.admin("resume", "off")
    federation.ends("off", complete=True)
    found = federation.results("off")
    refused = [step["refused"] for step in found["steps"]]
    assert refused[0] == refused[-1] == {}
    assert refused[1] == refused[2] == {"site-2": "it did not answer in time."}
    assert found == undisturbed(tmp_path, words, refused)
    assert "site-2" in found["sites"]


def test_a_site_that_is_frozen_beyond_the_heartbeat_takes_part_again_in_the_same_job(federation, tmp_path):
    words = rounds(4, quorum=1)
    federation.let(1)
    job = federation.submit("frozen", words, grace_s=1.0)
    federation.wait_for(lambda: federation.done("frozen") == 1, "round 0")
    removed = "Remove the dead Client. Name: site-2"
    before, deaths = federation.durable("frozen"), federation.said(SERVER).count(removed)
    frozen = federation.processes("site-2")
    assert federation.job_process("site-2", job) in frozen
    for process in frozen:
        process.suspend()
    federation.wait_for(lambda: federation.said(SERVER).count(removed) > deaths, "the server takes it for dead")
    federation.let(2)
    federation.wait_for(lambda: federation.done("frozen") == 2, "a round without it")
    for process in frozen:
        process.resume()
    federation.let()
    federation.ends("frozen", complete=True)
    federation.local.wait_for_sites(CEILING_S)
    found = federation.results("frozen")
    refused = [step["refused"] for step in found["steps"]]
    assert refused[1] == {"site-2": "it did not answer in time."}
    assert refused[-1] == {}
    assert federation.kept("frozen", before)
    assert found == undisturbed(tmp_path, words, refused)
