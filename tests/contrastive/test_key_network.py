import copy
import math

import numpy as np
import pytest
import torch
from tests.contrastive.tiny_ground import TinyEncoder, context, pictures, tiny_network

from fedretina.contrastive.key_network import KeyNetwork, follow, rising_momentum, shuffled_parts
from fedretina.contrastive.objective import unit
from fedretina.losses.objective import Clock
from fedretina.settings.contrastive import MocoV2Settings, MocoV3Settings, SimclrSettings


def equal(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.999, 1.0])
def test_the_momentum_update_is_the_papers_and_leaves_buffers(momentum):
    key, query = TinyEncoder(), TinyEncoder()
    query.norm.running_mean.fill_(3)
    before = copy.deepcopy(key)
    follow(key, query, momentum)
    for mine, was, other in zip(key.parameters(), before.parameters(), query.parameters(), strict=True):
        exact = momentum * was.double() + (1 - momentum) * other.double()
        torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=1e-8)
    assert equal(key.buffers(), before.buffers())
    if momentum in (0, 1):
        assert equal(key.parameters(), (query if momentum == 0 else before).parameters())


def test_the_momentum_after_many_steps_is_a_power():
    key, query = TinyEncoder().double(), TinyEncoder().double()
    before = copy.deepcopy(key)
    for _ in range(50):
        follow(key, query, 0.9)
    for mine, was, other in zip(key.parameters(), before.parameters(), query.parameters(), strict=True):
        torch.testing.assert_close(mine, other + 0.9**50 * (was - other))


def test_moco_v3s_momentum_goes_along_a_cosine_to_one():
    steps = [Clock(r, 3, e, 2, s, 5) for r in range(3) for e in range(2) for s in range(5)]
    values = [rising_momentum(0.99, clock) for clock in steps]
    slow = [1 - 0.01 * 0.5 * (1 + math.cos(math.pi * number / 30)) for number in range(30)]
    assert values == pytest.approx(slow, rel=1e-12)
    assert values[0] == pytest.approx(0.99)
    assert values == sorted(values)
    assert 0.9999 < values[-1] < 1


@pytest.mark.parametrize(("images", "splits", "parts"), [(64, 8, 8), (7, 8, 3), (3, 8, 1), (2, 8, 1), (9, 1, 1)])
def test_parts_hold_all_once_and_two_at_least(images, splits, parts):
    found = shuffled_parts(images, splits, (1, "x"))
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(images))
    assert min(len(part) for part in found) >= 2
    assert max(len(part) for part in found) - min(len(part) for part in found) <= 1


def test_the_shuffle_depends_on_its_purpose_alone():
    one, same, other = (shuffled_parts(16, 4, (seed, "x")) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert np.concatenate(one).tolist() != np.concatenate(other).tolist()
    assert np.concatenate(one).tolist() != list(range(16))


def test_split_gives_each_part_its_own_statistics_and_the_old_order():
    net = tiny_network()
    key = KeyNetwork(context(net), MocoV2Settings(splits=4))
    views = pictures(range(8))
    found = key.keys(views, 0, 3)
    expected = torch.empty(8, 4)
    copied = copy.deepcopy(net)
    with torch.no_grad():
        for part in shuffled_parts(8, 4, (7, "site-1", "pretrain", 0, 0, 3, "split")):
            expected[part] = unit(copied.embedded(views[part]))
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, unit(copied.embedded(views)), atol=1e-3)


def test_train_takes_the_whole_batch_and_eval_the_running_statistics():
    net = tiny_network()
    net.embedded(pictures(range(8, 24)))
    views = pictures(range(8))
    whole = KeyNetwork(context(net), MocoV2Settings(key_bn="train")).keys(views)
    running = KeyNetwork(context(net), MocoV2Settings(key_bn="eval")).keys(views)
    with torch.no_grad():
        torch.testing.assert_close(running, unit(copy.deepcopy(net).eval().embedded(views)))
        torch.testing.assert_close(whole, unit(net.embedded(views)))
    assert not torch.allclose(whole, running, atol=1e-3)


