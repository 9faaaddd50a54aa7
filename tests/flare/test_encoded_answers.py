"""Encoded and encrypted tensors on their way through the filters of either end, a site's ledger and its policy."""

import pytest
import torch
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext

from fedretina.analytic.sums import Sums
from fedretina.codecs.encoding import Base, encoding_of
from fedretina.errors import RefusedError, SettingsError
from fedretina.exchange.encryption import SERVER_FILE, SITE_FILE, cipher_for, new_keys
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order, Payload, Stamp, tensors_bytes, tensors_digest
from fedretina.exchange.policy import require_numbers
from fedretina.flare import whitelist_filter
from fedretina.flare.whitelist_filter import WhitelistFilter
from fedretina.flare.wire import pack_order, pack_payload, unpack_order, unpack_payload
from fedretina.local.heads_from_sums import packed
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.policy import GaussianNoise, PolicySettings, SumsNoise
from fedretina.settings.site import ServerSettings, SiteSettings


def passed(direction, message, way, settings):
    """What a filter lets through: on the way in or out of the end that has these settings."""
    guard = WhitelistFilter(direction, scope=True)
    guard._settings = settings
    fl_ctx = FLContext()
    fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, "north", private=False, sticky=False)
    fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, way, private=True, sticky=False)
    return guard.process(message, fl_ctx)


@pytest.fixture
def wire(tiny, tmp_path, monkeypatch):
    """A site's filters, and a message of a run whose updates leave as int4."""
    experiment = tiny(row="fedavg", exchange={"codec": "int4"})
    net = build_network(experiment.network, 2, 1)
    parts = partition_of(experiment, net)
    encoding = encoding_of(experiment, parts)
    sent = {key: net.state_dict()[key] for key in parts.travelling}
    made = encoding.encode({key: tensor + 1e-3 for key, tensor in sent.items()}, Base.up(sent), {}, {})
    monkeypatch.setattr(whitelist_filter, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(whitelist_filter, "require_known_filters", lambda _: None)
    stamp = Stamp("spring", "train", 0, 0, experiment.digest(parts))

    def order(tensors):
        message = pack_order(Order("train", stamp, None, None), tensors)
        return unpack_order(passed("order", message, FilterKey.IN, SiteSettings(state_root=tmp_path)))[1]

    def answer(tensors):
        message = pack_payload(Payload(tensors, {"theta": 0.5, "images": 9.0}, stamp))
        return unpack_payload(passed("answer", message, FilterKey.OUT, SiteSettings(state_root=tmp_path))).tensors

    return order, answer, sent, {**sent, **made.frames}, max(made.frames)


def test_an_order_comes_whole_or_encoded_and_an_answer_leaves_encoded_alone(wire, tmp_path):
    order, answer, sent, frames, key = wire
    assert tensors_digest(order(sent)) == tensors_digest(sent)
    assert tensors_digest(order(frames)) == tensors_digest(frames)
    left = answer(frames)
    (line,) = Ledger(tmp_path / "spring" / "north" / "ledger.jsonl").lines()
    assert (line["bytes"], line["digest"]) == (tensors_bytes(left), tensors_digest(left))  # of what leaves, encoded
    assert line["bytes"] < tensors_bytes(sent)
    with pytest.raises(RefusedError, match=f"{key}.* must travel encoded"):
        answer({**frames, key: sent[key]})


@pytest.mark.attack(
    "a hostile server",
    "an encoded tensor that claims to be longer than any of that size can be",
    "the site's filter refuses it before it is unpacked",
)
def test_a_frame_that_is_too_long_does_not_come_in(wire):
    order, _, _, frames, key = wire
    with pytest.raises(RefusedError, match=f"{key}.* cannot be decoded: it holds 50000000 bytes, expected 5 to"):
        order({**frames, key: torch.zeros(50_000_000, dtype=torch.uint8)})


def test_sums_pass_an_end_with_keys_under_encryption_alone(tiny, tmp_path, monkeypatch):
    """At the site and at the server; a run over FLARE without keys: tests/flare/test_weights_file.py."""
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    experiment = tiny(row="analytic", phases=[{"name": "sums", "sums": {"features": 8}}])
    monkeypatch.setattr(whitelist_filter, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(whitelist_filter, "require_known_filters", lambda _: None)
    new_keys(tmp_path)
    cipher = cipher_for(experiment.exchange, tmp_path / SITE_FILE, private=True, sums=experiment.sums)
    parts = partition_of(experiment, build_on_meta(experiment.network, experiment.head_width or 2))
    generator = torch.Generator().manual_seed(1)
    phi = torch.randn(40, 9, generator=generator, dtype=torch.float64)
    phi[:, -1] = 1
    plain = packed(Sums.of(phi, torch.eye(5, dtype=torch.float64).repeat(8, 1), False))
    assert plain.keys() == set(parts.sums)
    sealed = {key: cipher.seal(tensor) for key, tensor in plain.items()}
    stamp = Stamp("spring", "sums", 0, 0, experiment.digest(parts))
    policy = PolicySettings(kinds=("sums",))

    def through(tensors, way, keys):
        site = SiteSettings(state_root=tmp_path, policy=policy, he_keys=keys and tmp_path / SITE_FILE)
        server = ServerSettings(state_root=tmp_path, he_keys=keys and tmp_path / SERVER_FILE)
        monkeypatch.setattr(whitelist_filter, "load_server_settings", lambda _: server)
        return unpack_payload(passed("answer", pack_payload(Payload(tensors, {}, stamp)), way, site)).tensors

    for way in (FilterKey.OUT, FilterKey.IN):
        assert tensors_digest(through(sealed, way, True)) == tensors_digest(sealed)
        assert tensors_digest(through(plain, way, None)) == tensors_digest(plain)
        with pytest.raises(RefusedError, match="must travel encrypted"):
            through(plain, way, True)
        with pytest.raises(RefusedError, match=r"torch\.uint8.* not what the network has there"):
            through(sealed, way, None)


def test_a_policy_that_changes_numbers_is_refused_before_a_round_where_they_leave_encoded_or_encrypted(tiny):
    def asked(policy, encrypted=False, **words):
        experiment = tiny(**words)
        net = build_on_meta(experiment.network, experiment.head_width or 2)
        require_numbers(policy, experiment.exchange.codec, partition_of(experiment, net, encrypted))

    noise = GaussianNoise(kind="gaussian", clip=1.0, multiplier=1.0)
    sealed = {"row": "fedavg", "grades": 5, "exchange": {"personal": "nothing", "encrypt": "head"}}
    sums = {"row": "analytic", "phases": [{"name": "sums", "sums": {"features": 8, "bound": 3.0}}]}
    for words in ({"row": "fedavg", "exchange": {"codec": "int8"}}, sealed):
        asked(PolicySettings(), **words)
    for policy in (PolicySettings(mantissa_bits=7), PolicySettings(noise=noise)):
        with pytest.raises(SettingsError, match=r"exchange\.codec 'int8'.*after which nothing can be changed"):
            asked(policy, row="fedavg", exchange={"codec": "int8"})
        with pytest.raises(SettingsError, match=r"run's head leaves encrypted .*after which nothing can be changed"):
            asked(policy, **sealed)
        asked(policy, row="fedavg", grades=5, exchange={"personal": "nothing"})
        with pytest.raises(RefusedError, match=r"this site's policy (rounds what leaves|adds noise to updates)"):
            asked(policy, **sums)
    # The noise of sums is added before they are encrypted.
    asked(PolicySettings(noise=noise, sums_noise=SumsNoise(multiplier=1.0)), encrypted=True, **sums)
