"""Frozen stages: what they give, read or computed; that nothing of them trains; and what cannot be frozen."""

from __future__ import annotations

import pytest
import torch

from fedretina.errors import SettingsError
from fedretina.exchange.partition import partition, partition_of
from fedretina.networks.build import build_network, build_on_meta
from fedretina.networks.dropout import answered_with_features
from fedretina.settings.encoder import EncoderTraits
from fedretina.settings.exchange import ExchangeSettings, Kind
from fedretina.settings.experiment import Experiment
from fedretina.settings.network import NetworkSettings

LITE = "efficientnet_lite0"


def made(encoder=LITE, **words):
    return build_network(NetworkSettings(encoder=encoder, head={"layout": "linear"}, **words), 4, seed=1)


def pictures(count=11, encoder=LITE):
    shape = (1, 1000) if encoder == "signal_cnn" else (32, 32)
    return torch.rand(count, 3, *shape, generator=torch.Generator().manual_seed(0))


def slowly(net, image):
    """One image, stage by stage, rounded where the frozen ones end."""
    seen, logits, whole = net.normalised(image[None]), [], net.frozen == net.encoder.steps
    for number, stage in enumerate(net.encoder.stages):
        seen = stage(seen)
        if number == net.encoder.frozen - 1 and not whole:
            seen = seen.half().float()
        if net.exits is not None and number in net.exits.after:
            average = seen.mean((2, 3))
            within = number < net.encoder.frozen - (not whole)
            logits.append(net.exits[net.exits.after.index(number)](average.half().float() if within else average))
    features = net.encoder.pool(seen)
    logits.append(net.head(features.half().float() if whole else features))
    return torch.stack(logits, 1) if net.exits is not None else logits[0]


@pytest.mark.parametrize(
    ("encoder", "frozen"),
    [
        (LITE, 1),
        (LITE, 3),
        (LITE, "all"),
        ("vit_small", 2),
        ("vit_small", "all"),
        ("signal_cnn", 2),
        ("signal_cnn", "all"),
    ],
)
@pytest.mark.parametrize("exits", [None, {"after": (0, 1, 2)}])
def test_answers_are_those_of_a_network_that_rounds_between(little_encoder, encoder, frozen, exits):
    net = made(encoder, frozen=frozen, exits=exits).eval()
    images = pictures(encoder=encoder)
    with torch.no_grad():
        slow = torch.cat([slowly(net, image) for image in images])
        found = net(images)
        torch.testing.assert_close(found, slow, rtol=2e-3, atol=2e-4)
        rows = net.frozen_outputs(images)
        assert rows.dtype == torch.float16
        assert torch.equal(net(rows), found)


@pytest.mark.parametrize(
    ("encoder", "frozen", "stage"),
    [
        (LITE, "nothing", 2),
        (LITE, 3, 2),
        (LITE, 4, 3),
        (LITE, "all", None),
        ("vit_small", "nothing", 2),
        ("signal_cnn", 2, 1),
    ],
)
def test_what_the_middle_stage_gives_is_noted_with_the_bits_of_the_answer(little_encoder, encoder, frozen, stage):
    net = made(encoder, frozen=frozen).eval()
    images = pictures(5, encoder)
    with torch.no_grad():
        said = answered_with_features(net, images, 1)
        assert torch.equal(said.logits, net(images))
        assert net.encoder.middle == stage
        if stage is None:
            assert said.middle is None
            return
        seen = net.normalised(images)
        for number in range(stage + 1):
            seen = net.encoder.stages[number](seen)
        torch.testing.assert_close(said.middle, net.encoder.average(seen), rtol=2e-3, atol=2e-3)
        if frozen != "nothing":
            assert torch.equal(answered_with_features(net, net.frozen_outputs(images), 1).middle, said.middle)


def test_outputs_have_the_same_bits_in_any_batch(little_encoder):
    net, images = made(frozen=3), pictures(19)
    whole = net.frozen_outputs(images)
    for rows in ([4], [18, 0, 3], list(range(7, 19))):
        assert torch.equal(net.frozen_outputs(images[rows]), whole[rows])
    last = net.to(memory_format=torch.channels_last).frozen_outputs(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, whole, rtol=2e-3, atol=1e-3)


def test_large_values_are_cut_and_not_infinite():
    net = made("signal_cnn", frozen=1).eval()
    with torch.no_grad():
        net.encoder.stages[0][1].weight.fill_(1e6)
    images = pictures(2, "signal_cnn")
    assert torch.isfinite(net.frozen_outputs(images)).all()
    assert net.frozen_outputs(images).max() == torch.finfo(torch.float16).max


@pytest.mark.parametrize("frozen", [2, "all"])
def test_nothing_frozen_trains_or_moves_its_statistics(little_encoder, frozen):
    net = made(frozen=frozen)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    net.train().requires_grad_(True)  # as every round does
    keys = net.frozen_keys()
    named = dict(net.named_parameters())
    assert {key for key, value in named.items() if not value.requires_grad} == keys & set(named)
    optimiser = torch.optim.SGD([value for value in named.values() if value.requires_grad], lr=0.1, weight_decay=0.1)
    for _ in range(2):
        net(pictures()).square().sum().backward()
        optimiser.step()
    changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    assert keys
    assert not changed & keys
    assert changed >= set(named) - keys
    assert keys == {key for key in before if frozen == "all" and key.startswith("encoder.")} or keys == {
        key for key in before if key.startswith(("encoder.stages.0.", "encoder.stages.1."))
    }


