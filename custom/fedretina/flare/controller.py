"""The round's controller: a task per site, a budget for all, a quorum decided once, a start from the durable store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import NamedTuple

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants

from fedretina.aggregation.coordinator import Coordinator
from fedretina.aggregation.results import results_table
from fedretina.errors import FedretinaError, QuorumError, TrainingError
from fedretina.exchange.payload import Order
from fedretina.flare.aggregator import SpoolAggregator
from fedretina.flare.plain_bytes import understood
from fedretina.flare.server_run import ServerRun
from fedretina.flare.unreadable import UNREADABLE
from fedretina.flare.wire import APPROVED, WAITS, Arrays, for_all, pack_order, pack_question
from fedretina.plurals import counted
from fedretina.settings.scalars import BY_TASK
from fedretina.storage import read_json
from fedretina.told import told

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Held:
    """Sites of a step that wait for their hospitals' approval, and when each is asked again.

    Such a site costs the step no attempt. It is asked without the tensors, more and more rarely, and gets its order
    when its hospital has said yes.

    Attributes:
        sites: Those that wait.
        next: When a site is asked next, and whether only whether its hospital has approved.
    """

    def __init__(self) -> None:
        self.sites: set[str] = set()
        self.next: dict[str, tuple[float, bool]] = {}
        self._pauses: dict[str, float] = {}

    def takes(self, site: str, code: str, question: bool) -> bool:
        """Note what a site has answered; whether it waits."""
        if code == WAITS:
            self._pauses[site] = min(2 * self._pauses.get(site, _FIRST_PAUSE_S / 2), _LONGEST_PAUSE_S)
            self.next[site] = time.monotonic() + self._pauses[site], True
            self.sites.add(site)
            return True
        if code == APPROVED and question:
            self.next[site] = time.monotonic(), False
        return False

    def due(self, open_: Collection[str]) -> list[tuple[str, bool]]:
        """The sites to ask now, none whose last task still runs, and whether it is the question alone."""
        now = time.monotonic()
        found = [site for site, (when, _) in list(self.next.items()) if when <= now and site not in open_]
        return [(site, self.next.pop(site)[1]) for site in sorted(found)]


class Asking(NamedTuple):
    """What belongs to one asking of a step's sites: a callback of FLARE's that ends after it changes nothing later.

    Attributes:
        tasks: What each site was given last.
        held: Sites that wait for their hospitals' approval.
        down: Tensors that go with the orders of several sites, put together, by `Coordinator.same_for`.
        taken: The answers that are being taken, or have been, by site.
        fetched: Sites that have fetched what they are asked.
    """

    tasks: dict[str, Task]
    held: Held
    down: dict[str, Arrays]
    taken: dict[str, Future[None]]
    fetched: set[str]


class RoundController(Controller):
    """Runs the steps of some tasks of a run, from the first that is not done; serves training and finalise alike.

    FLARE's ScatterAndGather can neither repeat a round nor wait for all sites within a budget, and FLARE does not
    reliably close a round that waits for a dead site; so each site gets a task of its own with a timeout.

    Args:
        tasks: Which tasks of the plan this workflow runs: `prepare`, `pretrain`, `train` and `sums`, or `validate`,
            `tune`, `calibrate`, `curve` and `finalise`.
        budget_s: Longest time a step waits for the sites, in seconds; as many times that as sites work one
            after another in the simulator. Never 0.
        grace_s: How long a round of training goes on waiting for sites that missed the last step and have not fetched
            their order, once all others have answered and the quorum is met. Steps that come once, such as `finalise`,
            wait for all.
        repeats: How often a step below the quorum is tried again.
        aggregator_id: Component id of the aggregator.
        run_id: Component id of the `ServerRun`.
        task_check_period: Seconds between looks at the tasks.
    """

    def __init__(
        self,
        tasks: list[str],
        budget_s: int = 3600,
        grace_s: float = 5.0,
        repeats: int = 2,
        aggregator_id: str = "aggregator",
        run_id: str = "run",
        task_check_period: float = 0.2,
    ) -> None:
        super().__init__(task_check_period=task_check_period)
        if not tasks or not set(tasks) <= set(BY_TASK):
            raise ValueError(f"tasks must name some of {', '.join(BY_TASK)}, got {tasks!r}.")
        if budget_s < 1:
            raise ValueError(
                f"budget_s must be at least 1 second, got {budget_s}: a dead site would hold a step forever."
            )
        if repeats < 0 or grace_s < 0:
            raise ValueError(f"repeats and grace_s must not be negative, got {repeats} and {grace_s}.")
        self._tasks = frozenset(tasks)
        self._budget_s = budget_s
        self._grace_s = grace_s
        self._repeats = repeats
        self._aggregator_id = aggregator_id
        self._run_id = run_id
        self._missed: frozenset[str] = frozenset()
        self._asking: Asking | None = None
        self._opened = False
        self._taker = ThreadPoolExecutor(1, "taker")
        self._news = Event()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Open the run; a fault there ends the job with its sentence."""
        try:
            server_run = self._server_run(fl_ctx)
            server_run.open(fl_ctx)
            self._opened = True
        except FedretinaError as error:
            self._stop(error, fl_ctx)
            return
        self._budget_s *= server_run.turns  # FLARE counts it from a step's begin, before a site has its turn
        # FLARE says only once, and to the workflow that runs then, that a site is dead; a site that is not asks for
        # work, and is off the list again.
        for site in sorted(server_run.dead):
            self.communicator.process_dead_client_report(site, fl_ctx)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Do every step of this workflow's tasks that is not done, then say where the results lie."""
        if not self._opened:
            return  # the panic of start_controller is on its way
        server_run = self._server_run(fl_ctx)
        coordinator = server_run.coordinator
        while coordinator.done < len(coordinator.plan) and coordinator.step.task in self._tasks:
            if not self._step(coordinator, abort_signal, fl_ctx):
                return
        if coordinator.done == len(coordinator.plan):
            results = coordinator.folder / "results.json"
            server_run.publish(fl_ctx)
            server_run.note("completed")
            self.log_info(fl_ctx, f"run {coordinator.run} is complete\n{results_table(read_json(results))}\n{results}")

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Cancel what is still waiting, and end what is being taken."""
        self.cancel_all_tasks(fl_ctx=fl_ctx)
        self._taker.shutdown()

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop an answer that came after its step was closed; the next order tells the site.

        One that could not be unpacked names no task: it is the site's answer in the running step, if it still owes one.
        """
        asking, site = self._asking, client.name
        task = asking.tasks.get(site) if asking is not None and result.get_return_code() == UNREADABLE else None
        if asking is not None and task is not None and task.completion_status is None and site not in asking.taken:
            coordinator = self._server_run(fl_ctx).coordinator
            refuse = partial(coordinator.refuse, site, "its answer cannot be unpacked.")
            self._take(site, refuse, asking, coordinator, fl_ctx)
            self.cancel_task(task, fl_ctx=fl_ctx)
            return
        self.log_warning(fl_ctx, f"a late {task_name} answer of {client.name} is dropped.")

    def _step(self, coordinator: Coordinator, abort_signal: Signal, fl_ctx: FLContext) -> bool:
        step, server_run = coordinator.step, self._server_run(fl_ctx)
        board, below = server_run.board, QuorumError("")
        for attempt in range(self._repeats + 1):
            fl_ctx.set_prop(AppConstants.CURRENT_ROUND, step.number, private=True, sticky=True)
            self.log_info(fl_ctx, f"{step.name}: begun, attempt {attempt}")
            began = time.monotonic()
            where = {"phase": step.phase, "round": step.round, "attempt": attempt}
            try:
                coordinator.begin(sorted(client.name for client in self._engine.get_clients()))
                board.begin()
                server_run.note("asked", where=where, sites=list(coordinator.asked))
                self._ask(coordinator, abort_signal, fl_ctx)
                if abort_signal.triggered:  # an abort would look like a step below the quorum
                    return False
                self._aggregator(fl_ctx).aggregate(fl_ctx)
            except QuorumError as error:
                below = error
                self.log_warning(fl_ctx, str(error))
                server_run.note("repeated", where=where, why=str(error))
                continue
            except FedretinaError as error:
                self._stop(error, fl_ctx)
                return False
            except Exception as error:  # noqa: BLE001 - FLARE would end the job without a word, and so every resume
                self.log_exception(fl_ctx, f"{step.name} failed at the server")
                named = f"{step.name} failed at the server with {type(error).__name__}: its own log says where."
                self._stop(TrainingError(named).telling(named), fl_ctx)  # its words may name files or hold a site's own
                return False
            board.end(trained=step.number in coordinator.plan.learning)
            server_run.publish_steps(fl_ctx)
            seconds, record = time.monotonic() - began, coordinator.records[step.number]
            self.log_info(fl_ctx, f"{step.name}: done in {seconds:.1f} s")
            took_part = {"accepted": list(record["scalars"]), "refused": record["refused"]}
            server_run.note("closed", where=where, seconds=round(seconds, 1), **took_part)
            return True
        sentence = f"{below} It was tried {counted(self._repeats + 1, 'time')}."
        self._stop(QuorumError(sentence).telling(sentence), fl_ctx)
        return False

    def _stop(self, error: FedretinaError, fl_ctx: FLContext) -> None:
        server_run = self._server_run(fl_ctx)
        why = told(error, server_run.known, end="server")  # leads read it, and whoever asks FLARE for errors
        if why != str(error):
            _log.error("%s", error)
        server_run.note("stopped", why=why)
        server_run.publish(fl_ctx, stopped=why)
        self.system_panic(why, fl_ctx)

    def _ask(self, coordinator: Coordinator, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self._asking = asking = Asking({}, Held(), {}, {}, set())
        tasks, held = asking.tasks, asking.held

        def send(site: str, question: bool = False) -> None:
            tasks[site] = self._task(site, coordinator, asking, question)
            self.send(tasks[site], fl_ctx, targets=[site])

        for site in coordinator.asked:
            send(site)
        # The next round asks again who misses this one; nothing does so for a step that comes once.
        excused = self._missed if coordinator.step.number in coordinator.plan.learning else frozenset()
        awaited = set(tasks) - excused or set(tasks)
        grace_ends = float("inf")
        while not abort_signal.triggered:
            self._news.clear()
            # FLARE calls a task done only when it next looks at all of them: what has come counts without its word.
            taken = dict(asking.taken)
            open_ = {site for site, task in tasks.items() if task.completion_status is None} - set(taken)
            open_ |= {site for site, taking in taken.items() if not taking.done()}
            for site, question in held.due(open_):
                send(site, question)
                open_.add(site)
            held.sites &= open_ | set(held.next)  # a question that nobody answers ends by its budget
            waiting = (open_ | set(held.next)) - held.sites
            if not waiting:
                if not held.sites or not 0 < coordinator.lacks <= len(held.sites):
                    break
            elif not coordinator.lacks and not waiting & (awaited | asking.fetched):
                grace_ends = min(grace_ends, time.monotonic() + self._grace_s)
                if time.monotonic() >= grace_ends:
                    break
            self._news.wait(self._task_check_period)
        for site in sorted(held.sites):
            self.cancel_task(tasks[site], fl_ctx=fl_ctx)
        done = {site for site, task in tasks.items() if task.completion_status == TaskCompletionStatus.OK}
        late = set(tasks) - done - set(asking.taken) - held.sites
        for site in sorted(late):
            self.cancel_task(tasks[site], fl_ctx=fl_ctx)
            if not abort_signal.triggered:
                self._note(site, partial(coordinator.refuse, site, "it did not answer in time."), coordinator, fl_ctx)
        self._missed = frozenset(late)
        # FLARE may keep the tasks a while, and mixing needs the memory. All else that came is noted before it is freed.
        self._taker.submit(asking.down.clear).result()

    def _task(self, site: str, coordinator: Coordinator, asking: Asking, question: bool) -> Task:
        step, held = coordinator.step, asking.held

        # FLARE holds its lock in these callbacks, and a task that is sent again passes them again.
        def before(client_task: ClientTask, fl_ctx: FLContext) -> None:
            order = coordinator.order(site)
            if question:
                data = pack_question(order)
            else:
                data = _packed(order, site, coordinator, asking.down, understood(fl_ctx))
            data.set_header(AppConstants.CURRENT_ROUND, step.round)
            data.set_header(AppConstants.NUM_ROUNDS, step.rounds)
            client_task.task.data = data

        def after(client_task: ClientTask, fl_ctx: FLContext) -> None:
            client_task.task.data = Shareable()
            asking.fetched.add(site)

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None
            # The name inside the message is the sender's own word; FLARE authenticated the task's client.
            claimed = result.get_peer_prop(ReservedKey.IDENTITY_NAME, None)
            if claimed == site and held.takes(site, str(result.get_return_code()), question):
                self._note(site, partial(self._hold, site, coordinator, fl_ctx), coordinator, fl_ctx)
            elif claimed == site and question and result.get_return_code() == APPROVED:
                held.sites.discard(site)
            elif claimed == site:
                accept = partial(self._aggregator(fl_ctx).accept, result, fl_ctx)
                self._take(site, accept, asking, coordinator, fl_ctx)
            else:
                refuse = partial(coordinator.refuse, site, "its answer came under another site's name.")
                self._note(site, refuse, coordinator, fl_ctx)

        return Task(
            name=step.task,
            data=Shareable(),
            timeout=self._budget_s,
            before_task_sent_cb=before,
            after_task_sent_cb=after,
            result_received_cb=received,
        )

    def _take(
        self, site: str, what: Callable[[], object], asking: Asking, coordinator: Coordinator, fl_ctx: FLContext
    ) -> None:
        """Have a site's answer taken; with it the site has done its part of the step."""
        asking.held.sites.discard(site)
        asking.taken[site] = self._note(site, what, coordinator, fl_ctx)
        asking.taken[site].add_done_callback(lambda _: self._news.set())

    def _note(self, site: str, what: Callable[[], object], coordinator: Coordinator, fl_ctx: FLContext) -> Future[None]:
        """Have something noted of a site after all that came before it, in a thread of its own.

        FLARE's threads hold the lock that all sites wait for, and to check and store an answer takes a while.
        """
        return self._taker.submit(self._noted, site, what, coordinator, fl_ctx)

    def _noted(self, site: str, what: Callable[[], object], coordinator: Coordinator, fl_ctx: FLContext) -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 - nobody asks this thread, and the step would wait for nothing
            self.log_exception(fl_ctx, f"the answer of {site} could not be taken")
            coordinator.refuse(site, f"the server could not take its answer ({type(error).__name__}).")

    def _hold(self, site: str, coordinator: Coordinator, fl_ctx: FLContext) -> None:
        coordinator.hold(site)
        self._server_run(fl_ctx).note_progress()

    def _aggregator(self, fl_ctx: FLContext) -> SpoolAggregator:
        aggregator: SpoolAggregator = fl_ctx.get_engine().get_component(self._aggregator_id)
        return aggregator

    def _server_run(self, fl_ctx: FLContext) -> ServerRun:
        run: ServerRun = fl_ctx.get_engine().get_component(self._run_id)
        return run


def _packed(order: Order, site: str, coordinator: Coordinator, down: dict[str, Arrays], plainly: bool) -> Shareable:
    """An order with its tensors; where others get the same tensors, they are put together once, into `down`."""
    same = coordinator.same_for(site)
    if not plainly or same is None:
        return pack_order(order, coordinator.down(site), plainly)
    packed = down.get(same)
    if packed is None:
        packed = down[same] = for_all(coordinator.down(site))
    return pack_order(order, packed, plainly)
