"""How long the controller waits for a site, against tasks that end by themselves; no FLARE process."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply

from fedretina.errors import AWAITS
from fedretina.exchange.payload import Order, Stamp
from fedretina.flare.controller import RoundController
from fedretina.flare.server_run import ServerRun
from fedretina.flare.unreadable import UNREADABLE
from fedretina.flare.wire import APPROVED, WAITS

OK, DEAD, TIMEOUT = TaskCompletionStatus.OK, TaskCompletionStatus.CLIENT_DEAD, TaskCompletionStatus.TIMEOUT
GOES_ON = SimpleNamespace(triggered=False)


class Tasks:
    """Answers of sites on a clock of their own: after how many seconds, and as what FLARE ends the task."""

    quorum = 1

    def __init__(self, monkeypatch, **ends):
        self.now, self.ends, self.cancelled, self.refused = 0.0, ends, [], []
        self.asked, self.plan = tuple(ends), SimpleNamespace(learning=range(3))
        self.fetch = {}  # of who fetches its order, after how many seconds
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    @property
    def lacks(self):
        answered = [site for site, (seconds, status) in self.ends.items() if self.since(seconds) and status == OK]
        return max(self.quorum - len(answered), 0)

    def since(self, seconds):
        """Whether so many seconds of the step are over."""
        return self.now - self.began >= seconds

    def set(self):
        """Word of an answer, for which the controller would wake up."""

    def clear(self):
        """Forget it."""

    def wait(self, seconds):
        self.now += seconds

    def waited(self, controller, number):
        """Ask all in a step; give the seconds until it closed."""
        self.step, self.began = SimpleNamespace(number=number, task="train"), self.now
        make, sent = type(controller)._task, {}

        def wait(seconds):
            self.wait(seconds)
            for site, task in sent.items():
                if site in self.fetch and self.since(self.fetch[site]):
                    task.after_task_sent_cb(SimpleNamespace(task=task), FLContext())
                if self.since(self.ends[site][0]) and task.completion_status is None:
                    task.completion_status = self.ends[site][1]

        controller._task = lambda site, *how: sent.setdefault(site, make(controller, site, *how))
        controller._news = SimpleNamespace(clear=self.clear, set=self.set, wait=wait)
        controller.send = lambda task, fl_ctx, targets: None
        controller.cancel_task = lambda task, fl_ctx: self.cancelled.extend(
            site for site, one in sent.items() if one is task
        )
        controller._ask(self, GOES_ON, None)
        return self.now - self.began

    def refuse(self, site, why):
        self.refused.append(site)


@pytest.fixture
def controller():
    made = RoundController(["train", "validate", "finalise"], budget_s=3600, grace_s=5.0)
    made._missed = frozenset({"b"})
    return made


def test_a_round_waits_a_grace_for_who_missed_the_last_step(controller, monkeypatch):
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=(1000.0, OK))
    assert tasks.waited(controller, 2) == pytest.approx(6.0, abs=0.5)
    assert tasks.refused == tasks.cancelled == ["b"]


@pytest.mark.parametrize("ends", [(1000.0, OK), (30.0, DEAD), (3600.0, TIMEOUT)])
def test_a_round_waits_for_who_missed_the_last_step_and_has_fetched_its_order(controller, monkeypatch, ends):
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=ends)
    tasks.fetch["b"] = 4.0  # within the grace
    assert tasks.waited(controller, 2) == pytest.approx(ends[0], abs=0.5)
    assert tasks.refused == ([] if ends[1] == OK else ["b"])


def test_who_fetches_its_order_keeps_no_round_waiting_for_who_does_not(controller, monkeypatch):
    controller._missed = frozenset("bc")
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=(20.0, OK), c=(1000.0, OK))
    tasks.fetch["b"] = 0.0
    assert tasks.waited(controller, 2) == pytest.approx(25.0, abs=0.5)
    assert tasks.refused == tasks.cancelled == ["c"]


@pytest.mark.parametrize("ends", [(1000.0, OK), (30.0, DEAD), (3600.0, TIMEOUT)])
def test_no_grace_ends_a_round_below_its_quorum(controller, monkeypatch, ends):
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=ends)
    tasks.quorum = 2
    assert tasks.waited(controller, 2) == pytest.approx(ends[0], abs=0.5)


def test_a_step_that_comes_once_waits_for_who_missed_the_last_step(controller, monkeypatch):
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=(1000.0, OK))
    assert tasks.waited(controller, 4) == pytest.approx(1000.0, abs=0.5)
    assert tasks.refused == []


@pytest.mark.parametrize(("status", "seconds"), [(DEAD, 30.0), (TIMEOUT, 3600.0)])
def test_it_waits_no_longer_than_flare_does(controller, monkeypatch, status, seconds):
    tasks = Tasks(monkeypatch, a=(1.0, OK), b=(seconds, status))
    assert tasks.waited(controller, 4) == pytest.approx(seconds, abs=0.5)
    assert tasks.refused == ["b"]


class Hospitals(Tasks):
    """Sites that answer at once, some only that their hospital has not decided, until it has; one has no end."""

    def __init__(self, monkeypatch, quorum, **decided):
        super().__init__(monkeypatch, **dict.fromkeys(decided, (0.0, OK)))
        self.decided, self.quorum, self.log, self.answered, self.held = decided, quorum, [], set(), set()
        self.deaf = ()  # who answers nothing

    @property
    def lacks(self):
        return max(self.quorum - len(self.answered), 0)

    def hold(self, site):
        self.held.add(site)

    def waited(self, controller, number):
        self.step, began, hospitals = SimpleNamespace(number=number), self.now, self

        class Task:
            completion_status = None

            def __init__(self, site, coordinator, asking, question):
                self.site, self.held, self.question = site, asking.held, question

        def send(task, fl_ctx, targets):
            hospitals.log.append((task.site, task.question))
            if task.site in hospitals.deaf:
                return
            waits = hospitals.now - began < hospitals.decided[task.site]
            code = WAITS if waits else APPROVED if task.question else "OK"
            if task.held.takes(task.site, code, task.question):
                hospitals.hold(task.site)
            else:
                task.held.sites.discard(task.site)
                hospitals.answered |= {task.site} if code == "OK" else set()
            task.completion_status = OK

        controller._task, controller.send, controller._news = Task, send, self
        controller.cancel_task = lambda task, fl_ctx: self.cancelled.append(task.site)
        controller._ask(self, GOES_ON, None)
        return self.now - began


def test_a_step_that_lacks_its_quorum_waits_for_a_hospitals_approval_and_asks_more_and_more_rarely(
    controller, monkeypatch
):
    hospitals = Hospitals(monkeypatch, 2, a=0.0, c=7200.0)  # longer than the budget of a step
    assert 7200 <= hospitals.waited(controller, 0) <= 7231
    assert hospitals.answered == {"a", "c"}
    assert hospitals.refused == hospitals.cancelled == []
    asked = [question for site, question in hospitals.log if site == "c"]
    assert (asked[0], asked[-2], asked[-1]) == (False, True, False)  # its order, questions, its order again
    assert len(asked) < 250
    assert controller._missed == frozenset()


def test_who_missed_the_last_step_ends_none_that_waits_for_a_hospitals_approval(controller, monkeypatch):
    hospitals = Hospitals(monkeypatch, 2, a=0.0, b=0.0, c=7200.0)
    hospitals.deaf = ("b",)
    assert 7200 <= hospitals.waited(controller, 0) <= 7241  # the last question, and the grace
    assert hospitals.answered == {"a", "c"}
    assert hospitals.refused == hospitals.cancelled == ["b"]


def test_a_quorum_goes_on_without_a_hospital_that_has_not_decided(controller, monkeypatch):
    hospitals = Hospitals(monkeypatch, 1, a=0.0, c=7200.0)
    assert hospitals.waited(controller, 0) < 1
    assert (hospitals.answered, hospitals.held, hospitals.refused) == ({"a"}, {"c"}, [])
    assert controller._missed == frozenset()  # it is asked, and waited for, in the next step as all are


def test_too_few_hospitals_that_could_still_decide_end_the_step(controller, monkeypatch):
    hospitals = Hospitals(monkeypatch, 3, a=0.0, c=7200.0)
    assert hospitals.waited(controller, 0) < 1


def test_who_is_dead_in_one_workflow_is_reported_to_the_next(controller, monkeypatch):
    run, reported = ServerRun(), []
    for event, key, site in (
        (EventType.CLIENT_DISCONNECTED, FLContextKey.DISCONNECTED_CLIENT_NAME, "a"),
        (EventType.CLIENT_DISCONNECTED, FLContextKey.DISCONNECTED_CLIENT_NAME, "b"),
        (EventType.CLIENT_RECONNECTED, FLContextKey.RECONNECTED_CLIENT_NAME, "a"),
    ):
        context = FLContext()
        context.set_prop(key, site)
        run.handle_event(event, context)
    monkeypatch.setattr(run, "open", lambda fl_ctx: None)
    controller._server_run = lambda fl_ctx: run
    controller.communicator = SimpleNamespace(process_dead_client_report=lambda site, fl_ctx: reported.append(site))
    controller.start_controller(FLContext())
    assert reported == ["b"]


class Server:
    """Sites that answer at once, each under FLARE's lock, and a server that takes a while to check and store."""

    lacks = 0

    def __init__(self, sites, accept, ends=OK):
        self.asked, self.plan, self.refused = sites, SimpleNamespace(learning=range(3)), []
        self.ends = ends
        self.accept, self.handed, self.lock = accept, [], threading.Lock()
        self.replies = {}  # of who does not answer as it should: return code, and under whose name

    def refuse(self, site, why):
        self.refused.append((site, why))

    def waited(self, controller, number):
        self.step, server, make = SimpleNamespace(number=number, task="train"), self, controller._task
        controller._aggregator = lambda fl_ctx: server

        def task(site, coordinator, asking, question):
            found = make(site, coordinator, asking, question)
            if question:  # nobody answers it in its time
                found.completion_status = TIMEOUT
                self.handed.append(site)
                return found
            code, claimed = self.replies.get(site, (ReturnCode.OK, site))
            result = make_reply(code)
            result.set_peer_props({ReservedKey.IDENTITY_NAME: claimed})
            with self.lock:
                found.result_received_cb(SimpleNamespace(result=result), FLContext())
            self.handed.append(site)
            found.completion_status = self.ends
            return found

        controller._task, controller.send = task, lambda task, fl_ctx, targets: None
        controller._ask(self, GOES_ON, None)


