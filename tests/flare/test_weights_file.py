"""`jobs/analytic` from a file of weights of which each end has its own copy: the real simulator against the loop.

Sums in the clear, and no other phase; after pre-training: test_covering_rows.py, encrypted: tests/provisioned. An end
with another file or none: test_site_host.py, test_controller_stops.py.
"""

import json
import shutil

import pytest
import torch
import yaml
from simulation import REPOSITORY, SMALL, Simulation, results, run_oracle, write_job

from fedretina.exchange.ledger import Ledger
from fedretina.networks.build import build_network
from fedretina.networks.encoder_file import export_encoder
from fedretina.networks.weights import read_weights
from fedretina.settings.network import NetworkSettings
from fedretina.settings.plan import merged
from fedretina.settings.site import PROPERTY, SERVER_PROPERTY
from fedretina.storage import read_json, read_tensors

pytestmark = pytest.mark.flare
SITES = ("site-2", "site-3")  # of four grades and of six; the sixth stands for no class
SMALLER = {
    **{name: SMALL[name] for name in ("images", "report")},
    "network": {"encoder": "few_blocks"},
    "training": {"threads": 1},
    "phantom_images": 60,
}


def tell_each_end(workspace, file):
    """Give each end a copy of its own, by another name, and say so in its own settings, as in a startup kit."""
    for end in ("server", *SITES):
        own = workspace.parent / end
        own.mkdir(parents=True)
        shutil.copy(file, own / f"of-{end}.safetensors")
        words = {"weights_file": f"of-{end}.safetensors", "policy": {"kinds": ["sums"]}}
        (own / "site.yaml").write_text(yaml.safe_dump(words))
    server = {"weights_file": str(workspace.parent / "server" / "of-server.safetensors")}
    properties = {
        PROPERTY: {"site_file": str(workspace.parent / "{SITE_NAME}" / "site.yaml")},
        SERVER_PROPERTY: server,
    }
    scopes = {"scopes": [{"name": "eyes", "properties": properties}], "default_scope": "eyes"}
    (workspace / "local").mkdir(parents=True)
    (workspace / "local" / "privacy.json").write_text(json.dumps(scopes))


def models(folder):
    """All models that a site was left with, tensor by tensor."""
    found = {path.relative_to(folder): read_tensors(path)[0] for path in folder.rglob("*.safetensors")}
    return {(path, key): tensor for path, tensors in found.items() for key, tensor in tensors.items()}


def test_heads_from_sums_on_an_encoder_that_each_end_names_are_the_loops_to_the_bit(tmp_path):
    drawn = build_network(NetworkSettings(encoder="few_blocks"), 2, 7).state_dict()  # the run's seed is another
    file = tmp_path / "oracle.safetensors"
    digest = export_encoder(file, "few_blocks", drawn, "half", "drawn for a test")
    job = REPOSITORY / "jobs" / "analytic" / "app" / "config" / "experiment.yaml"
    words = merged(yaml.safe_load(job.read_text()), SMALLER)
    words["network"]["weights"] = {"source": "file", "sha256": digest}
    expected = run_oracle(tmp_path / "loop", words, SITES, weights=file)
    file = file.rename(tmp_path / "moved.safetensors")  # nothing names it any more
    tell_each_end(tmp_path / "sim" / "workspace", file)
    job = write_job(tmp_path / "job", words, SITES, base="analytic")
    own = {"FEDRETINA_RUN": "again", "FEDRETINA_STATE_ROOT": str(tmp_path)}
    simulation = Simulation(job, tmp_path / "sim", len(SITES), **own)
    assert simulation.wait() == 0, simulation.text()[-3000:]
    assert results(tmp_path, "again") == expected
    assert set(expected["sites"]) == set(SITES)
    start = {f"encoder.{key}": tensor for key, tensor in read_weights(file, digest).state.items()}
    for site in SITES:
        ours, loops = (root / site / "final" for root in (tmp_path / "again", tmp_path / "loop" / "oracle"))
        assert (ours / "figures.json").read_text() == (loops / "figures.json").read_text()
        assert "own" in read_json(ours / "figures.json")["verdict"]["test"]["models"]
        mine, theirs = models(ours), models(loops)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())
        model, _ = read_tensors(ours / "model.safetensors")
        assert all(torch.equal(model[key], tensor) for key, tensor in start.items())
        lines = Ledger(tmp_path / "again" / site / "ledger.jsonl").lines()
        assert [(line["phase"], set(line["tensors"])) for line in lines] == [
            ("sums", {"sums"}),
            *[("validate", set()), ("finalise", set())],
        ]
    stored = "".join(path.read_text() for path in (tmp_path / "again" / "server").glob("*.json"))
    assert digest in stored
    assert "of-" not in stored
