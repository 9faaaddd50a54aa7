"""Early exits: widths and counts of the paper, what they read, and what of them travels."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition
from fedretina.local.supervised import summed_score
from fedretina.losses.cross_entropy import CrossEntropyObjective
from fedretina.losses.objective import Clock
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.encoder import EncoderTraits
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.network import ExitSettings, NetworkSettings

LITE = "efficientnet_lite0"


def settings(encoder=LITE, **exits):
    return NetworkSettings(encoder=encoder, head={"layout": "linear"}, exits=exits)


@pytest.mark.parametrize(
    ("encoder", "grades", "hidden", "millions"),
    [
        ("efficientnet_b0", 8, [1843, 1682, 1535, 1402], 0.7076),
        ("resnet18", 2, [737, 673, 614, 560], 0.582),
        ("signal_cnn", 8, [84, 76, 70], 0.010),
    ],
)
def test_widths_and_counts_are_the_papers(encoder, grades, hidden, millions):
    """FedEE's code and Table 4: 4.725 - 4.018 and 11.753 - 11.171 million parameters."""
    exits = build_on_meta(settings(encoder), grades).exits
    assert [one[0].out_features for one in exits] == hidden
    count = sum(parameter.numel() for parameter in exits.parameters())
    # The code's heart sounds have one sigmoid output, ours two classes: 2,588 more numbers.
    assert count / 1e6 == pytest.approx(millions, abs=0.004)


def test_widths_grow_towards_the_input_from_the_chosen_base():
    assert ExitSettings(width=64).widths(3, 999) == (84, 76, 70)  # FedEE's three-layer CNN
    assert ExitSettings(width=10, growth=1).widths(2, 999) == (10, 10)
    assert ExitSettings(width=10, growth=4).widths(2, 999) == (40, 20)


@pytest.mark.parametrize("encoder", sorted(EncoderTraits.choices()))
def test_every_encoder_has_exits_of_its_own(encoder):
    net = build_on_meta(settings(encoder), 3)
    after = EncoderTraits.choices()[encoder].exits
    assert net.exits.after == after
    assert [one[0].in_features for one in net.exits] == [net.encoder.widths[at] for at in after]


def test_members_are_the_exits_in_order_and_the_head_last():
    net = build_network(settings(after=(1, 3)), 4, seed=1).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = net(images)
        maps = net.encoder.forward_stages(net.normalised(images))
        slow = []
        for layers, at in zip(net.exits, (1, 3), strict=True):
            pooled = F.adaptive_avg_pool2d(maps[at], 1).flatten(1)
            slow.append(layers[2](torch.relu(layers[0](pooled))))
        slow.append(net.head(F.adaptive_avg_pool2d(maps[-1], 1).flatten(1)))
    torch.testing.assert_close(found, torch.stack(slow, 1))


def test_the_other_parts_start_as_without_exits():
    plain = build_network(NetworkSettings(encoder=LITE, head={"layout": "linear"}), 4, seed=2).state_dict()
    with_exits = build_network(settings(), 4, seed=2).state_dict()
    assert all(torch.equal(value, with_exits[key]) for key, value in plain.items())


def test_the_objective_sums_over_members():
    logits = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    found = summed_score(CrossEntropyObjective(), logits, labels, Clock(0, 1, 0, 1, 0, 1))
    assert found.item() == pytest.approx(sum(F.cross_entropy(logits[:, m], labels).item() for m in range(3)), rel=1e-6)


@pytest.mark.parametrize(
    ("personal", "travels"),
    [("nothing", {"head", "exits"}), ("exits", {"head"}), ("head", set()), ("everything", set())],
)
def test_what_of_heads_and_exits_travels(personal, travels):
    batchnorm = {} if personal == "everything" else {"batchnorm": "shared_all"}
    parts = partition(build_on_meta(settings(), 3), ExchangeSettings(personal=personal, **batchnorm))
    kinds = {"head": Kind.HEAD, "exits": Kind.EXIT}
    shared = {parts.kinds[key] for key in parts.shared}
    assert {name for name, kind in kinds.items() if kind in shared} == travels
    assert (Kind.ENCODER in shared) == (personal != "everything")


@pytest.mark.parametrize("after", [(), (2, 1), (1, 1), (-1,)])
def test_stages_out_of_order_are_refused(after):
    with pytest.raises(ValidationError, match="ascending"):
        ExitSettings(after=after)


def test_a_stage_that_is_not_there_is_refused():
    with pytest.raises(SettingsError, match="0 to 4"):
        build_on_meta(settings(after=(1, 9)), 3)


def test_a_calibrator_beside_exits_is_refused():
    with pytest.raises(ValidationError, match="several answers"):
        NetworkSettings(encoder=LITE, calibrator=True, exits={})
