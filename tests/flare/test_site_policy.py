"""A site's policy through the real simulator, which knows no scopes at its sites: the job's own filter applies it.

That a scope's filter applies it too, and whatever the job brings, is seen in tests/provisioned.
"""

import json

import pytest
import yaml
from simulation import SMALL, Simulation, results, write_job

from fedretina.exchange.ledger import Ledger
from fedretina.settings.scalars import COUNTS

pytestmark = pytest.mark.flare
POLICIES = {
    "careful": {"hold_back": ["images", "images_train", "val_auc"], "scalar_digits": 2, "mantissa_bits": 4},
    "noisy": {"noise": {"kind": "gaussian", "clip": 0.1, "multiplier": 2.0, "max_epsilon": 7}},
    "sparse": {"noise": {"kind": "svt", "epsilon": 1.0, "epsilon_release": 2.0, "clip": 0.01}},
    "open": {},
}


def write_scopes(folder, policies):
    """A privacy.json for every site, that points each to a site file of its own."""
    local = folder / "sim" / "workspace" / "local"
    local.mkdir(parents=True)
    for site, policy in policies.items():
        (folder / f"{site}.yaml").write_text(yaml.safe_dump({"policy": policy, "state_root": "runs"}))
    scope = {
        "name": "fedretina",
        "properties": {"fedretina": {"site_file": str(folder / "{SITE_NAME}.yaml")}},
    }
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "fedretina"}))


def test_each_site_sends_what_its_own_policy_lets_go(tmp_path):
    write_scopes(tmp_path, POLICIES)
    # The noise of "sparse" is thousands of times the model, which by default is refused as out of all proportion.
    job = write_job(tmp_path / "job", {**SMALL, "aggregation": {"proportion": None}}, list(POLICIES))
    root = tmp_path / "server"
    simulation = Simulation(job, tmp_path / "sim", 4, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(root))
    assert simulation.wait() == 0, simulation.text()[-3000:]
    ledgers = {site: Ledger(tmp_path / "runs" / "r" / site / "ledger.jsonl").lines() for site in POLICIES}
    found = results(root, "r")
    first, second = found["steps"][:2]
    assert set(first["weights"]) == set(POLICIES)
    assert [line["phase"] for line in ledgers["open"]] == ["train", "train", "validate", "finalise"]
    assert "privacy" not in ledgers["open"][0]
    # Held back and rounded: in the ledger, at the server, in the results.
    careful = ledgers["careful"]
    assert set(first["scalars"]["careful"]) == {"theta"}
    assert set(second["scalars"]["careful"]) == {"theta", "val_accuracy"}
    assert careful[1]["held_back"] == ["images", "val_auc"]
    assert careful[0]["mantissa_bits"] == 4
    figures = found["sites"]["careful"]
    assert "images_train" not in figures
    rounded = [line["scalars"][name] for line in careful for name in line["scalars"] if name not in COUNTS]
    assert all(float(f"{value:.1e}") == value for value in rounded)
    assert "theta" in careful[0]["scalars"]
    assert "-/" in simulation.text()
    # The budget holds one round of noise; then the filter refuses, and the run goes on.
    assert [line["phase"] for line in ledgers["noisy"]] == ["train", "train", "validate", "finalise"]
    assert "privacy budget is spent" in ledgers["noisy"][1]["words"]  # the sentence left, so it stands there
    assert ledgers["noisy"][0]["privacy"]["rho"] == 0.5
    assert 5 < ledgers["noisy"][0]["privacy"]["epsilon_so_far"] < 7
    assert "privacy budget is spent" in second["refused"]["noisy"]  # the site's own sentence, not FLARE's code
    assert "privacy budget is spent" in simulation.text()
    assert (tmp_path / "runs" / "noise.key").stat().st_mode & 0o077 == 0
    spent = [line["privacy"]["epsilon_so_far"] for line in ledgers["sparse"] if "privacy" in line]
    assert spent == [3.0, 6.0]
