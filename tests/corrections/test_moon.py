import math

import pytest
import torch

from fedretina.corrections.correction import RoundContext
from fedretina.corrections.moon import Moon, moon_contrast
from fedretina.networks.build import build_network
from fedretina.settings.correction import MoonSettings
from fedretina.settings.network import NetworkSettings


def test_the_contrast_is_the_papers_equation():
    generator = torch.Generator().manual_seed(1)
    own, aggregate, previous = (torch.randn(6, 9, generator=generator, dtype=torch.float64) for _ in range(3))

    def cosine(a, b):
        return (a * b).sum() / (a.norm() * b.norm())

    values = []
    for z, z_glob, z_prev in zip(own, aggregate, previous, strict=True):
        near, far = math.exp(cosine(z, z_glob) / 0.5), math.exp(cosine(z, z_prev) / 0.5)
        values.append(-math.log(near / (near + far)))
    assert moon_contrast(own, aggregate, previous, 0.5).item() == pytest.approx(sum(values) / 6)


def test_equally_near_models_give_log_two_whatever_the_temperature():
    z = torch.ones(3, 4)
    assert moon_contrast(torch.randn(3, 4), z, z, 0.07).item() == pytest.approx(math.log(2), rel=1e-5)


def test_features_of_length_zero_give_a_finite_loss_and_gradient():
    own = torch.zeros(2, 4, requires_grad=True)
    loss = moon_contrast(own, torch.ones(2, 4), torch.zeros(2, 4), 0.5)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(own.grad).all()


@pytest.mark.parametrize("projector", [None, 16])
def test_a_round_reads_the_features_that_enter_the_head(projector):
    settings = NetworkSettings(projector=projector, head={"width": 8})
    net, other = build_network(settings, 3, 1), build_network(settings, 3, 2)
    memory = {f"state:{key}": value for key, value in other.state_dict().items()}
    parameters = dict(net.named_parameters())
    received = {key: value.detach().clone() for key, value in parameters.items()}
    round_ = Moon(MoonSettings(mu=2.0)).begin(RoundContext(net, parameters, received, {}, memory, 1.0))
    images = torch.rand(4, 3, 32, 32)
    net.train()
    assert round_.penalty(images) is None  # no forward pass yet
    net(images)
    penalty = round_.penalty(images)
    round_.close()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    with torch.no_grad():
        own = build_network(settings, 3, 1).train().features(images)
        aggregate = build_network(settings, 3, 1).eval().features(images)
        previous = other.eval().features(images)
    assert own.shape == (4, projector or 512)
    assert penalty.item() == pytest.approx(2 * moon_contrast(own, aggregate, previous, 0.5).item(), rel=1e-4)
    penalty.backward()
    assert all(p.grad is None for key, p in net.named_parameters() if key.startswith("head."))
    kept = round_.finish().memory
    assert set(kept) == {f"state:{key}" for key in state}
    net(images)
    assert round_.penalty(images) is None  # closed: nothing listens any more


def test_the_first_round_has_no_contrast_but_leaves_a_memory():
    net = build_network(NetworkSettings(head={"width": 8}), 3, 1)
    round_ = Moon(MoonSettings()).begin(RoundContext(net, {}, {}, {}, {}, 1.0))
    net(torch.rand(2, 3, 32, 32))
    assert round_.penalty(torch.rand(2, 3, 32, 32)) is None
    assert round_.finish().memory
