"""Between an order and a site's images: nothing is opened and nothing leaves without approval; no FLARE process."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import torch
import yaml
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from signed_kit import certificate, write_kit
from simulation import SMALL

from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order, Payload, Stamp
from fedretina.flare.executor import SiteHost
from fedretina.flare.whitelist_filter import WhitelistFilter
from fedretina.flare.wire import APPROVED, WAITS, pack_order, pack_payload, pack_question, unpack_payload, why
from fedretina.kit.approvals import Approvals
from fedretina.kit.audit import AuditLog
from fedretina.kit.site_check import approval_finding, site_settings
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.networks.build import build_on_meta
from fedretina.settings.experiment import Experiment

EXPERIMENT = Experiment.resolve(SMALL)
NET = build_on_meta(EXPERIMENT.network, 2)
PARTS = partition_of(EXPERIMENT, NET)
STAMP = Stamp("spring", "train", 0, 0, EXPERIMENT.digest(PARTS))
ORDER = Order("train", STAMP, None, None)
LEAD = "lead@consortium.example"


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    kit = write_kit(folder, approval="required", state_root=str(tmp_path / "runs"))
    app = folder / "job-1" / "app"
    (app / "config").mkdir(parents=True)
    (app / "config" / "experiment.yaml").write_text(yaml.safe_dump(SMALL))
    (app / ".__nvfl_submitter.crt").write_bytes(certificate(LEAD))
    return kit


@pytest.fixture
def context(kit):
    """What FLARE's context says in the process of a job at the site."""
    made = FLContext()
    app = kit.folder / "job-1" / "app"
    workspace = SimpleNamespace(
        get_root_dir=lambda: str(kit.folder),
        get_app_dir=lambda _: str(app),
        get_site_config_dir=lambda: str(kit.folder / "local"),
    )
    made.get_engine = lambda: SimpleNamespace(get_workspace=lambda: workspace)
    made.set_prop(ReservedKey.RUN_NUM, "job-1", private=False, sticky=True)
    made.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=False)
    made.set_prop(FLContextKey.SCOPE_PROPERTIES, kit.local("privacy.json")["scopes"][0]["properties"])
    made.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.OUT, private=True, sticky=False)
    made.set_prop("fedretina_stamp", STAMP, private=True, sticky=False)
    return made


@pytest.fixture
def host(monkeypatch):
    """A site's host that says when it opens its data."""
    made = SiteHost("experiment.yaml")
    made.opened = 0

    def opened(run, fl_ctx):
        made.opened += 1
        return SimpleNamespace(handle=lambda order, tensors, stop: Payload({}, {"theta": 0.5}, order.stamp))

    monkeypatch.setattr(made, "_open", opened)
    return made


def ask(host, context, message=None):
    return host.handle(pack_order(ORDER, {}) if message is None else message, context, lambda: False)


def approve(kit):
    plan = WaitingPlans(kit).find(None)
    number = Approvals(kit).decide(plan.asked, True, "Dr. Eye", "vote 7", _later())
    WaitingPlans(kit).drop(plan.asked)
    return number


def _later():
    return datetime.now(UTC).date() + timedelta(days=1)  # midnight may come before it is looked at


@pytest.mark.attack(
    "a hostile server",
    "start again a job that a lead signed before, or one with another admin's key, at a site that asks for approval",
    "nothing of the site is opened before its hospital has said yes to that run of that plan",
)
def test_nothing_is_opened_before_the_hospital_has_said_yes(kit, host, context):
    for _ in range(3):
        assert ask(host, context).get_return_code() == WAITS
    assert host.opened == 0
    (plan,) = WaitingPlans(kit).all()
    assert (plan.asked.run, plan.asked.submitter, plan.role) == ("spring", LEAD, "lead")
    assert plan.asked.plan == EXPERIMENT.settings_digest()
    events = [event["event"] for event in AuditLog(kit.folder).verify().events]
    assert events == ["approval asked for"]  # once, however often the server asks
    assert "1 plan waits" in approval_finding(kit, site_settings(kit)).found
    approve(kit)
    assert ask(host, context, pack_question(ORDER)).get_return_code() == APPROVED
    assert host.opened == 0  # a question is no order
    assert unpack_payload(ask(host, context)).scalars == {"theta": 0.5}
    again = pack_order(ORDER._replace(stamp=STAMP._replace(run="spring-again")), {})
    assert ask(host, context, again).get_return_code() == WAITS
    assert host.opened == 1


def test_a_plan_that_changed_under_the_same_run_asks_again(kit, host, context):
    ask(host, context)
    approve(kit)
    path = kit.folder / "job-1" / "app" / "config" / "experiment.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "phases": [{"name": "train", "rounds": 200}]}))
    assert ask(host, context).get_return_code() == WAITS
    assert host.opened == 0
    assert WaitingPlans(kit).find("spring").experiment.phases[0].rounds == 200


