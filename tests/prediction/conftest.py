"""A hospital of PNG files with a model that was trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import pytest

from fedretina.data.manifest import RawRow, write_manifest
from fedretina.data.site_data import load_site_data
from fedretina.exchange.payload import tensors_digest
from fedretina.local.gate import site_gate
from fedretina.local.verdict import Contestant
from fedretina.settings.experiment import Experiment
from fedretina.settings.site import SiteDataSettings
from fedretina.storage import read_json, read_tensors, write_json, write_tensors
from final_model import write_final


class Hospital(NamedTuple):
    experiment: Experiment
    images: Path
    files: tuple[str, ...]  # of the test split, in its order
    final: Path
    trainer: object
    shared: dict
    personal: dict
    data: object


@pytest.fixture(scope="session")
def hospital(tmp_path_factory) -> Hospital:
    """Trained once; tests must not change its files."""
    root = tmp_path_factory.mktemp("hospital")
    experiment = Experiment.resolve(
        {
            "row": "feduaa",
            "seed": 3,
            "images": {"image_size": 32},
            "network": {"encoder": "resnet18", "head": {"width": 16}},
            "training": {"batch_size": 8, "learning_rate": 0.05, "threads": 1, "device": "cpu"},
        }
    )
    phantom = load_site_data("site-3", SiteDataSettings(phantom_images=48), experiment.images, 3, root / "none")
    raw = {name: label for label, name in phantom.scheme.labels.items()}
    rows = []
    for split in ("train", "val", "test"):
        drawn = phantom.split(split)
        for at, (image, label) in enumerate(zip(drawn.images, drawn.labels, strict=True)):
            file = f"{split}/{at:03d}.png"
            (root / "images" / split).mkdir(parents=True, exist_ok=True)
            large = cv2.resize(image.permute(1, 2, 0).numpy(), (61, 53))  # to be cropped and shrunk again
            cv2.imwrite(str(root / "images" / file), large[..., ::-1])
            rows.append(RawRow(file, raw[phantom.scheme.grades[int(label)]], drawn.patients[at], split))
    write_manifest(root / "manifest.csv", rows)
    settings = SiteDataSettings(manifest=root / "manifest.csv", images=root / "images", scheme=phantom.scheme)
    data = load_site_data("site-3", settings, experiment.images, 3, root / "cache")
    trainer, shared, personal = write_final(root / "final", experiment, data, rounds=2)
    files = data.split("test").files
    return Hospital(experiment, root / "images", files, root / "final", trainer, shared, personal, data)


@pytest.fixture(scope="session")
def gated(hospital, tmp_path_factory) -> Path:
    """The same model with the gate that a run's end makes; tests must not change its files."""
    folder = tmp_path_factory.mktemp("gated")
    splits = {name: hospital.data.split(name) for name in ("val", "test")}
    given = (hospital.experiment, hospital.trainer, hospital.shared, hospital.personal)
    model = Contestant.of("federated", *given, splits)
    found = site_gate(model, tensors_digest(model.model), hospital.data, splits)
    tensors, _ = read_tensors(hospital.final / "model.safetensors")
    card = read_json(hospital.final / "card.json")
    card |= {"look": {"gate": dict(found.gate.record), "own": found.own, "patients": found.patients, "spoiled": {}}}
    write_tensors(folder / "model.safetensors", tensors, {"card": card})
    write_json(folder / "card.json", card)
    found.gate.write(folder)
    return folder
