"""A run that starts from a file of somebody else's: from its tensors to the card and to the model that answers."""

import hashlib
from dataclasses import replace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from fedretina.kit.site_check import _forward
from fedretina.loop import run_loop
from fedretina.networks import vision_transformer
from fedretina.networks.vision_transformer import RetFoundGreen
from fedretina.prediction.predictor import Predictor
from fedretina.storage import read_json

GREEN = {"img_size": 392, "patch_size": 14, "num_classes": 0, "reg_tokens": 4, "no_embed_class": True}
LITTLE = {"embed_dim": 48, "depth": 4, "num_heads": 3}


@pytest.fixture
def shallow(monkeypatch):
    whole = vision_transformer._tokens
    monkeypatch.setattr(
        vision_transformer, "_tokens", lambda traits, features, **sizes: whole(traits, features, **{**sizes, **LITTLE})
    )


@pytest.fixture
def green(tmp_path):
    """Settings of weights in RETFound-Green's form."""
    net = VisionTransformer(**GREEN, init_values=1e-5, **LITTLE)
    torch.save(net.state_dict(), tmp_path / "green.pth")
    return file_of(tmp_path / "green.pth")


def file_of(path):
    return {"source": "file", "file": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_a_run_starts_from_retfound_greens_form_and_its_model_answers(shallow, green, tiny, phantoms, tmp_path):
    experiment = tiny(
        row="fedee",
        network={
            "encoder": "retfound_green",
            "weights": green,
            "exits": {"width": 8},
        },
        images={"image_size": 56},
        phases=[{"name": "train", "rounds": 1}],
    )
    sites = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, sites, tmp_path, "green")
    final = tmp_path / "green" / "site-1" / "final"
    told = read_json(final / "card.json")["encoder"]
    assert (told["name"], told["sha256"], told["sets"]) == ("retfound_green", green["sha256"], ["ddr", "odir5k"])
    page = (final / "card.md").read_text()
    assert "was pre-trained on: DINOv2's images, then 75,000 fundus photographs" in page
    assert "Its positions, learned with images of 392 pixels, are resampled for 56." in page
    assert str(tmp_path) not in page
    seen = [_forward(replace(sites["site-1"], public_sets=sets), experiment).found for sets in ((), ("ddr",))]
    assert ["pre-trained on ddr" in one for one in seen] == [False, True]
    (tmp_path / "green.pth").unlink()  # the model stands on its own
    logits = Predictor.load(final, device="cpu").logits(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))
    assert logits.isfinite().all()


@pytest.mark.slow
def test_what_the_first_run_began_with_is_on_the_card_of_the_run_after_it(shallow, green, tiny, phantoms, tmp_path):
    """A published file, a run without labels, its exported encoder, a second such run, and a run with labels."""
    blind = {"row": "oct_moco_fedavg", "phases": [{"name": "pretrain", "rounds": 1, "training": {"batch_size": 8}}]}
    common = {"images": {"image_size": 56}, "phantom_images": 24}
    contrast = {"encoder": "retfound_green", "contrast": {"hidden": 16, "width": 8}}
    weights = green
    for run, end in (("first", "server"), ("second", "site-1/final")):
        experiment = tiny(**blind, **common, network={**contrast, "weights": weights})
        run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, run)
        folder = tmp_path / run / end
        assert read_json(folder / "encoder.json")["sets"] == ["ddr", "odir5k"]
        weights = file_of(folder / "encoder.safetensors")
    one = {"name": "train", "rounds": 1}
    then = tiny(row="fedavg", phases=[one], **common, network={"encoder": "retfound_green", "weights": weights})
    sites = {name: replace(one, public_sets=("ddr",)) for name, one in phantoms(then, "site-1").items()}
    run_loop(then, sites, tmp_path, "then")
    final = tmp_path / "then" / "site-1" / "final"
    card = read_json(final / "card.json")
    assert card["encoder"]["licence"] == RetFoundGreen.licence
    assert [sentence for sentence in card["limits"] if "public set ddr" in sentence]
    assert RetFoundGreen.licence in (final / "card.md").read_text()
    assert "pre-trained on ddr" in _forward(sites["site-1"], then).found
