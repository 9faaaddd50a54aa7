"""Features of the frozen encoder: those of the run's own start, equal to the bit whatever stands beside an image."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import pytest
import torch

from fedretina.data.site_data import Split
from fedretina.local import features as features_module
from fedretina.local.features import FrozenEncoder, FrozenOutputs
from fedretina.local.trainer import LocalTrainer


def part(split: Split, rows: list[int]) -> Split:
    patients, files = (tuple(names[row] for row in rows) for names in (split.patients, split.files))
    return Split(split.images[rows], split.labels[rows], patients, files)


@pytest.fixture
def case(tiny, phantoms):
    experiment = tiny(network={"projector": 8}, phantom_images=40)
    return experiment, next(iter(phantoms(experiment).values()))


def test_features_are_those_of_the_start_of_the_run(case):
    experiment, data = case
    split = data.split("val")
    trainer = LocalTrainer(experiment, data)
    net = trainer.model.net.eval()
    with torch.inference_mode():
        slow = torch.cat([net.encoder(net.normalised(image[None].float() / 255)) for image in split.images])
    found = FrozenEncoder(experiment, data).features(split)
    assert found.dtype == torch.float32
    assert found.shape == (len(split.images), net.encoder.features)
    torch.testing.assert_close(found, slow, rtol=1e-3, atol=1e-5)


def test_an_image_has_the_same_bits_in_any_split(case):
    experiment, data = case
    unkept = replace(data, features=None)
    encoder, split = FrozenEncoder(experiment, unkept), data.split("train")
    whole = encoder.features(split)
    rows = [*range(5, 9), len(split.images) - 1, 0]
    assert torch.equal(encoder.features(part(split, rows)), whole[rows])
    assert torch.equal(FrozenEncoder(experiment, unkept).features(split), whole)
    assert encoder.features(part(split, [])).shape == (0, whole.shape[1])


def test_features_are_computed_once_and_read_with_the_same_bits(case, tmp_path, monkeypatch):
    experiment, data = case
    here = replace(data, features=data.features._replace(folder=tmp_path))
    split = data.split("train")
    first = FrozenEncoder(experiment, here).features(split)
    assert torch.equal(first, FrozenEncoder(experiment, replace(data, features=None)).features(split))

    def computed(*_):
        raise AssertionError("features that are kept were computed anew")

    monkeypatch.setattr(FrozenOutputs, "compute", computed)
    assert torch.equal(FrozenEncoder(experiment, here).features(split), first)
    other = experiment.model_copy(update={"seed": experiment.seed + 1})  # other weights
    with pytest.raises(AssertionError, match="computed anew"):
        FrozenEncoder(other, here).features(split)
    plain = metadata.version
    for where, name, value in (
        (metadata, "version", lambda package: "0.0.1" if package == "timm" else plain(package)),
        (features_module, "__version__", "0.0.1"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(where, name, value)
            with pytest.raises(AssertionError, match="computed anew"):
                FrozenEncoder(experiment, here).features(split)


def test_how_a_card_chooses_its_kernels_is_told_from_another_choice_and_a_processor_has_none(case, monkeypatch):
    experiment, data = case
    net = LocalTrainer(experiment, data).model.net
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    frozen = FrozenOutputs(net, experiment, replace(data, features=None))

    def keys(device):
        for kernels in ("repeatable", "fastest"):
            frozen._training = experiment.training.model_copy(update={"kernels": kernels})
            yield frozen._key(experiment, torch.device(device))

    assert {key["kernels"] for key in keys("cuda")} == {"repeatable", "fastest"}
    assert all("kernels" not in key for key in keys("cpu"))
