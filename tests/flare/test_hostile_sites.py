"""Sites that misbehave in one round through the real simulator: refused by name, the others go on."""

import json

import pytest
from simulation import SMALL, Simulation, make_hostile, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = (
    "absurd",
    "digest",
    "entry",
    "good",
    "head-leaks",
    "meta",
    "nan",
    "raises",
    "shape",
    "stale",
    "stretched",
    "theta",
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
def test_each_is_refused_by_name_and_takes_part_again_in_the_next_round(tmp_path):
    job = make_hostile(write_job(tmp_path / "job", {**SMALL, "phantom_images": 64}, SITES))
    simulation = Simulation(job, tmp_path / "sim", len(SITES), FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    found = results(tmp_path, "r")
    first, second = found["steps"][:2]
    assert set(first["weights"]) == {"good"}
    assert set(second["weights"]) == set(SITES)
    refused = first["refused"]
    for site, said in {
        "digest": "FILTER_ERROR",
        "entry": "FILTER_ERROR",
        "head-leaks": "FILTER_ERROR",
        "meta": "FILTER_ERROR",
        "nan": "not finite",
        "raises": "EXECUTION_RESULT_ERROR",
        "shape": "FILTER_ERROR",
        "stale": "FILTER_ERROR",
        "theta": "'theta' is not a finite number",
        "absurd": "holds a value of size 1e+29, at most 1e+06 is taken",
        "stretched": "is out of all proportion",
    }.items():
        assert said in refused[site], (site, refused[site])
    server = [path.read_text() for path in (tmp_path / "r" / "server").glob("*.json")]
    assert not any("smith" in text or "somebody" in text for text in server)
    assert "personal and stays at its site" in simulation.text()
    # What was stopped at the site never left, so it is not in the ledger; what arrived and was refused is.
    sent = {site: Ledger(tmp_path / "r" / site / "ledger.jsonl").lines()[0]["round"] for site in SITES}
    assert {site for site, first in sent.items() if first == 0} == {"absurd", "good", "nan", "stretched", "theta"}
    # A round that did not count left no personal state: the site began round 1 anew.
    for site in ("nan", "stretched"):
        record = json.loads((tmp_path / "r" / site / "state.json").read_text())
        assert record["counted"] == [1]


def test_a_step_below_the_quorum_is_repeated_and_leaves_no_trace(tmp_path):
    sites = ("good", "raises")
    words = {**SMALL, "phantom_images": 64, "quorum": 2}
    job = make_hostile(write_job(tmp_path / "job", words, sites))
    simulation = Simulation(job, tmp_path / "sim", 2, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert "train-0000: 1 update was accepted, the quorum is 2" in simulation.text()
    assert "train-0000: begun, attempt 1" in simulation.text()
    assert results(tmp_path, "r") == run_oracle(tmp_path, words, sites)


@pytest.mark.attack(
    "a hostile site",
    "an answer that comes after the budget",
    "it is dropped and leaves no state; the site takes part again",
)
def test_a_site_beyond_the_budget_misses_its_round_and_comes_back(tmp_path):
    words = {**SMALL, "phantom_images": 64, "phases": [{"name": "train", "rounds": 6}]}
    job = make_hostile(write_job(tmp_path / "job", words, ("good", "slow")), budget_s=10, grace_s=6.0)
    simulation = Simulation(job, tmp_path / "sim", 2, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    steps = results(tmp_path, "r")["steps"]
    assert set(steps[0]["weights"]) == {"good"}
    assert steps[0]["refused"] == {"slow": "it did not answer in time."}
    assert set(steps[5]["weights"]) == {"good", "slow"}
    record = json.loads((tmp_path / "r" / "slow" / "state.json").read_text())
    assert 0 not in record["counted"]


def test_a_quorum_that_is_never_met_stops_the_job_with_a_sentence(tmp_path):
    words = {**SMALL, "quorum": 3, "phases": [{"name": "train", "rounds": 1}]}
    job = make_hostile(write_job(tmp_path / "job", words, ("good", "other")), repeats=1)
    simulation = Simulation(job, tmp_path / "sim", 2, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 2
    assert "2 updates were accepted, the quorum is 3 (no answer). It was tried 2 times." in simulation.text()
