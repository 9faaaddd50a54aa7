"""A run that starts from a file of somebody else's: from its tensors to the card and to the model that answers."""

import hashlib

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from fedretina.loop import run_loop
from fedretina.networks import vision_transformer
from fedretina.prediction.predictor import Predictor
from fedretina.storage import read_json

LITTLE = {"embed_dim": 48, "depth": 4, "num_heads": 3}


@pytest.fixture
def shallow(monkeypatch):
    whole = vision_transformer._tokens
    monkeypatch.setattr(
        vision_transformer, "_tokens", lambda traits, features, **sizes: whole(traits, features, **{**sizes, **LITTLE})
    )


def test_a_run_starts_from_retfound_greens_form_and_its_model_answers(shallow, tiny, phantoms, tmp_path):
    net = VisionTransformer(
        img_size=392, patch_size=14, num_classes=0, reg_tokens=4, no_embed_class=True, init_values=1e-5, **LITTLE
    )
    file = tmp_path / "green.pth"
    torch.save(net.state_dict(), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    experiment = tiny(
        row="fedee",
        network={
            "encoder": "retfound_green",
            "weights": {"source": "file", "file": str(file), "sha256": digest},
            "exits": {"width": 8},
        },
        images={"image_size": 56},
        phases=[{"name": "train", "rounds": 1}],
    )
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "green")
    final = tmp_path / "green" / "site-1" / "final"
    told = read_json(final / "card.json")["encoder"]
    assert (told["name"], told["sha256"], told["sets"]) == ("retfound_green", digest, ["ddr", "odir5k"])
    page = (final / "card.md").read_text()
    assert "was pre-trained on: DINOv2's images, then 75,000 fundus photographs" in page
    assert "Its positions, learned with images of 392 pixels, are resampled for 56." in page
    assert str(tmp_path) not in page
    file.unlink()  # the model stands on its own
    logits = Predictor.load(final, device="cpu").logits(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))
    assert logits.isfinite().all()
