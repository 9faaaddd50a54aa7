"""A ridge head as a linear layer: the scores of the regression it comes from, and honest ones of images left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedretina.analytic.layer import ridge_layer


def drawn(count=40, features=7, grades=3):
    rng = np.random.default_rng(1)
    labels = np.arange(count) % grades
    wide = rng.normal(size=(count, features)) * np.arange(1, features + 1) + 3 * labels[:, None]
    wide[:, 0] = 5.0  # says nothing
    return wide, labels


def slowly(wide, labels, strength, grades=3):
    """scikit-learn's ridge on centred features of mean variance 1; the intercept is penalised as the constant is."""
    scale = np.sqrt(wide.var(0).mean())
    shares = np.eye(grades)[labels]
    prior = shares.mean(0)

    def design(x):
        return np.concatenate([(x - wide.mean(0)) / scale, np.ones((len(x), 1))], axis=1)

    found = Ridge(alpha=strength, fit_intercept=False).fit(design(wide), shares - prior)
    return lambda x: found.predict(design(x)) + prior


def test_scores_are_those_of_a_ridge_on_centred_and_scaled_features():
    wide, labels = drawn()
    layer = ridge_layer(torch.from_numpy(wide), torch.from_numpy(labels), 3)
    new = np.random.default_rng(2).normal(size=(5, 7)) * 4
    new[:, 0] = 5.0
    found = torch.from_numpy(new) @ layer.weight.T + layer.bias
    np.testing.assert_allclose(found.numpy(), slowly(wide, labels, layer.strength)(new), atol=1e-9)
    assert not layer.weight[:, 0].any()


@pytest.mark.parametrize("count", [40, 6])  # more images than features, and fewer
def test_scores_left_out_are_of_a_head_that_has_not_seen_the_image(count):
    wide, labels = drawn(count)
    layer = ridge_layer(torch.from_numpy(wide), torch.from_numpy(labels), 3)
    # The scale is that of all images; centre and shares are those of the others.
    scale, shares = np.sqrt(wide.var(0).mean()), np.eye(3)[labels]
    for left in range(count):
        rest = np.arange(count) != left
        centre, prior = wide[rest].mean(0), shares[rest].mean(0)
        one = Ridge(alpha=layer.strength, fit_intercept=False).fit((wide[rest] - centre) / scale, shares[rest] - prior)
        slow = one.predict((wide[left : left + 1] - centre) / scale)[0] + prior
        np.testing.assert_allclose(layer.left_out[left].numpy(), slow, atol=1e-7)
