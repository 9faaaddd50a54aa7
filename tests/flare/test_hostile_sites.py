"""Sites that misbehave in one round through the real simulator: refused by name, the others go on."""

import json
import shutil
from pathlib import Path

import pytest
from simulation import SMALL, Simulation, results, write_job

from fedretina.exchange.ledger import Ledger

pytestmark = pytest.mark.flare
SITES = ("good", "head-leaks", "meta", "nan", "raises", "stale", "theta")


def test_each_is_refused_by_name_and_takes_part_again_in_the_next_round(tmp_path):
    job = write_job(tmp_path / "job", {**SMALL, "phantom_images": 64}, SITES)
    shutil.copy(Path(__file__).parent / "hostile.py", job / "app/custom/hostile.py")
    client = job / "app/config/config_fed_client.json"
    client.write_text(client.read_text().replace("fedretina.flare.executor.TrainerExecutor", "hostile.HostileExecutor"))
    simulation = Simulation(job, tmp_path / "sim", len(SITES), FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    found = results(tmp_path, "r")
    first, second = found["steps"][:2]
    assert set(first["weights"]) == {"good"}
    assert set(second["weights"]) == set(SITES)
    refused = first["refused"]
    for site, said in {
        "head-leaks": "FILTER_ERROR",
        "meta": "FILTER_ERROR",
        "nan": "not finite",
        "raises": "EXECUTION_RESULT_ERROR",
        "stale": "FILTER_ERROR",
        "theta": "'theta' is not a finite number",
    }.items():
        assert said in refused[site], (site, refused[site])
    server = [path.read_text() for path in (tmp_path / "r" / "server").glob("*.json")]
    assert not any("smith" in text or "somebody" in text for text in server)
    assert "personal and stays at its site" in simulation.text()
    # What was stopped at the site never left, so it is not in the ledger; what arrived and was refused is.
    sent = {site: Ledger(tmp_path / "r" / site / "ledger.jsonl").lines()[0]["round"] for site in SITES}
    assert sent == {"good": 0, "head-leaks": 1, "meta": 1, "nan": 0, "raises": 1, "stale": 1, "theta": 0}
    # A round that did not count left no personal state: the site began round 1 anew.
    record = json.loads((tmp_path / "r" / "nan" / "state.json").read_text())
    assert record["counted"] == [1]
