"""The gate of heads from sums: how far an image lies from the site's own, and what becomes of it in a run."""

import shutil

import numpy as np
import pytest
import torch

from fedretina.analytic import distance
from fedretina.analytic.distance import DIRECTIONS, SHRINK, limit_of
from fedretina.errors import DataError, SettingsError
from fedretina.evaluation.verdict import OWN
from fedretina.local.features import FrozenEncoder
from fedretina.local.site import Site
from fedretina.local.verdict import own_model
from fedretina.loop import run_loop
from fedretina.prediction.predictor import Predictor
from fedretina.settings.evaluation import SoftmaxGatedSettings
from fedretina.settings.scheme import preset
from fedretina.storage import read_json, read_tensors
from fedretina.testing import check_estimator
from fedretina.uncertainty.estimators import build_estimator
from fedretina.uncertainty.referral import refer, referral_threshold


def drawn(images, features=12, seed=0):
    return 3 + torch.randn(images, features, generator=torch.Generator().manual_seed(seed))


def gate_layer(train, validation, within=0.95):
    return distance.gate_layer(train, validation, within)


def ratio(layer, features):
    return torch.nn.functional.linear(features, layer.weight, layer.bias).square().sum(1)


@pytest.mark.parametrize("images", [200, 7], ids=["n-above-d", "n-below-d"])
def test_the_layer_gives_the_mahalanobis_distance_over_the_limit(images):
    train, val, new = drawn(images), drawn(60, seed=1), drawn(9, seed=2) * 2
    seen = train.double().numpy()
    covariance = np.cov(seen, rowvar=False)
    covariance = (1 - SHRINK) * covariance + SHRINK * np.trace(covariance) / 12 * np.eye(12)

    def slow(part):
        apart = part.double().numpy() - seen.mean(0)
        return np.einsum("nd,de,ne->n", apart, np.linalg.inv(covariance), apart)

    layer = gate_layer(train, val)
    limit = np.sort(slow(val))[57]  # ceil(.95 x 61) = 58
    assert ratio(layer, new).numpy() == pytest.approx(slow(new) / limit, rel=2e-3)
    assert int((ratio(layer, val) > 1).sum()) == 2  # the image that set the limit is not beyond it, in float32 either
    assert layer.measures
    assert float(ratio(layer, new + 30).min()) > 1


@pytest.mark.parametrize(
    ("images", "within", "rank"), [(100, 0.98, 99), (49, 0.98, 49), (10, 0.98, 10), (10, 0.5, 6), (1, 0.98, 1)]
)
def test_the_limit_is_an_order_statistic_and_of_few_images_the_largest(images, within, rank):
    distances = torch.arange(1, images + 1, dtype=torch.float64).flip(0)
    assert limit_of(distances, within) == rank


def test_of_images_like_those_of_validation_so_many_lie_within():
    """Means over many sites: 95 of 100 with 99 validation images, m of m + 1 with fewer."""
    for images, expected in ((99, 0.95), (9, 0.9)):
        shares = []
        for seed in range(60):
            layer = gate_layer(drawn(40, seed=3 * seed), drawn(images, seed=3 * seed + 1))
            shares.append(float((ratio(layer, drawn(200, seed=3 * seed + 2)) <= 1).double().mean()))
        assert np.mean(shares) == pytest.approx(expected, abs=0.02)


def test_what_tells_nothing_stops_nothing():
    train, val = drawn(30), drawn(10, seed=1)
    for seen, shown in ((train[:1], val), (train[:1].expand(30, -1), val), (train, val[:0]), (train[:0], val)):
        layer = gate_layer(seen, shown)
        assert not layer.measures
        assert float(ratio(layer, 1e3 * val).max()) == 0
    with pytest.raises(DataError, match="not finite"):
        gate_layer(torch.cat([train, torch.full((1, 12), torch.nan)]), val)


def test_features_that_never_vary_do_not_hide_a_stranger():
    train, val = drawn(30), drawn(15, seed=1)
    train[:, 4:], val[:, 4:] = 0, 0
    layer = gate_layer(train, val)
    strange = val.clone()
    strange[:, 7] = 20
    assert float(ratio(layer, val).max()) <= 1 < float(ratio(layer, strange).min())