def test_an_approval_that_ends_in_mid_run_is_asked_for_again(kit, host, context, monkeypatch):
    ask(host, context)
    approve(kit)
    assert ask(host, context).get_return_code() == "OK"

    class DayAfterTomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=2)

    monkeypatch.setattr("fedretina.kit.approvals.datetime", DayAfterTomorrow)
    assert ask(host, context).get_return_code() == WAITS
    assert host.opened == 1
    assert WaitingPlans(kit).find("spring").asks
    assert len([event for event in AuditLog(kit.folder).verify().events if event["event"] == "approval asked for"]) == 2


def test_a_yes_in_the_moment_of_the_question_leaves_nothing_waiting(kit, host, context, monkeypatch):
    put = WaitingPlans.put

    def slow(self, asked, *rest):
        Approvals(kit).decide(asked, True, "Dr. Eye", "vote 7", _later())
        return put(self, asked, *rest)

    monkeypatch.setattr(WaitingPlans, "put", slow)
    assert ask(host, context).get_return_code() == WAITS  # it is asked again in a second
    assert WaitingPlans(kit).all() == []


def test_a_plan_that_no_job_asks_for_any_more_is_no_fault(kit, host, context):
    ask(host, context)
    (plan,) = WaitingPlans(kit).all()
    record = json.loads(plan.path.read_text())
    plan.path.write_text(json.dumps({**record, "last": record["last"] - 7200}))
    finding = approval_finding(kit, site_settings(kit))
    assert finding.good
    assert "1 that no job asks for any more" in finding.found


def test_a_no_and_a_withdrawal_say_so_and_not_why(kit, host, context):
    ask(host, context)
    approve(kit)
    assert ask(host, context).get_return_code() == "OK"
    Approvals(kit).withdraw("spring", "Dr. Eye", "patient Margarete objects")
    for message in (None, pack_question(ORDER)):
        reply = ask(host, context, message)
        assert why(reply).startswith("the hospital has withdrawn its approval of this run")
        assert "Margarete" not in json.dumps(dict(reply))
    other = ORDER._replace(stamp=STAMP._replace(run="autumn"))
    ask(host, context, pack_order(other, {}))
    plan = WaitingPlans(kit).find("autumn")
    Approvals(kit).decide(plan.asked, False, "Dr. Eye", "no vote", None)
    assert why(ask(host, context, pack_order(other, {}))).startswith("the hospital has refused this run")


def test_an_answer_that_was_worked_on_while_the_approval_was_withdrawn_stays(kit, host, context, tmp_path, monkeypatch):
    ask(host, context)
    approve(kit)
    monkeypatch.setattr("fedretina.flare.whitelist_filter.require_known_filters", lambda fl_ctx: None)
    guard = WhitelistFilter("answer", scope=True)
    tensors = {key: torch.zeros(PARTS.shapes[key], dtype=PARTS.dtypes[key]) for key in PARTS.shared}
    answer = pack_payload(Payload(tensors, {"theta": 0.5}, STAMP))
    assert unpack_payload(guard.process(answer, context)).tensors
    Approvals(kit).withdraw("spring", "Dr. Eye", "vote ended")
    left = guard.process(pack_payload(Payload(tensors, {"theta": 0.5}, STAMP)), context)
    assert "withdrawn its approval" in why(left)
    ledger = [json.loads(line) for line in (tmp_path / "runs/spring/site-1/ledger.jsonl").read_text().splitlines()]
    assert [bool(line["tensors"]) for line in ledger] == [True, False]
    (kit.folder / "approvals" / "approvals.jsonl").unlink()  # nobody has decided any more: no words, no line
    left = guard.process(pack_payload(Payload(tensors, {"theta": 0.5}, STAMP)), context)
    assert left.get_return_code() == WAITS
    assert len((tmp_path / "runs/spring/site-1/ledger.jsonl").read_text().splitlines()) == 2


def test_a_code_passes_the_filter_without_a_word_or_a_line(context, host, tmp_path, monkeypatch):
    monkeypatch.setattr("fedretina.flare.whitelist_filter.require_known_filters", lambda fl_ctx: None)
    left = WhitelistFilter("answer", scope=True).process(ask(host, context), context)
    assert left.get_return_code() == WAITS
    assert not (tmp_path / "runs").exists()
    order = WhitelistFilter("order", scope=True)
    context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.IN, private=True, sticky=False)
    assert order.process(pack_question(ORDER), context)


def test_a_list_that_cannot_be_read_lets_nothing_begin(kit, host, context, caplog):
    ask(host, context)
    approve(kit)
    path = kit.folder / "approvals" / "approvals.jsonl"
    text = path.read_text()
    for damaged in ("no line\n", "{}\n", '{"approval": {"decision": "approved"}}\n'):
        path.write_text(damaged + text)
        reply = ask(host, context)
        assert why(reply).startswith("this site's list of approvals cannot be read")
    assert host.opened == 0
    assert str(path) in caplog.text


def test_a_site_without_a_kit_is_told_how_to_mend_it(kit, host, context):
    (kit.folder / "startup" / "fed_client.json").unlink()
    assert "needs a startup kit" in why(ask(host, context))
