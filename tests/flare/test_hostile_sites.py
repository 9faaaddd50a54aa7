"""Sites that misbehave in some rounds through the real simulator: refused by name, the others go on."""

import json

import pytest
from simulation import SMALL, Simulation, done, make_hostile, results, run_oracle, write_job
from standing import CEILING_S

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("east", "good", "north", "south", "west")  # what each does in which round: `FAULTS` of hostile.py
REFUSED = (  # by round
    {
        "north": "holds a value of size 1e+29, at most 1e+06 is taken",  # absurd
        "east": "FILTER_ERROR",  # head-leaks
        "south": "EXECUTION_RESULT_ERROR",  # raises
        "west": "FILTER_ERROR",  # stale
    },
    {
        "north": "FILTER_ERROR",  # digest
        "east": "FILTER_ERROR",  # meta
        "south": "FILTER_ERROR",  # shape
        "west": "is out of all proportion",  # stretched
    },
    {
        "north": "FILTER_ERROR",  # entry
        "east": "not finite",  # nan
        "south": "it did not answer in time.",  # slow
        "west": "'theta' is not a finite number",  # theta
    },
)


@pytest.mark.attack(
    "a hostile site",
    "values that are not finite, or a theta that is not a number",
    "refused by name, and the others go on",
)
@pytest.mark.attack(
    "a lead",
    "an executor that puts a head into its answer, though the row keeps heads at home",
    "the site's filter stops it, and nothing is in the ledger",
)
@pytest.mark.attack(
    "a lead",
    "an executor that puts words about a patient into an answer's entries, stamp or error",
    "the site's filter stops them, and the server stores none",
)
@pytest.mark.attack(
    "a hostile site",
    "an answer of another round, another shape or another network",
    "refused by name, and the others go on",
)
@pytest.mark.attack(
    "a hostile site",
    "1e29 in every tensor, or an update ten thousand times as long as its own",
    "refused by name and number, and the others go on",
)
@pytest.mark.attack(
    "a hostile site",
    "an answer that comes after the budget",
    "it is dropped and leaves no state; the site takes part again",
)
def test_each_is_refused_by_name_or_left_out_beyond_the_budget_and_takes_part_again(tmp_path):
    words = {**SMALL, "phases": [{"name": "train", "rounds": 4}]}
    # After a round that a site missed, the next one waits for it.
    job = make_hostile(write_job(tmp_path / "job", words, SITES), grace_s=CEILING_S)
    simulation = Simulation(job, tmp_path / "sim", len(SITES), FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    *bad, good = results(tmp_path, "r")["steps"][:4]
    assert set(good["weights"]) == set(SITES)
    for number, (step, expected) in enumerate(zip(bad, REFUSED, strict=True)):
        assert set(step["weights"]) == {"good"}, number
        for site, said in expected.items():
            assert said in step["refused"][site], (number, site, step["refused"][site])
    server = [path.read_text() for path in (tmp_path / "r" / "server").glob("*.json")]
    assert not any("smith" in text or "somebody" in text for text in server)
    assert "personal and stays at its site" in simulation.text()
    for site in SITES:
        # What was stopped at the site never left, so it is not in the ledger; what arrived and was refused is.
        lines = Ledger(tmp_path / "r" / site / "ledger.jsonl").lines()
        left = {line["round"] for line in lines if line["phase"] == "train"}
        assert left == {"east": {2, 3}, "good": {0, 1, 2, 3}, "north": {0, 3}, "south": {2, 3}, "west": {1, 2, 3}}[site]
        # A round that did not count left no personal state: the site began the next one anew.
        record = json.loads((tmp_path / "r" / site / "state.json").read_text())
        assert record["counted"] == ([0, 1, 2, 3] if site == "good" else [3])


@pytest.mark.attack(
    "a hostile site",
    "bytes in an answer's place that cannot be unpacked, at which FLARE would end the server's process of the job",
    "refused by name, and the step goes on",
)
def test_a_step_below_the_quorum_is_repeated_and_leaves_no_trace_and_at_last_the_job_stops_with_a_sentence(tmp_path):
    sites = ("fails", "good")
    words = {**SMALL, "quorum": 2, "phases": [{"name": "train", "rounds": 3}]}
    job = make_hostile(write_job(tmp_path / "job", words, sites), repeats=1)
    simulation = Simulation(job, tmp_path / "sim", 2, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 2
    said = simulation.text()
    assert "train-0000: 1 update was accepted, the quorum is 2 (fails: its answer cannot be unpacked.)" in said
    assert "train-0000: begun, attempt 1" in said
    steps = run_oracle(tmp_path, words, sites)["steps"]
    for number in range(2):
        record = json.loads((tmp_path / "r" / "server" / f"train-{number:04d}.json").read_text())
        assert record == steps[number]
    assert "train-0002: 1 update was accepted, the quorum is 2 (fails: " in said
    assert "It was tried 2 times." in said
    assert done(tmp_path, "r") == 2