def test_answers_are_taken_outside_flares_lock_and_a_step_waits_until_all_are(controller):
    begun, taken, free = threading.Event(), [], threading.Event()

    def accept(result, fl_ctx):
        begun.set()
        assert free.wait(30)
        taken.append(result.get_peer_prop(ReservedKey.IDENTITY_NAME, None))

    server = Server(("a", "b"), accept)
    asking = threading.Thread(target=server.waited, args=(controller, 2))
    asking.start()
    assert begun.wait(30)
    while server.handed != ["a", "b"]:  # FLARE's lock was given back for both while the first is being stored
        asking.join(0.01)
    assert server.lock.acquire(timeout=30)
    assert taken == []
    assert asking.is_alive()
    free.set()
    asking.join(30)
    assert not asking.is_alive()
    assert (taken, server.refused) == (["a", "b"], [])


@pytest.fixture
def noted(controller):
    """What the server notes of its sites, in order, while the first answer is being stored until `free` is set."""
    begun, free, found = threading.Event(), threading.Event(), []

    def accept(result, fl_ctx):
        begun.set()
        assert free.wait(30)
        found.append(("a", "taken"))

    server = Server(("a", "b"), accept)
    server.hold = lambda site: found.append((site, AWAITS))
    server.refuse = lambda site, why: found.append((site, why))
    controller._server_run = lambda fl_ctx: SimpleNamespace(note_progress=lambda: None)
    controller.cancel_task = lambda task, fl_ctx: None
    return SimpleNamespace(server=server, begun=begun, free=free, found=found)


