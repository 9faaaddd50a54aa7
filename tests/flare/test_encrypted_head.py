"""A head that travels encrypted, through the real simulator: what the server holds of it, it cannot read."""

import json

import pytest
import torch
import yaml
from simulation import SMALL, Simulation, results, write_job

from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for, new_keys
from fedretina.exchange.ledger import Ledger
from fedretina.settings.exchange import ExchangeSettings
from fedretina.storage import read_tensors

pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
pytestmark = pytest.mark.flare
SITES = ("site-1", "site-4")  # phantoms of five grades each, so that their heads can be mixed
EXCHANGE = {"personal": "nothing", "encrypt": "head"}


def write_scope(folder, server_file):
    local = folder / "sim" / "workspace" / "local"
    local.mkdir(parents=True)
    site = {"policy": {"kinds": ["encoder", "head"]}, "state_root": "runs", "he_keys": f"keys/{SITE_FILE}"}
    (folder / "site.yaml").write_text(yaml.safe_dump(site))
    properties = {
        "fedretina": {"site_file": str(folder / "site.yaml")},
        "fedretina_server": {"he_keys": str(folder / "keys" / server_file)},
    }
    scope = {"name": "fedretina", "properties": properties}
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "fedretina"}))


def simulate(tmp_path, server_file):
    new_keys(tmp_path / "keys")
    write_scope(tmp_path, server_file)
    job = write_job(tmp_path / "job", {**SMALL, "grades": 5, "exchange": EXCHANGE}, SITES)
    return Simulation(job, tmp_path / "sim", 2, FEDRETINA_RUN="r", FEDRETINA_STATE_ROOT=str(tmp_path / "server"))


def test_the_server_stores_and_mixes_a_head_that_it_cannot_read(tmp_path):
    simulation = simulate(tmp_path, SERVER_FILE)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    found = results(tmp_path / "server", "r")
    assert sorted(found["steps"][1]["weights"]) == list(SITES)
    mixed, _ = read_tensors(tmp_path / "server" / "r" / "server" / f"{found['chosen']}.safetensors")
    heads = {key: value for key, value in mixed.items() if key.startswith("head.")}
    assert heads
    assert all(value.dtype == torch.uint8 for value in heads.values())
    site = cipher_for(ExchangeSettings(**EXCHANGE), tmp_path / "keys" / SITE_FILE, private=True)
    for name in SITES:
        final, _ = read_tensors(tmp_path / "runs" / "r" / name / "final" / "model.safetensors")
        for key, value in heads.items():
            assert torch.equal(site.open(key, value, tuple(final[key].shape), final[key].dtype), final[key])
        line = Ledger(tmp_path / "runs" / "r" / name / "ledger.jsonl").lines()[1]
        assert line["tensors"]["head"] == len(heads)
        assert line["bytes"] == found["steps"][1]["bytes_up"][name] > sum(value.numel() for value in heads.values())


def test_a_server_with_the_sites_key_is_stopped_before_a_round(tmp_path):
    simulation = simulate(tmp_path, SITE_FILE)
    assert simulation.wait() == 2
    assert "he_keys of this end names the file of the sites" in simulation.text()
    assert not list((tmp_path / "server").rglob("train-*"))
