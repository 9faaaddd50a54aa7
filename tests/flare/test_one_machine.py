"""One machine per site: what is noted of a second one, and what of FLARE the guard is built on."""

import inspect
import re
import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.sfm.sfm_endpoint import SfmEndpoint
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.client import fed_client_base
from nvflare.private.fed.client.communicator import Communicator
from nvflare.private.fed.server.fed_server import FederatedServer

from fedretina.errors import SettingsError
from fedretina.flare.one_machine import OneMachine
from fedretina.flare.one_machine_site import OneMachineSite
from fedretina.kit.second_machine import ONGOING_S, SecondMachine, SecondMachines


@pytest.fixture
def hands():
    """A clock that stands still until it is told."""
    return [1000.0]


@pytest.fixture
def seen(hands):
    return SecondMachines(clock=lambda: hands[0])


def test_a_second_machine_is_told_at_once_and_then_once_a_minute(seen, hands):
    told = []
    for _ in range(13):
        told.append(seen.refused("site-1", "10.0.0.2", "10.0.0.1")[1])
        hands[0] += 10
    assert told == [number % 6 == 0 for number in range(13)]
    assert seen.current() == [SecondMachine("site-1", "10.0.0.2", "10.0.0.1", 1000.0, 1120.0, 13, True)]
    assert "is being refused (13 times since 1970-01-01T00:16:40+00:00)" in seen.current()[0].words()


def test_it_is_remembered_for_a_day_and_a_new_one_is_counted_anew(seen, hands):
    seen.refused("site-1", "10.0.0.2", "10.0.0.1")
    hands[0] += ONGOING_S
    assert "was refused until 1970-01-01T00:16:40+00:00" in seen.current()[0].words()
    seen.refused("site-1", "10.0.0.3", "10.0.0.1")
    assert seen.current()[0].times == 1
    hands[0] += 24 * 3600
    assert seen.current() == []


def test_what_a_server_says_is_read_or_dropped(seen):
    found, _ = seen.refused("site-1", "10.0.0.2", "10.0.0.1")
    assert SecondMachine.read(found.record()) == found
    for words in (None, [], {}, {**found.record(), "more": 1}, {**found.record(), "times": "many"}):
        assert SecondMachine.read(words) is None


def in_code_of(part, before):
    """The last number that follows some words in FLARE's code, where it has no name."""
    return float(re.findall(rf"{re.escape(before)}(\d+(?:\.\d+)?)\)", inspect.getsource(part))[-1])


def test_all_of_it_happens_within_a_minute_by_the_waits_that_are_configured():
    heartbeat_s = in_code_of(client_train, 'get("heart_beat_interval", ')
    lost_s = in_code_of(fed_client_base, 'get("maint_msg_timeout", ')  # for an answer that never comes
    after_a_failed_one_s = in_code_of(Communicator.send_heartbeat, "time.sleep(")
    answer_s = OneMachine()._answer_s
    noticed = conn_manager.MAX_WAIT + answer_s  # the newcomer's longest pause, then the first one's longest silence
    assert noticed < ONGOING_S  # so that it does not seem over between two attempts
    goes_on = max(noticed, lost_s) + after_a_failed_one_s + heartbeat_s
    assert goes_on < 60
    for wrong in (0, 31):
        with pytest.raises(SettingsError, match="answer_s is from 1 to 30"):
            OneMachine(answer_s=wrong)


def test_flare_has_the_names_that_the_guard_takes():
    manager = conn_manager.ConnManager(Endpoint("server"))
    for name in ("process_frame_task", "sfm_endpoints", "sfm_conns", "identity_resolver", "get_dict_payload"):
        assert hasattr(manager, name)
    assert manager.local_endpoint.name == "server"
    assert SfmEndpoint(manager.local_endpoint).connections == []
    for name in ("send_heartbeat", "send_dict", "get_name"):
        assert callable(getattr(SfmConnection, name))
    assert callable(FederatedServer.remove_client_data)


@pytest.mark.attack(
    "a hostile site",
    "open connection after connection in names of its jobs, each of which the server would wait for",
    "the server waits for eight of them, the others are closed",
)
def test_one_site_does_not_keep_all_threads_waiting(monkeypatch):
    guard, closed = OneMachine(answer_s=1), []
    for number in range(8):
        guard._asked[f"site-1.{number}"] = threading.Event()
    newcomer = SimpleNamespace(conn=SimpleNamespace(close=lambda: closed.append(True)))
    monkeypatch.setattr(guard, "_holder", lambda name: object())
    monkeypatch.setattr(guard, "_claimed", lambda *_: "site-1.8")
    assert not guard._admit(newcomer, b"")
    assert (closed, len(guard._asked)) == ([True], 8)
    looked_at = []
    monkeypatch.setattr(guard, "_claimed", lambda *_: "site-2.0")
    monkeypatch.setattr(guard, "_answers", lambda *_: looked_at.append(True) or True)
    monkeypatch.setattr(guard, "_refuse", lambda *_: None)
    assert not guard._admit(newcomer, b"")
    assert looked_at == [True]


@pytest.mark.parametrize("component", [OneMachine, OneMachineSite])
def test_with_another_flare_neither_end_starts(component):
    context = FLContext()
    context.set_prop(FLContextKey.SITE_OBJ, object(), private=True)
    with pytest.raises(UnsafeComponentError, match="this FLARE is not the one that"):
        component().handle_event(EventType.SYSTEM_BOOTSTRAP, context)
