import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.contrast import build_contrast_head
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.network import ContrastSettings, NetworkSettings

SMALL = {"hidden": 8, "width": 4}


def layers(net):
    return [type(layer) for layer in net]


@pytest.mark.parametrize("layout", ["moco_v2", "simclr"])
def test_two_layers_and_no_batchnorm(layout):
    head = build_contrast_head(20, ContrastSettings.of(layout))
    assert layers(head.projector) == [nn.Linear, nn.ReLU, nn.Linear]
    assert [head.projector[0].out_features, head.projector[2].out_features, head.width] == [20, 128, 128]
    assert head.projector[0].bias is not None
    assert head.predictor is None


def test_moco_v3_is_that_of_the_published_resnet50():
    with torch.device("meta"):
        head = build_contrast_head(2048, ContrastSettings.of("moco_v3"))
    assert layers(head.projector) == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    assert layers(head.predictor) == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert {key: tuple(value.shape) for key, value in head.named_parameters()} == {
        "projector.0.weight": (4096, 2048),
        "projector.1.weight": (4096,),
        "projector.1.bias": (4096,),
        "projector.3.weight": (256, 4096),
        "predictor.0.weight": (4096, 256),
        "predictor.1.weight": (4096,),
        "predictor.1.bias": (4096,),
        "predictor.3.weight": (256, 4096),
    }
    assert head.width == 256


def test_widths_may_be_chosen():
    head = build_contrast_head(20, ContrastSettings.of({"layout": "moco_v3", **SMALL}))
    assert head.projector(torch.rand(3, 20)).shape == (3, 4)
    assert head.predictor(torch.rand(3, 4)).shape == (3, 4)
    assert build_contrast_head(20, ContrastSettings.of(SMALL)).projector[0].out_features == 8


@pytest.mark.parametrize("words", [{"layout": "byol"}, {"hidden": 1}, {"width": 1}, {"depth": 3}])
def test_other_heads_are_refused(words):
    with pytest.raises(ValidationError):
        ContrastSettings.of(words)


def test_the_other_parts_start_as_without_it_and_no_answer_passes_through_it():
    words = {"encoder": "efficientnet_lite0", "head": {"width": 8}, "projector": 16}
    plain = build_network(NetworkSettings(**words), 3, seed=5).eval()
    nets = [build_network(NetworkSettings(**words, contrast=SMALL), 3, seed=5).eval() for _ in range(2)]
    start = plain.state_dict()
    added = nets[0].state_dict().keys() - start.keys()
    assert added == {f"contrast.projector.{layer}.{leaf}" for layer in (0, 2) for leaf in ("weight", "bias")}
    assert all(torch.equal(nets[0].state_dict()[key], value) for key, value in start.items())
    assert all(torch.equal(nets[0].state_dict()[key], nets[1].state_dict()[key]) for key in added)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(plain(images), nets[0](images))
        embedded = nets[0].embedded(images)
        expected = nets[0].contrast.projector(nets[0].encoder(nets[0].normalised(images)))
    assert embedded.shape == (2, 4)
    assert torch.equal(embedded, expected)


def test_its_draws_are_not_the_heads():
    settings = NetworkSettings(encoder="efficientnet_lite0", head={"width": 8}, contrast=SMALL)
    net = build_network(settings, 3, seed=5)
    head, projector = net.head[0].weight, net.contrast.projector[0].weight
    assert head.shape == projector.shape
    assert not torch.equal(head, projector)


def test_a_network_without_one_says_so():
    with pytest.raises(SettingsError, match=r"network\.contrast"):
        build_on_meta(NetworkSettings()).embedded(torch.zeros(1, 3, 32, 32, device="meta"))


@pytest.mark.parametrize("layout", ["moco_v2", "moco_v3"])
def test_meta_agrees_with_the_real_network(layout):
    settings = NetworkSettings(encoder="efficientnet_lite0", contrast={"layout": layout, **SMALL})
    real, meta = build_network(settings, 4, seed=0), build_on_meta(settings, 4)
    assert [(k, v.shape, v.dtype) for k, v in real.state_dict().items()] == [
        (k, v.shape, v.dtype) for k, v in meta.state_dict().items()
    ]


def test_it_travels_as_a_projector_and_its_batchnorm_by_the_policy():
    net = build_on_meta(NetworkSettings(contrast={"layout": "moco_v3", **SMALL}))

    def kept(**words):
        split = partition(net, ExchangeSettings(**words))
        assert {split.kinds[key] for key in net.state_dict() if key.startswith("contrast.")} == {Kind.PROJECTOR}
        return {key for key in split.personal if key.startswith("contrast.")}

    counters = {f"contrast.{layer}.num_batches_tracked" for layer in ("projector.1", "projector.4", "predictor.1")}
    assert kept(batchnorm="shared_all") == counters
    assert "contrast.projector.4.running_mean" in kept(batchnorm="local_stats")
    assert "contrast.predictor.1.weight" in kept(batchnorm="local_all")
    assert "contrast.predictor.0.weight" not in kept(batchnorm="local_all")
