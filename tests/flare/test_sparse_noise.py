"""FLARE's sparse vector technique behind the site's policy; no simulator."""

import math

import numpy as np
import pytest
import torch

from fedretina.flare.whitelist_filter import sparse
from fedretina.settings.policy import SvtNoise

NOISE = SvtNoise(kind="svt", fraction=0.2, epsilon=50.0, epsilon_release=50.0, clip=1e-2, threshold=1e-6)


def update():
    return {"a": torch.linspace(-1e-2, 1e-2, 600).reshape(20, 30), "b": torch.tensor(5e-3), "c": torch.zeros(399)}


def joined(tensors):
    return torch.cat([tensors[key].reshape(-1) for key in sorted(tensors)])


def test_a_share_of_the_numbers_passes_each_with_noise():
    found = sparse(update(), NOISE, np.random.default_rng(1))
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {"a": (20, 30), "b": (), "c": (399,)}
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    passed = joined(found) != 0
    assert int(passed.sum()) == math.ceil(0.2 * 1000)
    assert not torch.equal(joined(found)[passed], joined(update())[passed])


def test_a_single_number_is_no_exception():
    alone = [float(sparse({"a": torch.tensor(5e-3)}, NOISE, np.random.default_rng(seed))["a"]) for seed in range(5)]
    assert len(set(alone)) == 5
    assert 0.005 not in alone


def test_it_draws_from_the_given_source_alone():
    before = np.random.get_state()[1].copy()
    first, again, other = (joined(sparse(update(), NOISE, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("fraction", [1.0, 1e-6])
def test_all_or_one(fraction):
    found = sparse(update(), NOISE.model_copy(update={"fraction": fraction}), np.random.default_rng(1))
    assert int((joined(found) != 0).sum()) == (1000 if fraction == 1.0 else 1)