@pytest.mark.parametrize(
    ("code", "claimed", "why"),
    [
        (WAITS, "b", AWAITS),
        (ReturnCode.OK, "another", "its answer came under another site's name."),
        (WAITS, "another", "its answer came under another site's name."),
    ],
)
def test_flares_lock_never_waits_for_an_answer_that_is_being_taken(controller, noted, code, claimed, why):
    server, noted.server.replies = noted.server, {"b": (code, claimed)}
    asking = threading.Thread(target=server.waited, args=(controller, 2))
    asking.start()
    assert noted.begun.wait(30)
    while server.handed != ["a", "b"]:
        asking.join(0.01)
    assert server.lock.acquire(timeout=30)
    assert noted.found == []
    noted.free.set()
    asking.join(30)
    assert noted.found == [("a", "taken"), ("b", why)]  # in the order of arrival, and before the step closes


def test_a_hospital_whose_last_question_nobody_answers_is_late(controller, noted, monkeypatch):
    monkeypatch.setattr("fedretina.flare.controller._FIRST_PAUSE_S", 0.01)
    server, noted.server.replies = noted.server, {"b": (WAITS, "b")}
    asking = threading.Thread(target=server.waited, args=(controller, 2))
    asking.start()
    while server.handed != ["a", "b", "b"]:  # the order, and the question whether it may have it by now
        asking.join(0.01)
    noted.free.set()
    asking.join(30)
    assert noted.found == [("a", "taken"), ("b", AWAITS), ("b", "it did not answer in time.")]


def test_an_answer_that_cannot_be_taken_is_refused_and_the_step_goes_on(controller):
    def accept(result, fl_ctx):
        raise ZeroDivisionError("/srv/patients/smith.jpg")

    server = Server(("a",), accept)
    server.waited(controller, 2)
    assert server.refused == [("a", "the server could not take its answer (ZeroDivisionError).")]


def test_a_step_ends_with_its_last_answer_though_flare_has_not_looked_yet():
    controller, taken = RoundController(["train"], budget_s=3600, task_check_period=300.0), []
    server = Server(("a", "b"), lambda result, fl_ctx: taken.append(result) or time.sleep(0.2), ends=None)
    began = time.monotonic()
    server.waited(controller, 2)
    assert time.monotonic() - began < 100
    assert (len(taken), server.refused, controller._missed) == (2, [], frozenset())