def test_wide_features_are_projected():
    train, val = drawn(40, 500), drawn(15, 500, seed=1)
    layer = gate_layer(train, val)
    assert layer.weight.shape == (DIRECTIONS, 500)
    assert float(ratio(layer, val).max()) <= 1 < float(ratio(layer, val + 2).min())


def test_u_is_what_the_likeliest_grade_lacks_and_1_beyond_the_gate():
    logits = torch.tensor([[2.0, 0.0, 0.0]] * 6)
    far = torch.tensor([0.0, 1.0, 1.001, 1e30, torch.inf, torch.nan])
    asked = build_estimator("softmax_gated")
    answer = asked.predict(torch.stack([far[:, None].expand(-1, 3), logits], 1))
    p = np.exp(2) / (np.exp(2) + 2)
    assert answer.probabilities[:, 0] == pytest.approx(p)
    assert answer.uncertainty == pytest.approx([1 - p, 1 - p, 1, 1, 1, 1])
    assert asked.predict(logits).uncertainty == pytest.approx([1 - p] * 6)  # a head without a gate


@pytest.mark.parametrize("wrong", [0, 2, 20], ids=["no-errors", "few-errors", "measured"])
def test_no_threshold_lets_through_what_is_beyond_the_gate(wrong):
    """Also not where the only wrong answers of validation, or its largest u, are themselves beyond it."""
    u = np.concatenate([np.linspace(0.05, 0.6, 38), [1.0, 1.0]])
    errors = np.zeros(40)
    errors[40 - wrong :] = 1
    threshold = referral_threshold(u, errors).value
    assert refer(0, 1.0, threshold, preset("icdr5")).reasons == ("doubtful",)


@pytest.fixture
def analytic(tiny):
    def make(**words):
        return tiny(row="analytic", phantom_images=60, **words)

    return make


@pytest.mark.attack(
    "an accident",
    "give a model of heads from sums a picture of another kind than its site's",
    "it is doubtful and goes to a doctor, however sure its grade and whatever the threshold",
)
def test_report_card_predict_and_referral_follow_the_gate(analytic, phantoms, tmp_path):
    experiment = analytic()
    data = phantoms(experiment, "site-1", "site-2")
    run_loop(experiment, data, tmp_path, "r")
    stored, _ = read_tensors(tmp_path / "r" / "server" / "sums-0000.safetensors")
    assert {key.partition(":")[0] for key in stored} == {"sums"}  # of the gate nothing travels
    site = data["site-1"]
    folder = next(
        path for path in (tmp_path / "r/site-1/final/federated", tmp_path / "r/site-1/final") if path.exists()
    )
    train, val, test = (FrozenEncoder(experiment, site).features(site.split(name)) for name in ("train", "val", "test"))
    layer, model = gate_layer(train, val), read_tensors(folder / "model.safetensors")[0]
    assert torch.equal(model["gate.weight"], layer.weight)
    assert torch.equal(model["gate.bias"], layer.bias)
    # The stored model, elsewhere, answers as it was tested.
    shutil.copytree(folder, tmp_path / "elsewhere")
    moved = Predictor.load(tmp_path / "elsewhere")
    images = site.split("test").images
    with torch.inference_mode():
        logits = moved.net(images.float() / 255)  # with what the run rounds
    answer = build_estimator("softmax_gated").predict(logits)
    beyond = (ratio(layer, test) > 1).numpy()
    assert np.array_equal(answer.uncertainty == 1, beyond)
    assert answer.uncertainty[~beyond] == pytest.approx(1 - answer.probabilities[~beyond].max(1))
    parts = Site(experiment, site, tmp_path / "other").trainer
    assert torch.equal(parts.answers({}, model, site.split("test")).logits, logits)
    torch.testing.assert_close(moved.logits(images), logits, rtol=1e-2, atol=1e-2)
    # What the clinician reads.
    card, report = read_json(folder / "card.json"), read_json(folder / "report.json")
    told = {"images": len(val), "beyond": int((ratio(layer, val) > 1).sum())}
    assert card["gate"] == {
        "measures": True,
        "validation": told,
        "test": {"images": len(test), "beyond": int(beyond.sum())},
    }
    page = (folder / "card.md").read_text()
    assert f"Of the site's own, {told['beyond']} of {len(val)} validation images and {int(beyond.sum())} of" in page
    assert any("unlike those that this site trained on" in line for line in report["card_limits"])
    assert report["estimator"] == "softmax_gated"
    # A picture of another kind is doubtful, however sure its grade.
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, images[:4].shape, dtype=np.uint8))
    strange = build_estimator("softmax_gated").predict(moved.logits(noise)).uncertainty
    assert strange.tolist() == [1.0] * 4
    assert "doubtful" in refer(0, float(strange[0]), moved.threshold, moved.scheme).reasons


