"""Noise and its budget, against closed forms and an exact account of the Gaussian mechanism."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.stats import norm

from fedretina.errors import StateError
from fedretina.exchange.noise import Spent, cost, gaussian, noise_key, noise_source, spent
from fedretina.settings.policy import GaussianNoise, SvtNoise

NOISE = GaussianNoise(kind="gaussian", clip=2.0, multiplier=0.5)
SVT = SvtNoise(kind="svt", epsilon=0.5, epsilon_release=0.25, clip=1e-3)


def update(size=20_000, scale=1.0):
    numbers = torch.linspace(-1, 1, size) * scale
    return {"a": numbers[: size // 2].reshape(2, -1), "b": numbers[size // 2 :]}


def joined(tensors):
    return torch.cat([tensors[key].double().reshape(-1) for key in sorted(tensors)])


@pytest.mark.parametrize("multiplier", [0.1, 0.7, 3.0, 40.0])
def test_rho_is_the_renyi_divergence_of_the_two_farthest_updates(multiplier):
    noise = NOISE.model_copy(update={"multiplier": multiplier})
    shift, deviation = 2 * noise.clip, multiplier * noise.clip
    # By quadrature: D_alpha(N(0, s) || N(shift, s)) = rho alpha, at alpha 2.
    x = np.linspace(-12 * deviation - shift, 12 * deviation + shift, 400_001)
    density = np.exp(2 * norm.logpdf(x, 0, deviation) - norm.logpdf(x, shift, deviation) - shift**2 / deviation**2)
    divergence = math.log(np.trapezoid(density, x)) + shift**2 / deviation**2
    assert divergence == pytest.approx(2 * cost(noise).rho, rel=1e-6)


@pytest.mark.parametrize(("multiplier", "releases", "delta"), [(5.0, 1, 1e-5), (5.0, 20, 1e-6), (40.0, 100, 1e-9)])
def test_epsilon_is_on_the_safe_side_of_the_exact_account(multiplier, releases, delta):
    noise = NOISE.model_copy(update={"multiplier": multiplier})
    epsilon = Spent(rho=releases * cost(noise).rho).total(delta)
    # The exact delta of the composition at this epsilon (Balle and Wang, ICML 2018): one Gaussian of sensitivity
    # sqrt(releases) 2 C.
    ratio = 2 * math.sqrt(releases) / multiplier
    exact = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))
    assert 0 < exact <= delta


def test_the_update_is_clipped_and_the_noise_has_its_size():
    noised = gaussian(update(scale=100.0), NOISE, np.random.default_rng(1))
    direction = joined(update()) / joined(update()).norm()
    noise = joined(noised) - NOISE.clip * direction
    assert float(noise.std()) == pytest.approx(NOISE.multiplier * NOISE.clip, rel=0.02)
    assert abs(float(noise.mean())) < 0.03
    short = gaussian(update(scale=1e-6), NOISE, np.random.default_rng(1))  # not longer than the clip: not scaled
    assert torch.allclose(joined(short) - joined(update(scale=1e-6)), noise, atol=1e-5)


def test_degenerate_updates():
    zero = {"a": torch.zeros(3), "empty": torch.zeros(0)}
    assert set(gaussian(zero, NOISE, np.random.default_rng(0))) == {"a", "empty"}
    half = gaussian({"a": torch.ones(4, dtype=torch.float16)}, NOISE, np.random.default_rng(0))
    assert half["a"].dtype == torch.float16


def test_the_same_update_gets_the_same_noise_and_only_with_the_key():
    def numbers(key=b"k" * 32, tensors=None, noise=NOISE):
        tensors = tensors or update(100)
        return gaussian(tensors, noise, noise_source(key, tensors, noise))

    again = dict(reversed(list(update(100).items())))
    assert torch.equal(joined(numbers()), joined(numbers(tensors=again)))
    assert not torch.equal(joined(numbers()), joined(numbers(key=b"q" * 32)))
    other = update(100)
    other["a"] = other["a"] + 1e-7
    assert float((joined(numbers()) - joined(numbers(tensors=other))).abs().min()) > 1e-6
    assert not torch.equal(joined(numbers()), joined(numbers(noise=NOISE.model_copy(update={"delta": 1e-7}))))


@pytest.mark.attack(
    "a hostile server",
    "the same order again and again, to average a site's noise away",
    "the same order gets the same answer, and costs its budget once",
)
def test_a_release_that_was_sent_twice_costs_once():
    lines = [
        {"digest": "x", "privacy": {"rho": 2.0}},
        {"digest": "x", "privacy": {"rho": 2.0}},
        {"digest": "y", "privacy": {"epsilon": 0.5}},
        {"digest": "bytes-1", "release": "z", "privacy": {"rho": 1.0}},
        {"digest": "bytes-2", "release": "z", "privacy": {"rho": 1.0}},
        {"digest": "z", "privacy": {"rho": 1.0}},  # in the clear
        {"digest": "z"},
    ]
    assert spent(lines) == Spent(3.0, 0.5)
    assert spent([]).total(1e-5) == 0
    assert cost(SVT) == Spent(epsilon=0.75)


def test_the_key_is_made_once_and_the_owners_alone(tmp_path):
    path = tmp_path / "state" / "noise.key"
    key = noise_key(path)
    assert len(key) == 32
    assert noise_key(path) == key
    assert path.stat().st_mode & 0o077 == 0
    assert noise_key(tmp_path / "other.key") != key
    path.write_bytes(b"short")
    with pytest.raises(StateError, match="damaged"):
        noise_key(path)
    with pytest.raises(StateError, match="nothing leaves without noise"):
        noise_key(path / "below-a-file")


@pytest.mark.parametrize(
    "words", [{"clip": 0}, {"multiplier": 0}, {"delta": 1}, {"max_epsilon": 0}, {"kind": "laplace"}, {"sigma": 1}]
)
def test_settings_that_promise_nothing_are_refused(words):
    with pytest.raises(ValidationError):
        GaussianNoise.model_validate({"kind": "gaussian", "clip": 1, "multiplier": 1, **words})
