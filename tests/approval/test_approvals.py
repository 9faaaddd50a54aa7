"""A site's list of approvals: what a decision covers, when it ends, and that only the site's own key makes one."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from signed_kit import write_kit

from fedretina.errors import NotFoundError, SettingsError
from fedretina.kit import approvals
from fedretina.kit.approvals import Approvals, AskedPlan
from fedretina.settings.experiment import Experiment

LATER = datetime.now(UTC).date() + timedelta(days=30)
LEAD = "lead@consortium.example"
WORDS = {"row": "feduaa", "phases": [{"name": "train", "rounds": 3}]}


def asked(run="spring", submitter=LEAD, **words):
    return AskedPlan.of(Experiment.resolve({**WORDS, **words}), run, submitter)


@pytest.fixture
def kit(tmp_path):
    return write_kit(tmp_path / "kit")


@pytest.fixture
def held(kit):
    return Approvals(kit)


def approve(held, plan, until=LATER, open_=()):
    return held.decide(plan, True, "Dr. Eye", "ethics vote 7", until, open_)


def test_a_yes_is_for_one_run_of_one_plan(held):
    assert held.state(asked()).state == "waiting"
    approve(held, asked())
    assert held.state(asked()).state == "approved"
    for other in (
        asked(run="spring-again"),  # an old signed job that is started anew gets another run
        asked(seed=2),
        asked(phases=[{"name": "train", "rounds": 4}]),
        asked(restart={"step": "train-0001", "mark": "abcd"}),
    ):
        assert held.state(other).state == "waiting", other


def test_a_yes_ends_with_its_last_day(held, monkeypatch):
    now, a_day = datetime.now(UTC), timedelta(days=1)
    monkeypatch.setattr(approvals, "datetime", SimpleNamespace(now=lambda zone: now))  # midnight does not come between
    today = now.date()
    approve(held, asked(), today)
    assert held.state(asked()).state == held.state(asked(), today).state == "approved"
    assert held.state(asked(), today + a_day).state == "ended"
    with pytest.raises(SettingsError, match="today or later"):
        approve(held, asked(), today - a_day)


def test_a_no_and_a_withdrawal_hold_until_somebody_says_yes_again(held):
    held.decide(asked(), False, "Dr. Eye", "no vote", None)
    assert held.state(asked()).state == "refused"
    number = approve(held, asked())
    assert held.state(asked()).state == "approved"
    held.withdraw(number, "Dr. Eye", "vote ended")
    assert held.state(asked()).state == "withdrawn"
    approve(held, asked())
    assert held.state(asked()).state == "approved"
    held.withdraw("spring", "Dr. Eye", "vote ended")
    assert held.state(asked()).state == "withdrawn"
    assert held.state(asked(seed=2)).state == "withdrawn"  # it was the run that was withdrawn
    with pytest.raises(NotFoundError, match="no approval"):
        held.withdraw("autumn", "Dr. Eye", "typed wrongly")


def test_a_standing_yes_covers_what_differs_in_the_named_settings_alone(held):
    number = approve(held, asked(), open_=["seed", "phases.rounds"])
    covered = asked(run="summer", seed=9, phases=[{"name": "train", "rounds": 50}])
    assert held.state(covered).state == "approved"
    assert held.state(asked(run="summer", submitter="other@consortium.example")).state == "waiting"
    assert held.state(asked(run="summer", exchange={"batchnorm": "shared_all"})).state == "waiting"
    back = asked(run="summer", restart={"step": "train-0001", "mark": "abcd"})
    assert held.state(back).state == "waiting"  # it does steps again
    with pytest.raises(NotFoundError, match="no run that one lets go on; the runs are spring, summer"):
        held.withdraw("sumer", "Dr. Eye", "typed wrongly", {"summer"})
    held.withdraw("summer", "Dr. Eye", "one run only", {"summer"})
    assert held.state(covered).state == "withdrawn"
    assert held.state(asked(run="autumn")).state == "approved"
    held.withdraw(number, "Dr. Eye", "all of them")
    assert held.state(asked(run="autumn")).state == "waiting"
    assert held.state(asked()).state == "withdrawn"


@pytest.mark.parametrize("name", ["exchange.personal", "exchange", "network", "phases", "phases.sums", "verdict"])
def test_what_decides_what_leaves_may_not_be_left_open(held, name):
    with pytest.raises(SettingsError, match="may not be left open"):
        approve(held, asked(), open_=[name])


def test_a_standing_yes_needs_a_signed_job_and_a_setting_that_there_is(held):
    with pytest.raises(SettingsError, match="not signed"):
        approve(held, asked(submitter=""), open_=["seed"])
    with pytest.raises(SettingsError, match=r"no setting training\.speed"):
        approve(held, asked(), open_=["training.speed"])


def lines(kit):
    return kit.folder / "approvals" / "approvals.jsonl"


@pytest.mark.attack(
    "a lead",
    "an approval written by hand, changed, or signed for another hospital",
    "it counts for nothing: only this site's key under the kit's authority makes one",
)
def test_an_approval_that_was_not_signed_here_counts_for_nothing(kit, held, tmp_path):
    approve(held, asked())
    text = lines(kit).read_text()
    lines(kit).write_text(text.replace(LATER.isoformat(), "2099-01-01"))
    assert held.state(asked()).state == "waiting"
    for name, authority in (("site-2", "authority"), ("site-1", "another authority")):
        other = write_kit(tmp_path / f"{name} of {authority}", name, authority)
        approve(Approvals(other), asked())
        made = json.loads(lines(other).read_text())
        made["approval"]["site"] = "site-1"
        lines(kit).write_text(json.dumps(made) + "\n")
        assert held.state(asked()).state == "waiting", (name, authority)
    lines(kit).write_text(text)
    assert held.state(asked()).state == "approved"


def test_a_withdrawal_whose_signature_does_not_hold_counts_all_the_same(kit, held):
    approve(held, asked())
    held.withdraw("spring", "Dr. Eye", "vote ended")
    lines(kit).write_text(lines(kit).read_text().replace("vote ended", "no reason"))
    assert held.state(asked()).state == "withdrawn"


def test_approvals_outlive_the_renewal_of_the_sites_certificate(kit, held, tmp_path):
    approve(held, asked())
    renewed = write_kit(tmp_path / "renewed")
    for name in ("client.crt",):
        (kit.folder / "startup" / name).write_bytes((renewed.folder / "startup" / name).read_bytes())
    assert held.state(asked()).state == "approved"
