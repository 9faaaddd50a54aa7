"""The three-layer CNN: the paper's weights, its answers by hand, and what it refuses."""

import pytest
import torch
from torch.nn import functional as F

from fedretina.errors import TrainingError
from fedretina.networks.build import build_network
from fedretina.networks.signal_cnn import signal_cnn_encoder
from fedretina.settings.network import NetworkSettings


def test_the_papers_number_of_weights():
    net = build_network(NetworkSettings(encoder="signal_cnn", head={"layout": "linear"}), 8, seed=1)
    assert sum(weight.numel() for weight in net.parameters()) == 952_792  # 0.953 M in FedEE, Table 4
    exits = {"after": (0, 1, 2), "width": 64}
    early = build_network(NetworkSettings(encoder="signal_cnn", head={"layout": "linear"}, exits=exits), 8, seed=1)
    assert round(sum(weight.numel() for weight in early.parameters()) / 1e6, 3) == 0.963
    assert early.eval()(torch.rand(2, 3, 1, 1000)).shape == (2, 4, 8)


def test_maps_and_features_against_one_dimension():
    torch.manual_seed(1)
    encoder = signal_cnn_encoder().eval()
    x = torch.rand(2, 3, 1, 1000)
    maps = encoder.forward_stages(x)
    assert [tuple(one.shape) for one in maps] == [(2, 16, 1, 977), (2, 32, 1, 962), (2, 64, 1, 955)]
    assert encoder.widths == (16, 32, 64)
    y = x[:, :, 0]
    for stage, (convolution, norm, _) in enumerate(encoder.stages):
        y = F.conv1d(y, convolution.weight[:, :, 0], convolution.bias)
        y = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
        torch.testing.assert_close(maps[stage][:, :, 0], y)
    places = torch.stack([y[..., at * 68 : (at + 1) * 68].amax(2) for at in range(14)], 2).flatten(1)
    expected = F.linear(places, encoder.reduce[0].weight, encoder.reduce[0].bias).relu()
    torch.testing.assert_close(encoder(x), expected)
    seen = []
    encoder(x, lambda number, one: seen.append(number) or one)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("shape", [(3, 1, 59), (3, 1, 500), (3, 64, 64)])
def test_other_lengths_pass(shape):
    assert signal_cnn_encoder().eval()(torch.rand(2, *shape)).shape == (2, 1024)


def test_short_signals_are_refused():
    encoder = signal_cnn_encoder().eval()
    with pytest.raises(TrainingError, match="59 samples or more"):
        encoder(torch.rand(2, 3, 1, 58))
    with pytest.raises(TrainingError, match="59 samples or more"):
        encoder.forward_stages(torch.rand(2, 3, 32, 32))