def test_eval_follows_the_query_networks_statistics():
    net = tiny_network()
    key = KeyNetwork(context(net), MocoV2Settings(key_bn="eval"))
    net.embedded(pictures(range(8)))
    key.follow(1.0)
    assert torch.equal(key.module["encoder"].norm.running_mean, net.encoder.norm.running_mean)
    assert not torch.equal(net.encoder.norm.running_mean, torch.zeros(6))


def test_keys_have_length_one_no_gradient_and_touch_no_query():
    net = tiny_network()
    start = copy.deepcopy(net.state_dict())
    key = KeyNetwork(context(net), MocoV2Settings())
    keys = key.keys(pictures(range(8)))
    assert not keys.requires_grad
    torch.testing.assert_close(keys.norm(dim=1), torch.ones(8))
    assert equal(net.state_dict().values(), start.values())
    assert all(p.requires_grad for p in net.parameters())


def test_reset_forgets_and_ema_goes_on_with_its_own():
    old, new = tiny_network(seed=1), tiny_network(seed=2)
    settings = MocoV2Settings(key_sync="ema")
    memory = KeyNetwork(context(old), settings).memory()
    assert all(name.startswith(("key:encoder.", "key:projector.")) for name in memory)
    own = KeyNetwork(context(new, memory), settings).module["encoder"].conv.weight
    assert torch.equal(own, old.encoder.conv.weight)
    reset = KeyNetwork(context(new, memory), MocoV2Settings())
    assert torch.equal(reset.module["encoder"].conv.weight, new.encoder.conv.weight)
    assert reset.memory() == {}


def test_channels_last_stays():
    net = tiny_network().to(memory_format=torch.channels_last)
    key = KeyNetwork(context(net), MocoV2Settings())
    seen = []
    key.module["encoder"].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    key.keys(pictures(range(8)).to(memory_format=torch.channels_last))
    assert len(seen) == 4
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)
    assert key.module["encoder"].conv.weight.is_contiguous(memory_format=torch.channels_last)


def sent_of(net):
    """What of a key network travels where BatchNorm's counters alone stay: network keys."""
    found = {f"encoder.{key}": value for key, value in net.encoder.state_dict().items()}
    found |= {f"contrast.projector.{key}": value for key, value in net.contrast.projector.state_dict().items()}
    return {key: value.clone() for key, value in found.items() if not key.endswith("num_batches_tracked")}


def test_an_averaged_key_network_begins_with_what_was_sent_and_keeps_what_did_not_travel():
    settings = MocoV2Settings(key_sync="aggregate", momentum=0.5, key_bn="train")
    query, slow = tiny_network(seed=1), tiny_network(seed=2)
    sent = sent_of(slow)
    memory = {"key:encoder.stages.1.0.num_batches_tracked": torch.tensor(41)}
    key = KeyNetwork(context(query, memory, keys=sent), settings)
    assert equal(key.module["encoder"].parameters(), slow.encoder.parameters())
    assert equal(key.module["projector"].parameters(), slow.contrast.projector.parameters())
    key.follow(0.5)
    key.keys(pictures(range(8), 1))
    left = key.leaving()
    assert set(left) == set(sent)
    for name, value in query.encoder.named_parameters():
        torch.testing.assert_close(left[f"encoder.{name}"], 0.5 * sent[f"encoder.{name}"] + 0.5 * value.detach())
    assert key.memory().keys() == memory.keys()
    assert int(key.memory()["key:encoder.stages.1.0.num_batches_tracked"]) == 42


def test_where_nothing_of_the_key_network_travels_an_averaged_one_is_the_sites_own():
    net = tiny_network(seed=1)
    found = {}
    for sync in ("ema", "aggregate"):
        key = KeyNetwork(context(net), MocoV2Settings(key_sync=sync))
        key.follow(0.9)
        found[sync] = key.memory()
        assert key.leaving() == {}
    assert found["ema"].keys() == found["aggregate"].keys()
    assert equal(found["ema"].values(), found["aggregate"].values())


def test_only_an_averaged_key_network_travels():
    assert MocoV2Settings(key_sync="aggregate").keys_travel
    assert MocoV3Settings(key_sync="aggregate").keys_travel
    assert not SimclrSettings().keys_travel
    assert not any(MocoV2Settings(key_sync=sync).keys_travel for sync in ("reset", "ema"))
