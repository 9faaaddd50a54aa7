"""What leaves hardened sites under encryption: a head that travels, and sums; the sites' settings are put back."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import yaml
from jobs import IN_FLOAT32, WORDS, export

from federation import LEAD, ended, fedretina
from fedretina.analytic.sums import total
from fedretina.data.site_data import load_site_data
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for
from fedretina.exchange.ledger import Ledger
from fedretina.local.heads_from_sums import HeadsFromSums, packed
from fedretina.loop import run_loop
from fedretina.settings.exchange import ExchangeSettings
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import read_site_settings
from fedretina.storage import read_json, read_tensors

pytestmark = [pytest.mark.flare, pytest.mark.provisioned]
SITES = ("site-1", "site-3")  # five grades each
CKKS = 1e-6
"""What a number may be off after encryption, as a share of the largest: of sums, and of the heads that follow."""


@contextmanager
def keys_at_all_ends(federation, name, own):
    """Keys for the server and for sites, these with settings of their own; gives the file of the sites' keys."""
    keys = federation.folder / name
    fedretina("kit", "he-keys", keys)
    privacy = federation.kit("server") / "local" / "privacy.json"
    files = {site: federation.hospital(site) / "site.yaml" for site in own}
    before = {path: path.read_text() for path in (privacy, *files.values())}
    try:
        scope = json.loads(before[privacy])
        scope["scopes"][0]["properties"]["fedretina_server"]["he_keys"] = str(keys / SERVER_FILE)
        privacy.write_text(json.dumps(scope))
        for site, path in files.items():
            words = {**yaml.safe_load(before[path]), **own[site], "he_keys": str(keys / SITE_FILE)}
            path.write_text(yaml.safe_dump(words))
        yield keys / SITE_FILE
    finally:
        for path, text in before.items():
            path.write_text(text)


def run_of(federation, name, words):
    """Run a job to its end."""
    with federation.session(LEAD) as session:
        job = session.submit_job(str(export(federation, name, words, sites=SITES)))
        status = ended(session, job)["status"]
    assert status == "FINISHED:COMPLETED", federation.running["site-1"].text()[-4000:]


def test_a_head_travels_encrypted_from_a_child_process_and_from_its_parent(federation):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    exchange = {"personal": "nothing", "encrypt": "head"}
    once = [{"name": "train", "rounds": 1}]
    words = {**WORDS, "phases": once, "grades": 5, "exchange": exchange, "quorum": 2}
    policy = {"kinds": ["encoder", "head"]}
    own = {site: {"policy": policy, "trainer": how} for site, how in zip(SITES, ("child", "inline"), strict=True)}
    with keys_at_all_ends(federation, "he-keys", own) as keys:
        run_of(federation, "sealed", words)  # a child imports torch for each of its three answers
    run = federation.storage / "runs" / "sealed" / "server"
    found = json.loads((run / "results.json").read_text())
    assert sorted(found["steps"][0]["weights"]) == list(SITES)
    mixed, _ = read_tensors(run / f"{found['chosen']}.safetensors")
    heads = {key: value for key, value in mixed.items() if key.startswith("head.")}
    assert heads
    opens = cipher_for(ExchangeSettings(**exchange), keys, private=True)
    for site in SITES:
        final, _ = read_tensors(federation.hospital(site) / "runs" / "sealed" / site / "final" / "model.safetensors")
        for key, value in heads.items():
            assert value.dtype == torch.uint8
            assert torch.equal(opens.open(key, value, tuple(final[key].shape), final[key].dtype), final[key])
        lines = Ledger(federation.hospital(site) / "runs" / "sealed" / site / "ledger.jsonl").lines()
        assert [line["tensors"].get("head", 0) for line in lines] == [len(heads), 0, 0]
        sealed = sum(value.numel() for value in heads.values())
        assert lines[0]["bytes"] == found["steps"][0]["bytes_up"][site] > sealed


def close(ours, clear):
    """Whether two tensors are the same but for what encryption costs."""
    return float((ours.double() - clear.double()).abs().max()) <= CKKS * float(clear.abs().max())


def figures(record, name=""):
    """A site's figures by their whole names; without digest, and without counts that `min_count` merges."""
    if name.startswith((".model_digest", ".scalars.bin_", ".scalars.confusion_")):
        return {}
    if not isinstance(record, dict | list):
        return {name: record}
    parts = record.items() if isinstance(record, dict) else enumerate(record)
    return {key: value for at, part in parts for key, value in figures(part, f"{name}.{at}").items()}


def test_heads_from_sums_are_encrypted_where_there_are_keys(federation):
    """And the sites' models and figures are those of the loop in the clear. Through FLARE: test_weights_file.py."""
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    grades = [f"grade-called-{grade}" for grade in range(5)]
    words = {**WORDS, **IN_FLOAT32, "row": "analytic", "quorum": 2, "classes": grades, "training": {"threads": 1}}
    words |= {"phases": [{"name": "sums", "sums": {"features": 32}}], "network": {"encoder": "few_blocks"}}
    experiment, data = Experiment.resolve(words), {}
    for site in SITES:
        site_file, cache = federation.hospital(site) / "site.yaml", federation.folder / "cache" / site
        found = read_site_settings({"fedretina": {"site_file": site_file}}, site, federation.folder)
        data[site] = load_site_data(site, found.data, experiment.images, experiment.seed, cache)
    policies = {site: {"kinds": ["sums"], "small_grades_when_encrypted": site == "site-1"} for site in SITES}
    own = {site: {"policy": policy} for site, policy in policies.items()}
    with keys_at_all_ends(federation, "keys-of-sums", own) as keys:
        run_of(federation, "by-keys", words)
    lines = Ledger(federation.hospital("site-1") / "runs" / "by-keys" / "site-1" / "ledger.jsonl").lines()
    # The grades of few patients are among the sums where the hospital says so.
    parts = {site: HeadsFromSums(experiment, data[site], small_grades=site == "site-1").sums()[0] for site in SITES}
    assert not torch.equal(parts["site-1"].counts, HeadsFromSums(experiment, data["site-1"]).sums()[0].counts)
    expected = packed(total(parts.items()))
    assert [line["tensors"] for line in lines] == [{"sums": len(expected)}, {}, {}]
    assert lines[0]["scalars"] == {}
    mixed, _ = read_tensors(federation.storage / "runs" / "by-keys" / "server" / "sums-0000.safetensors")
    opens = cipher_for(experiment.exchange, keys, private=True, sums=experiment.sums)
    for key, tensor in expected.items():
        assert mixed[key].dtype == torch.uint8
        assert close(opens.open(key, mixed[key], tuple(tensor.shape), tensor.dtype), tensor)
    # In the clear small grades are among them where min_count is 1.
    run_loop(experiment, {**data, "site-1": replace(data["site-1"], min_count=1)}, federation.folder / "clear", "r")
    for site in SITES:
        ours = federation.hospital(site) / "runs" / "by-keys" / site / "final"
        clear = federation.folder / "clear" / "r" / site / "final"
        told = [figures(read_json(folder / "figures.json")) for folder in (ours, clear)]
        assert told[0] == pytest.approx(told[1], abs=1e-5)  # they are rounded to six digits
        for path in clear.rglob("*.safetensors"):
            mine, theirs = (read_tensors(folder / path.relative_to(clear))[0] for folder in (ours, clear))
            assert mine.keys() == theirs.keys()
            assert all(close(mine[key], tensor) for key, tensor in theirs.items())
