"""The noise budget of a hospital: over the ledgers of every name that it had, and in a rehearsal over its own alone."""

import json

import pytest
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext

from fedretina.exchange.encryption import SITE_FILE, new_keys
from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order, Payload, Stamp
from fedretina.flare import executor, job_context, whitelist_filter
from fedretina.flare.job_context import RELEASE
from fedretina.flare.whitelist_filter import WhitelistFilter
from fedretina.flare.wire import WHY, pack_order, pack_payload
from fedretina.networks.build import build_network, build_on_meta
from fedretina.settings.policy import GaussianNoise, PolicySettings, SumsNoise
from fedretina.settings.site import PROPERTY, SiteSettings

NOISE = GaussianNoise(kind="gaussian", clip=0.1, multiplier=2.0, delta=1e-6, max_epsilon=7.0)  # one costs 5.8, two 8.4
KIT, NONE = {PROPERTY: {"site_file": "site.yaml"}}, {"other": {}}


@pytest.fixture
def release(tiny, tmp_path, monkeypatch):
    """Let a site of a name answer one round of a run under the policy; gives the reply."""
    experiment = tiny(row="fedavg")
    net = build_network(experiment.network, 2, 1)
    parts = partition_of(experiment, net)
    sent = {key: net.state_dict()[key] for key in parts.travelling}
    monkeypatch.setattr(whitelist_filter, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(whitelist_filter, "require_known_filters", lambda _: None)

    def released(site, run, properties=KIT, own=True):
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
        fl_ctx.set_prop(FLContextKey.SCOPE_PROPERTIES, properties, private=True, sticky=False)
        stamp = Stamp(run, "train", 0, 0, experiment.digest(parts))
        moved = {key: tensor + len(run) * 1e-3 for key, tensor in sent.items()}
        messages = {
            "order": (FilterKey.IN, pack_order(Order("train", stamp, None, None), sent)),
            "answer": (FilterKey.OUT, pack_payload(Payload(moved, {"theta": 0.5}, stamp))),
        }
        for direction, (way, message) in messages.items():
            guard = WhitelistFilter(direction, scope=True)
            policy = PolicySettings(noise=NOISE, kinds=frozenset(parts.kinds[key] for key in sent))
            guard._settings = SiteSettings(state_root=tmp_path if own else None, policy=policy)
            fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, way, private=True, sticky=False)
            reply = guard.process(message, fl_ctx)
        return reply

    return released


def spent(tmp_path, run, site):
    (line,) = [line for line in Ledger(tmp_path / run / site / "ledger.jsonl").lines() if "privacy" in line]
    return line["privacy"]["epsilon_so_far"]


def test_a_hospital_that_was_renamed_has_the_budget_that_it_has_left(release, tmp_path):
    assert release("site-old", "spring").get_return_code() == ReturnCode.OK
    assert spent(tmp_path, "spring", "site-old") == pytest.approx(5.76, abs=0.01)
    refused = release("site-1", "summer-1")
    assert refused.get_return_code() != ReturnCode.OK
    assert "privacy budget is spent: with this update epsilon would be 8.43" in refused.get_header(WHY)


def test_a_release_that_is_sent_again_under_the_new_name_costs_nothing(release, tmp_path):
    release("site-old", "spring")
    assert release("site-1", "summer").get_return_code() == ReturnCode.OK  # the same numbers, of the same secret
    assert spent(tmp_path, "summer", "site-1") == spent(tmp_path, "spring", "site-old")


@pytest.mark.parametrize("rehearsal", ["simulator", "its root", "its site file"])
def test_in_a_rehearsal_each_site_of_one_folder_has_its_own(release, tmp_path, monkeypatch, rehearsal):
    own, properties = True, KIT
    if rehearsal == "simulator":
        monkeypatch.setattr(job_context, "simulated", lambda _: True)
    if rehearsal == "its root":
        monkeypatch.setenv(job_context.STATE_ROOT, str(tmp_path))
        own, properties = False, NONE
    if rehearsal == "its site file":
        properties = NONE
    assert release("site-1", "spring", properties, own).get_return_code() == ReturnCode.OK
    assert release("site-2", "summer-1", properties, own).get_return_code() == ReturnCode.OK
    assert json.loads((tmp_path / "summer-1" / "site-2" / "ledger.jsonl").read_text())["privacy"]
    assert release("site-2", "autumn-22", properties, own).get_return_code() != ReturnCode.OK


@pytest.mark.attack(
    "a hostile server",
    "ask for a site's encrypted sums again and again, to spend its noise budget",
    "each answer holds the same noised sums, and costs the budget once",
)
@pytest.mark.parametrize("trainer", ["inline", "child"])
def test_noised_sums_that_leave_encrypted_again_cost_once(tiny, tmp_path, monkeypatch, trainer):
    pytest.importorskip("tenseal", reason="TenSEAL (extra `he`) is not installed")
    experiment = tiny(
        row="analytic", phases=[{"name": "sums", "sums": {"features": 8, "bound": 3.0}}], phantom_images=60
    )
    new_keys(tmp_path)
    noise = SumsNoise(multiplier=5.0, max_epsilon=1.2)  # one costs 0.98, two 1.40
    settings = SiteSettings(
        state_root=tmp_path,
        trainer=trainer,
        he_keys=tmp_path / SITE_FILE,
        policy=PolicySettings(kinds=("sums",), sums_noise=noise),
    )
    monkeypatch.setattr(whitelist_filter, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(whitelist_filter, "require_known_filters", lambda _: None)
    monkeypatch.setattr(executor, "load_experiment", lambda *_: experiment)
    monkeypatch.setattr(executor, "load_site_settings", lambda _: settings)
    parts = partition_of(experiment, build_on_meta(experiment.network), encrypted=True)

    def through(direction, message, fl_ctx):
        guard = WhitelistFilter(direction, scope=True)
        guard._settings = settings
        way = FilterKey.IN if direction == "order" else FilterKey.OUT
        fl_ctx.set_prop(FLContextKey.FILTER_DIRECTION, way, private=True, sticky=False)
        return guard.process(message, fl_ctx)

    def answered(host, run, attempt):
        """An order through the site's filters and its trainer, as FLARE leads it."""
        fl_ctx = FLContext()
        fl_ctx.set_prop(ReservedKey.IDENTITY_NAME, "north", private=False, sticky=False)
        fl_ctx.set_prop(FLContextKey.SCOPE_PROPERTIES, KIT, private=True, sticky=False)
        stamp = Stamp(run, "sums", 0, attempt, experiment.digest(parts))
        order = through("order", pack_order(Order("sums", stamp, None, None), {}), fl_ctx)
        return through("answer", host.handle(order, fl_ctx, lambda: False), fl_ctx)

    def lines(run):
        return Ledger(tmp_path / run / "north" / "ledger.jsonl").lines()

    for attempts in ((0, 1), (2,)):  # a step that is done again, and a site that starts anew
        host = executor.SiteHost("experiment.yaml")
        for attempt in attempts:
            reply = answered(host, "spring", attempt)
            assert reply.get_return_code() == ReturnCode.OK, reply.get_header(WHY)
            assert RELEASE not in str(reply)
        host.close()
    host = executor.SiteHost("experiment.yaml")  # another run of the same images and the same job
    assert answered(host, "summer", 0).get_return_code() == ReturnCode.OK
    host.close()
    left = lines("spring") + lines("summer")
    assert len({line["digest"] for line in left}) == len(left) == 4
    assert len({line["release"] for line in left}) == 1
    assert [line["privacy"]["epsilon_so_far"] for line in left] == [pytest.approx(0.98, abs=0.01)] * 4
