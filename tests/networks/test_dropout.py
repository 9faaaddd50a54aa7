"""Dropout for MC-dropout: what it is in training, in evaluation and in a pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedretina.errors import SettingsError
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.dropout import PassDropout, answered_in_passes
from fedretina.settings.network import NetworkSettings

ONES = torch.ones(4, 8, 5, 5)


def dropped(**words):
    return NetworkSettings(encoder="efficientnet_lite0", head={"layout": "linear"}, dropout={"rate": 0.3}, **words)


def test_it_is_nothing_in_evaluation_and_plain_dropout_in_training():
    layer = PassDropout(0.25, 1).eval()
    assert layer(ONES) is ONES
    torch.manual_seed(1)
    found = layer.train()(ONES)
    torch.manual_seed(1)
    torch.testing.assert_close(found, nn.Dropout(0.25)(ONES))


def test_a_pass_has_one_mask_for_all_images_of_any_batch():
    layer = PassDropout(0.25, 1).eval()
    layer.passing = 3
    found = layer(ONES)
    assert found.unique().tolist() == pytest.approx([0, 4 / 3])
    assert all(torch.equal(found[0], one) for one in found)
    assert torch.equal(layer(ONES[:1])[0], found[0])
    other, layer.passing = found, 4
    assert not torch.equal(layer(ONES), other)
    sibling = PassDropout(0.25, 2)
    sibling.passing = 3
    assert not torch.equal(sibling(ONES), other)


def test_the_share_that_is_dropped_is_the_rate():
    layer = PassDropout(0.3, 0)
    layer.passing = 0
    assert (layer(torch.ones(1, 100, 20, 20)) == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)


def test_passes_are_members_and_one_pass_is_without_dropout():
    net = build_network(dropped(), 3, seed=1).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        five, again, plain = (answered_in_passes(net, images, passes) for passes in (5, 5, 1))
        single = answered_in_passes(net, images[:1], 5)
    assert five.shape == (2, 5, 3)
    assert torch.equal(five, again)
    assert torch.equal(plain, net(images))
    torch.testing.assert_close(single[0], five[0])
    assert len(five[0].unique(dim=0)) == 5
    assert all(layer.passing is None for layer in net.dropouts.values())


def test_exits_in_passes_are_members_too():
    net = build_network(dropped(exits={"after": (2,)}), 3, seed=1).eval()
    with torch.no_grad():
        assert answered_in_passes(net, torch.rand(2, 3, 32, 32), 3).shape == (2, 6, 3)


def test_it_adds_nothing_to_the_state():
    assert build_on_meta(dropped(), 3).state_dict().keys() == (
        build_on_meta(NetworkSettings(encoder="efficientnet_lite0", head={"layout": "linear"}), 3).state_dict().keys()
    )


def test_a_stage_that_is_not_there_is_refused():
    words = {"rate": 0.1, "after": [7]}
    with pytest.raises(SettingsError, match="0 to 4"):
        build_on_meta(NetworkSettings(encoder="efficientnet_lite0", dropout=words), 3)
