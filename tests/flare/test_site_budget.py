"""The noise budget of a hospital: over the ledgers of every name that it had, and in a rehearsal over its own alone."""

import json

import pytest
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext

from fedretina.exchange.ledger import Ledger
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order, Payload, Stamp
from fedretina.flare import job_context, whitelist_filter
from fedretina.flare.whitelist_filter import WhitelistFilter
from fedretina.flare.wire import WHY, pack_order, pack_payload
from fedretina.networks.build import build_network
from fedretina.settings.policy import GaussianNoise, PolicySettings
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