class Late:
    """A site whose order is still put together, or whose answer is still handed over, when its step has been closed."""

    lacks = 0

    def __init__(self, controller, monkeypatch):
        self.asked, self.plan, self.sent = ("a", "late"), SimpleNamespace(learning=range(3)), {}
        self.refused, self.held, self.ends = [], [], dict.fromkeys(self.asked)
        make = controller._task

        def task(site, *how):
            self.sent[site] = make(site, *how)
            self.sent[site].completion_status = self.ends[site]
            return self.sent[site]

        monkeypatch.setattr("fedretina.flare.controller.understood", lambda fl_ctx: True)
        controller._aggregator = lambda fl_ctx: SimpleNamespace(accept=lambda result, fl_ctx: True)
        controller._task, controller.send = task, lambda task, fl_ctx, targets: self.send(task)
        controller.cancel_task = lambda task, fl_ctx: None

    def begin(self, number):
        self.step = SimpleNamespace(number=number, task="train", round=number, rounds=3)

    def order(self, site):
        return Order("train", Stamp("r", "train", self.step.round, 0, "d"), None, None)

    def same_for(self, site):
        return "whole"

    def down(self, site):
        return {"w": torch.full((4,), float(self.step.number))}

    def refuse(self, site, why):
        self.refused.append((site, why))

    def packed(self, site):
        """The numbers in the message of a site's order."""
        task = self.sent[site]
        task.before_task_sent_cb(SimpleNamespace(task=task), FLContext())
        return from_shareable(task.data).data["w"].tolist()


def answer(task, site):
    result = make_reply(ReturnCode.OK)
    result.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    task.result_received_cb(SimpleNamespace(result=result), FLContext())
    task.completion_status = OK


def test_an_order_that_is_put_together_while_its_step_closes_is_not_sent_in_the_next(controller, monkeypatch):
    late, closed, packing = Late(controller, monkeypatch), threading.Event(), threading.Barrier(2, timeout=30)
    down, threads, found = late.down, [], []

    def slow(site):
        tensors = down(site)
        if site == "late":
            packing.wait()
            assert closed.wait(30)
        return tensors

    def send(task):
        if task is late.sent.get("late"):
            threads.append(threading.Thread(target=late.packed, args=("late",)))
            threads[-1].start()
            packing.wait()
            task.completion_status = TIMEOUT
        else:
            answer(task, "a")

    late.down, late.send = slow, send
    late.begin(0)
    controller._ask(late, GOES_ON, None)
    closed.set()
    threads[0].join(30)
    late.down, late.send = down, lambda task: found.append(late.packed("a")) or answer(task, "a")
    late.asked = ("a",)
    late.begin(1)
    controller._ask(late, GOES_ON, None)
    assert found == [[1.0] * 4]


def test_an_answer_that_comes_while_its_step_closes_is_none_to_the_next(controller, monkeypatch):
    late, waits = Late(controller, monkeypatch), []
    late.ends["late"] = TIMEOUT
    late.send = lambda task: answer(task, "a") if task is late.sent["a"] else None
    late.begin(0)
    controller._ask(late, GOES_ON, None)
    before, late.ends["late"] = late.sent["late"], None

    def send(task):
        if task is late.sent["a"]:
            answer(before, "late")  # FLARE had begun to hand it over
            answer(task, "a")

    def wait(seconds):
        time.sleep(0.01)
        waits.append(seconds)
        if len(waits) == 50:
            late.sent["late"].completion_status = TIMEOUT

    late.send = send
    controller._missed = frozenset()
    controller._news = SimpleNamespace(clear=lambda: None, set=lambda: None, wait=wait)
    late.begin(1)
    controller._ask(late, GOES_ON, None)
    assert len(waits) >= 50  # it is asked, and waited for


def test_an_answer_that_cannot_be_unpacked_is_the_sites_own_in_the_running_step(controller, monkeypatch):
    late = Late(controller, monkeypatch)
    controller._server_run = lambda fl_ctx: SimpleNamespace(coordinator=late)

    def unreadable(site):
        controller.process_result_of_unknown_task(
            SimpleNamespace(name=site), None, None, make_reply(UNREADABLE), FLContext()
        )

    def send(task):
        if task is late.sent.get("late"):
            unreadable("late")
            unreadable("late")  # once more, which says nothing new
            unreadable("stranger")
        else:
            answer(task, "a")
            unreadable("a")  # what it has answered counts

    late.send = send
    unreadable("a")  # nobody was asked yet
    late.begin(0)
    controller._ask(late, GOES_ON, None)
    unreadable("late")  # the step is closed
    assert late.refused == [("late", "its answer cannot be unpacked.")]
    assert controller._missed == frozenset()  # it was not late