def test_the_own_head_beside_it_doubts_in_the_same_way(analytic, phantoms):
    experiment = analytic()
    site = phantoms(experiment, "site-1")["site-1"]
    splits = {name: site.split(name) for name in ("val", "test")}
    own = own_model(experiment, site, splits)
    assert own.name == OWN
    assert own.experiment.evaluation == experiment.evaluation
    layer = gate_layer(*(FrozenEncoder(experiment, site).features(site.split(name)) for name in ("train", "val")))
    assert torch.equal(own.model["gate.weight"], layer.weight)
    for name, split in splits.items():
        far = ratio(layer, FrozenEncoder(experiment, site).features(split))
        torch.testing.assert_close(own.answers[name].logits[:, 0, 0], far)  # no temperature divides it
    plain = own_model(analytic(evaluation={"estimator": "softmax"}), site, splits)
    assert torch.equal(plain.model["head.0.weight"], own.model["head.0.weight"])
    assert "gate.weight" not in plain.model


def test_the_entropy_of_the_softmax_can_still_be_asked_for(analytic, phantoms, tmp_path):
    experiment = analytic(evaluation={"estimator": "softmax"})
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "r")
    card = read_json(tmp_path / "r" / "site-1" / "final" / "card.json")
    assert card["estimator"] == "softmax"
    assert "gate" not in card
    assert any("may be sure of one of another kind" in line for line in card["limits"])


def test_images_that_tell_nothing_are_said_to_tell_nothing(analytic, phantoms, tmp_path, monkeypatch):
    """Features that are all the same: the run ends, and the card promises no gate."""
    same = FrozenEncoder.features
    monkeypatch.setattr(FrozenEncoder, "features", lambda self, split: torch.ones_like(same(self, split)))
    experiment = analytic(verdict="off")
    run_loop(experiment, phantoms(experiment, "site-1", "site-2"), tmp_path, "r")
    final = tmp_path / "r" / "site-1" / "final"
    assert not read_json(final / "card.json")["gate"]["measures"]
    assert "so none counts as strange" in (final / "card.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"row": "fedbn", "evaluation": {"estimator": "softmax_gated"}}, "an encoder that stands still from the start"),
        (
            {
                "row": "singleset",
                "network": {"frozen": "all", "frozen_cache": "lenient"},
                "evaluation": {"estimator": "softmax_gated"},
            },
            "choose row 'analytic'",
        ),
        ({"row": "analytic", "evaluation": {"estimator": "softmax_gated", "passes": 2}}, "evaluation.passes to 1"),
        ({"row": "analytic", "evaluation": {"estimator": "softmax_gated", "within": 1}}, "within"),
        ({"row": "analytic", "evaluation": {"estimator": "softmax_mean"}}, "'softmax_gated' or 'softmax'"),
    ],
)
def test_a_gate_without_what_it_stands_on_is_refused(words, said, tiny):
    with pytest.raises(SettingsError, match=said):
        tiny(**words)


def test_the_estimator_holds_to_what_every_one_must(little_encoder, tmp_path):
    check_estimator(SoftmaxGatedSettings(), tmp_path)
