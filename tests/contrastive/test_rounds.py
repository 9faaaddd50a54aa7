"""Rounds of the three objectives at a site, on a network of a few hundred weights."""

import copy

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save
from tests.contrastive.tiny_ground import PATIENTS, context, pictures, tiny_network, views_of

from fedretina.contrastive.key_network import follow, shuffled_parts
from fedretina.contrastive.moco_v2 import info_nce
from fedretina.contrastive.moco_v3 import moco_v3_loss
from fedretina.contrastive.objective import begin_contrastive, unit
from fedretina.contrastive.simclr import nt_xent
from fedretina.errors import SettingsError, TrainingError
from fedretina.losses.objective import Clock
from fedretina.networks.build import build_network
from fedretina.seeds import generator
from fedretina.settings.contrastive import ContrastiveSettings, MocoV2Settings
from fedretina.settings.network import NetworkSettings

METHODS = tuple(ContrastiveSettings.choices())


def train(net, round_, rounds=2, number=0, epochs=2, swapped=False):
    """A round's epochs by plain SGD; returns the losses."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        order = generator("order", number, epoch).permutation(24)
        for step in range(3):
            views = views_of(order[8 * step : 8 * step + 8], number, epoch)
            if swapped:
                views = views._replace(first=views.second, second=views.first)
            loss = round_.loss(views, Clock(number, rounds, epoch, epochs, step, 3))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses


def begin(net, memory=None, number=0, **words):
    return begin_contrastive(ContrastiveSettings.of(words), context(net, memory, number))


def read(method, **words):
    """The method with those of the settings that it reads."""
    fields = ContrastiveSettings.choices()[method].model_fields
    return {"method": method, **{name: value for name, value in words.items() if name in fields}}


@pytest.mark.parametrize("method", METHODS)
def test_views_of_an_image_come_together(method):
    net = tiny_network(method)
    words = read(method, temperature=0.2, momentum=0.9) | ({"splits": 2} if method == "moco_v2" else {})
    losses = train(net, begin(net, **words), epochs=30)
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("words", [{}, {"key_sync": "ema", "queue_start": "keep", "key_bn": "split", "splits": 2}])
def test_a_round_that_begins_twice_from_stored_memory_gives_the_same_bits(method, words):
    torch.manual_seed(4)
    before = torch.get_rng_state()
    net = tiny_network(method)
    words = read(method, **words)
    first = begin(net, **words)
    train(net, first)
    memory = load(save(dict(first.finish())))
    assert all(value.device.type == "cpu" for value in memory.values())
    kept, start = copy.deepcopy(memory), copy.deepcopy(net.state_dict())
    ends = []
    for _ in range(2):
        again = tiny_network(method)
        again.load_state_dict(start)
        second = begin(again, memory, 1, **words)
        losses = train(again, second, number=1)
        ends.append((losses, again.state_dict(), second.finish()))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(ends[0][1][key], ends[1][1][key]) for key in start)
    assert all(torch.equal(ends[0][2][name], ends[1][2][name]) for name in ends[0][2])
    assert all(torch.equal(memory[name], value) for name, value in kept.items())
    assert torch.equal(torch.get_rng_state(), before)


def test_what_stays_is_what_the_settings_need():
    def kept(**words):
        round_ = begin(tiny_network(words.get("method", "moco_v2")), **words)
        return {name.partition(":")[0] for name in round_.finish()}

    assert kept() == set()
    assert kept(queue_start="keep") == {"queue"}
    assert kept(key_sync="ema") == {"key"}
    assert kept(key_sync="ema", queue_start="keep") == {"key", "queue"}
    assert kept(method="moco_v3", key_sync="ema") == {"key"}
    assert kept(method="simclr") == set()


def test_a_step_of_moco_v2_is_the_papers():
    net = tiny_network()
    round_ = begin(net, momentum=0.9, queue_start="flush", splits=2)
    key = copy.deepcopy(net)
    with torch.no_grad():  # so that the momentum update can be seen
        for parameter in net.parameters():
            parameter.add_(0.1)
    plain, queue = copy.deepcopy(net), []
    for step in range(5):
        numbers = [(8 * step + n) % 24 for n in range(8)]
        views, clock = views_of(numbers, step), Clock(0, 1, 0, 1, step, 5)
        found = round_.loss(views, clock)
        query = unit(plain.embedded(views.first))
        follow(key, plain, 0.9)
        keys = torch.empty(8, 4)
        with torch.no_grad():
            for part in shuffled_parts(8, 2, (7, "site-1", "pretrain", 0, 0, step, "split")):
                keys[part] = unit(key.embedded(views.second[part]))
        rows = queue[-24:]
        held = torch.stack([row for row, _ in rows]) if rows else torch.zeros(0, 4)
        same = torch.tensor([[p == q for _, q in rows] for p in views.patients.tolist()], dtype=torch.bool)
        torch.testing.assert_close(found, info_nce(query, keys, held, 0.2, same))
        assert (found.item() == 0) == (step == 0)  # an empty queue has no negatives
        queue += list(zip(keys, views.patients.tolist(), strict=True))


def test_a_step_of_moco_v3_is_the_papers_and_swapping_the_views_changes_no_bit():
    start = tiny_network("moco_v3")
    views, clock = views_of(range(8)), Clock(1, 4, 0, 1, 0, 1)
    round_ = begin(start, method="moco_v3", momentum=0.5)
    key = copy.deepcopy(start)
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.add_(0.1)
    plain = copy.deepcopy(start)
    found = round_.loss(views, clock)
    q1, q2 = (unit(plain.contrast.predictor(plain.embedded(view))) for view in views[:2])
    follow(key, plain, 1 - 0.5 * (1 + 2**-0.5) / 2)
    k1, k2 = (unit(key.embedded(view)).detach() for view in views[:2])
    same = views.patients[:, None] == views.patients[None, :]
    torch.testing.assert_close(found, moco_v3_loss((q1, q2), (k1, k2), 1.0, same))

    ends = []
    for swapped in (False, True):
        net = tiny_network("moco_v3")
        ends.append(train(net, begin(net, method="moco_v3"), epochs=1, swapped=swapped)[0])
    assert ends[0] == ends[1]


def test_a_step_of_simclr_is_the_papers():
    net = tiny_network("simclr")
    plain, views = copy.deepcopy(net), views_of(range(8))
    z = unit(plain.embedded(torch.cat(views[:2])))
    same = views.patients[:, None] == views.patients[None, :]
    found = begin(net, method="simclr").loss(views, Clock(0, 1, 0, 1, 0, 1))
    torch.testing.assert_close(found, nt_xent(z[:8], z[8:], 0.1, same))


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_encoder_and_contrastive_head_alone(method):
    net = tiny_network(method)
    begin(net, method=method).loss(views_of(range(8)), Clock(0, 1, 0, 1, 0, 1)).backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("head."), name


@pytest.mark.parametrize(("queue", "length"), [(65536, 24), (8, 8), (10, 10)])
def test_refilling_asks_each_image_once_and_fills_the_queue(queue, length):
    asked = []

    def first_views(numbers):
        asked.extend(numbers.tolist())
        return pictures(numbers)

    settings = MocoV2Settings(queue=queue)
    round_ = begin_contrastive(settings, context(tiny_network(), first_views=first_views))
    assert len(asked) == len(set(asked)) == length
    assert asked != sorted(asked)
    assert round_.loss(views_of(range(8)), Clock(0, 1, 0, 1, 0, 1)) > 0
    assert sorted(round_._queue.images.tolist()) != sorted(asked) or queue > 24
    assert not (round_._queue.images == -1).any()


def test_the_queue_is_no_longer_than_whole_batches_and_wraps():
    words = {"count": 23, "patients": PATIENTS[:23]}
    round_ = begin_contrastive(MocoV2Settings(), context(tiny_network(), **words))
    assert len(round_._queue.rows) == 16
    for step in range(3):
        numbers = range(6 * step, 6 * step + 6)  # a batch that does not divide the queue
        round_.loss(views_of(numbers), Clock(0, 1, 0, 1, step, 3))
    assert round_._queue.at == 2
    assert sorted(round_._queue.images.tolist()) == list(range(2, 18))


def test_images_of_one_patient_are_negatives_only_if_the_site_says_so():
    one = torch.zeros(24, dtype=torch.int64)
    for method in METHODS:
        where = context(tiny_network(method), patients=one)
        with pytest.raises(TrainingError, match="one patient"):
            begin_contrastive(ContrastiveSettings.of(method), where)
        round_ = begin_contrastive(ContrastiveSettings.of({"method": method, "mask_patients": False}), where)
        assert round_.loss(views_of(range(8))._replace(patients=one[:8]), Clock(0, 1, 0, 1, 0, 1)) > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_patient_moves_nothing(method):
    patients = torch.tensor([0, 0, 1, 1])
    words = {"count": 4, "batch_size": 2, "patients": patients}
    net = tiny_network(method)
    own = {"queue": 2, "queue_start": "flush"} if method == "moco_v2" else {}
    settings = ContrastiveSettings.of({"method": method, **own})
    loss = begin_contrastive(settings, context(net, **words)).loss(views_of([0, 1]), Clock(0, 1, 0, 1, 0, 1))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in net.parameters())


def test_fewer_images_than_a_batch_are_refused():
    with pytest.raises(TrainingError, match="fewer than one batch"):
        begin_contrastive(MocoV2Settings(), context(tiny_network(), count=7))


@pytest.mark.parametrize(("method", "layout"), [("moco_v2", "moco_v3"), ("simclr", "moco_v3"), ("moco_v3", "moco_v2")])
def test_a_head_of_another_method_is_refused(method, layout):
    with pytest.raises(SettingsError, match=r"network\.contrast\.layout"):
        begin(tiny_network(layout), method=method)


def test_a_network_without_a_contrastive_head_is_refused():
    net = tiny_network()
    net.contrast = None
    with pytest.raises(SettingsError, match=r"network\.contrast"):
        begin(net)


@pytest.mark.parametrize("method", METHODS)
def test_nan_in_an_image_is_seen_in_the_loss(method):
    net = tiny_network(method)
    views = views_of(range(8))
    views.first[3] = torch.nan
    assert begin(net, method=method).loss(views, Clock(0, 1, 0, 1, 0, 1)).isnan()


@pytest.mark.parametrize("method", METHODS)
def test_a_real_network_in_bfloat16_gives_a_float32_loss(method):
    settings = NetworkSettings(encoder="efficientnet_lite0", contrast={"layout": method, "hidden": 8, "width": 4})
    net = build_network(settings, 3, seed=1).to(memory_format=torch.channels_last).train()
    views = views_of(range(8))
    big = [torch.nn.functional.interpolate(v, 32).to(memory_format=torch.channels_last) for v in views[:2]]
    round_ = begin(net, method=method)
    with torch.autocast("cpu", torch.bfloat16):
        round_.loss(views._replace(first=big[0], second=big[1]), Clock(0, 1, 0, 1, 0, 2))
        loss = round_.loss(views_of(range(8, 16))._replace(first=big[1], second=big[0]), Clock(0, 1, 0, 1, 1, 2))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() > 0
    assert all(p.grad.isfinite().all() for p in net.encoder.parameters())


def test_defaults_are_the_papers():
    two, three, clr = (ContrastiveSettings.of(method) for method in ("moco_v2", "moco_v3", "simclr"))
    assert (two.temperature, two.momentum, two.queue) == (0.2, 0.999, 65536)
    assert (three.temperature, three.momentum) == (1.0, 0.99)
    assert clr.temperature == 0.1
    assert (two.key_bn, three.key_bn) == ("split", "train")


@pytest.mark.parametrize(
    "words",
    [
        {"method": "byol"},
        {"temperature": 0},
        {"temperature": float("nan")},
        {"momentum": 1.1},
        {"queue": 1},
        {"splits": 0},
        {"key_sync": "mean"},
        {"teperature": 0.2},
    ],
)
def test_settings_out_of_range_are_refused(words):
    with pytest.raises(ValidationError):
        ContrastiveSettings.of(words)
