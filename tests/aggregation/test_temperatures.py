"""Multi-domain temperature scaling: the server's sums against the regression over all images at once."""

import numpy as np
import pytest
import torch

from fedretina.aggregation.mixing import temperature_model
from fedretina.errors import RefusedError, TrainingError
from fedretina.local.trainer import feature_moments
from fedretina.networks.network import HIGH, LOW, Calibrator


def two_sites(images=40, features=5, apart=3.0):
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(images, features, generator=generator)
    other = torch.randn(images // 2, features, generator=generator) + apart
    return {"a": (one, 0.7), "b": (other, 2.5)}


def solved(sites, ridge):
    return temperature_model((feature_moments(x.split(7), t) for x, t in sites.values()), ridge)


def test_sums_give_what_ridge_regression_over_all_images_gives():
    sites, ridge = two_sites(), 0.3
    x = torch.cat([x for x, _ in sites.values()]).double().numpy()
    y = np.concatenate([np.full(len(x), t) for x, t in sites.values()])
    # Ridge as plain least squares with rows added, the bias left free.
    scale = np.sqrt(ridge * np.mean(np.sum(x**2, axis=0)))
    rows = np.vstack([np.hstack([x, np.ones((len(x), 1))]), np.hstack([scale * np.eye(5), np.zeros((5, 1))])])
    slow = np.linalg.lstsq(rows, np.concatenate([y, np.zeros(5)]), rcond=None)[0]
    model = solved(sites, ridge)
    np.testing.assert_allclose([*model["weight"], model["bias"]], slow, rtol=1e-5)


def test_sites_that_features_tell_apart_get_their_own_temperature_and_a_wall_of_ridge_the_mean():
    sites = two_sites(images=400, apart=30.0)
    calibrator = Calibrator(5)
    calibrator.load_state_dict(solved(sites, 1e-9))
    for x, temperature in sites.values():
        assert calibrator(x).mean() == pytest.approx(temperature, abs=0.1)
    walled = solved(sites, 1e6)
    mean = sum(len(x) * t for x, t in sites.values()) / sum(len(x) for x, _ in sites.values())
    assert walled["weight"].abs().max() < 1e-4
    assert float(walled["bias"]) == pytest.approx(mean, rel=1e-3)


def test_features_without_spread_are_solved_too():
    dead = {"a": (torch.zeros(30, 4), 1.7)}
    model = solved(dead, 1.0)
    assert model["weight"].abs().max() == 0
    assert float(model["bias"]) == pytest.approx(1.7)


def test_no_image_is_a_sentence():
    with pytest.raises(TrainingError, match="at least one"):
        feature_moments([], 1.0)
    with pytest.raises(RefusedError, match="no site"):
        temperature_model([], 1.0)


def test_an_unsolved_calibrator_changes_no_bit_and_a_wild_one_stays_in_bounds():
    logits, features = torch.randn(9, 3), torch.randn(9, 5)
    calibrator = Calibrator(5)
    assert torch.equal(logits / calibrator(features), logits)
    assert not list(calibrator.parameters())
    calibrator.load_state_dict({"weight": torch.full((5,), 1e9), "bias": torch.tensor(0.0)})
    found = calibrator(features)
    assert found.shape == (9, 1)
    assert set(found.flatten().tolist()) <= {np.float32(LOW).item(), HIGH}