def test_frozen_statistics_stand_still_while_scale_and_shift_train(little_encoder):
    net = made(frozen=1, frozen_statistics=True)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimiser = torch.optim.SGD(
        [one for one in net.train().requires_grad_(True).parameters() if one.requires_grad], 0.1
    )
    images = pictures()
    seen = net(images)
    seen.square().sum().backward()
    optimiser.step()
    changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    buffers = {key for key, _ in net.encoder.named_buffers(prefix="encoder")}
    assert buffers <= net.frozen_keys()
    assert not changed & buffers
    assert changed == set(dict(net.named_parameters())) - net.frozen_keys()
    net.load_state_dict(before)
    assert torch.equal(net.eval()(images), seen)  # what trains is what answers
    parts = partition(net, ExchangeSettings(batchnorm="shared_all"), frozen=net.frozen_keys())
    assert not any(parts.kinds[key] in (Kind.STATISTIC, Kind.COUNTER) for key in parts.shared)
    assert any(parts.kinds[key] is Kind.NORM for key in parts.shared)


def test_nothing_frozen_travels_or_is_kept_by_round(little_encoder):
    net = build_on_meta(NetworkSettings(encoder=LITE, frozen=3), 4)
    parts = partition(net, ExchangeSettings(), controls=True, statistics=True, frozen=net.frozen_keys())
    assert set(parts.frozen) == net.frozen_keys()
    assert not any(".stages.0." in key or ".stages.2." in key for key in (*parts.sendable, *parts.personal))
    assert set(parts.frozen) | set(parts.shared) | set(parts.personal) == set(net.state_dict())
    assert {name for name in parts.by_kind() if "frozen" in name} == {
        "encoder, frozen",
        "norm, frozen",
        "statistic, frozen",
        "counter, frozen",
    }
    assert any(line.split()[:2] == ["encoder", "frozen"] for line in parts.table().splitlines())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"frozen": 9}, "network.frozen is 9, but this encoder has 5 stages"),
        ({"frozen": 5}, "network.frozen is 5, and this encoder has no more stages: write 'all'"),
        ({"frozen": 3, "dropout": {"after": (1, 3)}}, "network.dropout follows stage 1, but the first 3 stages"),
    ],
)
def test_what_cannot_be_frozen_is_told_at_both_ends(words, told):
    settings = NetworkSettings(encoder=LITE, **words)
    for build in (lambda: build_network(settings, 4, 1), lambda: build_on_meta(settings)):
        with pytest.raises(SettingsError, match=told):
            build()


def test_dropout_may_follow_the_last_frozen_stage(little_encoder):
    net = made(frozen="all", dropout={"rate": 0.5, "after": (4,)}).train()
    rows = net.frozen_outputs(pictures())
    assert rows.shape[1] > net.encoder.features or net.frozen < net.encoder.steps  # the map, before the average
    torch.manual_seed(0)
    assert not torch.equal(net(rows), net(rows))


def settings_of(**words):
    return Experiment.resolve({"augment": {"rotate_degrees": 0}, **words})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"network": {"frozen_cache": "off"}}, "frozen_cache is 'off', but nothing is frozen"),
        ({"network": {"frozen": 0}}, "network.frozen"),
        ({"network": {"frozen": True}}, "network.frozen"),
        ({"network": {"frozen": 2}, "augment": {}}, "augment: rotate_degrees gives other pixels each time"),
        (
            {"network": {"frozen": 2}, "phases": [{"name": "train", "augment": {"brightness": 0.1}}]},
            "augment: brightness gives other pixels each time",
        ),
        ({"row": "oct_moco_scaffold", "network": {"frozen": "all"}}, "a phase without labels trains the encoder"),
        ({"row": "fedrep", "network": {"frozen": "all"}}, "trains the encoder alone for a while"),
    ],
)
def test_settings_that_do_not_go_with_frozen_stages_are_refused(words, told):
    with pytest.raises(SettingsError, match=told):
        settings_of(**words)


def test_random_transforms_go_with_frozen_stages_where_they_are_computed_anew():
    assert settings_of(network={"frozen": 2, "frozen_cache": "lenient"}, augment={"rotate_degrees": 5})


def test_sites_that_would_learn_nothing_from_each_other_are_refused(little_encoder):
    run = settings_of(row="feduaa", network={"encoder": LITE, "frozen": "all"})
    with pytest.raises(SettingsError, match="they would learn nothing from each other"):
        partition_of(run, build_on_meta(run.network))
    alone = settings_of(row="singleset", network={"encoder": LITE, "frozen": "all"})
    assert partition_of(alone, build_on_meta(alone.network)).shared == ()


@pytest.mark.parametrize("encoder", sorted({name for name, one in EncoderTraits.choices().items() if not one.signals}))
def test_every_encoder_can_be_frozen(encoder):
    net = build_on_meta(NetworkSettings(encoder=encoder, frozen=2))
    begins = ("encoder.stages.0.", "encoder.stages.1.")
    assert net.frozen_keys() == {key for key in net.state_dict() if key.startswith(begins)}
    whole = build_on_meta(NetworkSettings(encoder=encoder, frozen="all"))
    assert whole.frozen_keys() == {key for key in whole.state_dict() if key.startswith("encoder.")}
