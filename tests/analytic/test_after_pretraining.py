"""One run that pre-trains an encoder without labels, lets it stand still, and ends with heads from sums on it."""

import pytest
import torch

from fedretina.errors import SettingsError
from fedretina.exchange.partition import SUMS, partition_of
from fedretina.local.taken_head import take_head, write_head
from fedretina.loop import run_loop
from fedretina.networks.build import build_on_meta
from fedretina.settings.experiment import Experiment
from fedretina.settings.plan import merged
from fedretina.settings.site import SiteDataSettings, SiteSettings
from fedretina.storage import read_json, read_tensors

SITES = ("site-1", "site-2")
HEADS = {"name": "sums", "sums": {"features": 12}}
COMMON = {
    "seed": 3,
    "training": {"threads": 1},
    "phantom_images": 40,
    "report": {"draws": 10, "page": False},
}
IMAGES = {"modality": "oct", "image_size": 32}


class StoppedError(Exception):
    """Stands for whatever ends a process."""


def joined(**words):
    """Two rounds without labels, of which the first stage has no part, then sums."""
    blind = {"name": "pretrain", "rounds": 2, "training": {"epochs": 1, "batch_size": 8, "threads": 1}}
    network = {"encoder": "efficientnet_lite0", "contrast": {"hidden": 16, "width": 8}, "frozen": 1}
    base = {"row": "oct_moco_sums", "phases": [blind, HEADS], "images": IMAGES, "network": network, **COMMON}
    return Experiment.resolve(merged(base, words))


def stopped_before(order):
    def tell(done, of):
        if done == order:
            raise StoppedError

    return tell


def kept(root, site):
    """The run's own model, whichever the verdict keeps."""
    final = root / site / "final"
    path = final / "federated" if (final / "federated").exists() else final
    return {
        key: value for key, value in read_tensors(path / "model.safetensors")[0].items() if "num_batches" not in key
    }


@pytest.mark.slow
def test_heads_stand_on_the_encoder_that_the_sites_pretrained(little_encoder, phantoms, tmp_path):
    """Against two runs: one that pre-trains alone, and row `analytic` from the file that it leaves."""
    one = joined()
    data = phantoms(one, *SITES)
    for order in (1, 3, 5, 7, 9):  # between the sites of every step
        with pytest.raises(StoppedError):
            run_loop(one, data, tmp_path, "one", tell=stopped_before(order))
    found = run_loop(one, data, tmp_path, "one")
    assert [step["task"] for step in found["steps"]] == ["pretrain", "pretrain", "sums", "validate"]
    total, _ = read_tensors(tmp_path / "one" / "server" / "sums-0000.safetensors")
    assert {key.partition("." if key.startswith("encoder") else ":")[0] for key in total} == {"encoder", SUMS[:-1]}
    card = read_json(tmp_path / "one" / "site-1" / "final" / "card.json")
    assert card["site"] == "site-1"

    words = one.model_dump(mode="json")
    blind = Experiment.model_validate(
        {**words, "phases": words["phases"][:1], "classes": None, "evaluation": "softmax"}
    )
    run_loop(blind, data, tmp_path, "blind")
    file = tmp_path / "blind" / "server" / "encoder.safetensors"
    weights = {"source": "file", "sha256": read_json(file.with_suffix(".json"))["sha256"]}
    network = {"encoder": "efficientnet_lite0", "weights": weights}
    then = {"row": "analytic", "phases": [HEADS], "images": IMAGES, "network": network, **COMMON}
    two = Experiment.resolve({**then, "classes": list(one.classes)}).with_weights_file(file)
    run_loop(two, data, tmp_path, "two")
    for site in SITES:
        ours, theirs = kept(tmp_path / "one", site), kept(tmp_path / "two", site)
        assert {key for key in ours if not torch.equal(ours[key], theirs[key])} == set()
        assert set(ours) == set(theirs)
        start = Experiment.resolve(
            {**then, "classes": list(one.classes)} | {"network": {"encoder": "efficientnet_lite0"}}
        )
        begun = build_start(start)
        moved = {key.split(".")[2] for key in begun if not torch.equal(begun[key], ours[key])}
        assert "0" not in moved
        assert moved

    # A site that comes later takes encoder and total from one file.
    write_head(tmp_path / "one" / "server", tmp_path / "head.safetensors")
    own = SiteSettings(data=SiteDataSettings(phantom_images=40))
    taken = take_head(tmp_path / "head.safetensors", "later", own, tmp_path / "later")
    assert taken["chosen"] == "sums-0000"
    later = kept(tmp_path, "later")
    assert all(torch.equal(later[key], ours[key]) for key in later if key.startswith("encoder."))


def build_start(experiment):
    from fedretina.networks.build import build_network

    state = build_network(experiment.network, 2, experiment.seed).state_dict()
    return {key: value for key, value in state.items() if key.startswith("encoder.") and "num_batches" not in key}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"exchange": {"batchnorm": "local_all"}}, "only on one encoder"),
        ({"exchange": {"personal": "everything"}, "correction": "none"}, "only on one encoder"),
        ({"network": {"frozen": "all"}}, "trains the encoder"),
        ({"phases": [HEADS, {"name": "pretrain"}]}, "pre-train first"),
        ({"phases": [{"name": "pretrain"}, HEADS, {"name": "train"}]}, "only one with labels"),
        ({"tune": {"epochs": 1}}, "trains nothing with labels"),
    ],
)
def test_sums_behind_a_phase_without_labels_need_one_encoder(words, told):
    with pytest.raises(SettingsError, match=told):
        joined(**words)


def test_a_bias_of_its_own_is_all_that_a_site_keeps_of_a_head_that_travels():
    settings = {"row": "oct_fedavg", "exchange": {"personal": "bias"}}
    for network, biases in (
        ({}, {"head.0.bias"}),
        ({"exits": {"after": [1, 2], "width": 8}}, {"head.0.bias", "exits.0.2.bias", "exits.1.2.bias"}),
    ):
        found = Experiment.resolve(
            {**settings, "network": network, "evaluation": "softmax_mean" if network else "softmax"}
        )
        parts = partition_of(found, build_on_meta(found.network, found.head_width))
        assert {key for key in parts.personal if "num_batches" not in key} == biases
        assert "head.0.weight" in parts.shared
