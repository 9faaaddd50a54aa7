"""The server's run inside a FLARE job: the coordinator, opened once, shared by aggregator and controllers."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.private.fed.server.server_runner import ServerRunner
from nvflare.private.fed.simulator.simulator_server import SimulatorServerEngine
from nvflare.widgets.info_collector import InfoCollector

from fedretina.aggregation.coordinator import Coordinator
from fedretina.errors import StateError
from fedretina.exchange.encryption import cipher_for
from fedretina.flare.fork_server import one_process_per_site, share_imports, wait_briefly
from fedretina.flare.handover import Handover, handover_of
from fedretina.flare.job_context import (
    RUN,
    load_experiment,
    load_server_settings,
    simulated,
    state_root,
    with_weights_file,
)
from fedretina.flare.many_sites import ask_seldom, give_back_freed_memory, give_back_now, take_answers_of
from fedretina.flare.plain_bytes import register, speak
from fedretina.flare.progress_board import GROUP, ProgressBoard
from fedretina.flare.results_upload import publish, publish_steps
from fedretina.flare.unreadable import go_on_without_what_cannot_be_read
from fedretina.garbage import CollectByBytes, end_quickly
from fedretina.locks import folder_lock
from fedretina.settings.plan import new_run_name
from fedretina.tracking.curves import server_points
from fedretina.tracking.last_step import LastStep
from fedretina.tracking.tracker import Event, Tracker

_ARRIVALS = "arrivals"
_LOCK_WAIT_S = 60.0
_END_ANSWER_S, _END_TRIED_S = 2.0, 5.0
_DESERTED = "no site's process was left before the run was complete: the lines above say how each of them ended."


class ServerRun(FLComponent):
    """Opens the durable state of a run at the server and holds its lock for the job's life.

    Tells the admin side how far the run is (`nvflare job stats`, `fedretina watch`), and lays what it may have into
    the job's folder, which FLARE hands out as the job's result.

    A run is new unless it is named: by `run` in the experiment file, or by FEDRETINA_RUN in the server's
    environment.

    Attributes:
        board: What the admin side is told of the running step.
        dead: Sites that FLARE takes for dead.
        turns: How many sites work one after another where FLARE's simulator has fewer threads than sites; 1 elsewhere.

    Args:
        experiment_file: Name of the experiment file in the job's config folder.
    """

    def __init__(self, experiment_file: str = "experiment.yaml") -> None:
        super().__init__()
        self._experiment_file = experiment_file
        self._held = ExitStack()
        self._coordinator: Coordinator | None = None
        self._name: str | None = None
        self._tracker: Tracker | None = None
        self._last: LastStep | None = None
        self.board = ProgressBoard()
        self.dead: set[str] = set()
        self.turns = 1

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the run.

        Raises:
            StateError: The run is not open; a controller opens it when it starts.
        """
        if self._coordinator is None:
            raise StateError("the run is not open: its controller has not started.")
        return self._coordinator

    @property
    def known(self) -> frozenset[str]:
        """Names of the run, its phases and its sites, which both ends and the lead have; the run's from its opening."""
        if self._coordinator is None:
            return frozenset() if self._name is None else frozenset({self._name})
        phases = (step.phase for step in self._coordinator.plan)
        return frozenset({self._coordinator.run, *phases, *self._coordinator.asked})

    def open(self, fl_ctx: FLContext) -> Coordinator:
        """Open the run, or return it when it is open.

        Raises:
            FedretinaError: The settings cannot be used, or the run's folder is held, damaged or of another run.
        """
        if self._coordinator is None:
            settings = load_server_settings(fl_ctx)
            experiment = with_weights_file(load_experiment(fl_ctx, self._experiment_file), settings)
            run = self._name = experiment.run or os.environ.get(RUN) or new_run_name(experiment)
            folder = state_root(fl_ctx, settings) / run / "server"
            with ExitStack() as opening:
                opening.enter_context(folder_lock(folder, _LOCK_WAIT_S))
                cipher = cipher_for(experiment.exchange, settings.he_keys, private=False, sums=experiment.sums)
                coordinator = Coordinator(experiment, run, folder, cipher)
                self._tracker = Tracker(settings.tracking, folder, run, "server", experiment.name)
                self._held = opening.pop_all()
            self._coordinator, self._last = coordinator, LastStep(folder, run)
            engine = fl_ctx.get_engine()
            sites = len(engine.get_clients())
            if isinstance(engine, SimulatorServerEngine):
                self.turns = ceil(sites / (engine.args.threads or 1))
            take_answers_of(sites)
            ask_seldom(fl_ctx.get_prop(FLContextKey.RUNNER), sites)
            wire = register()
            wire.be_server(coordinator.partition.most_bytes(coordinator.partition.sendable))
            wire.garbage = CollectByBytes()
            wire.handover = handover_of(fl_ctx, settings)
            try:
                wire.arrivals = wire.handover or Handover(folder / _ARRIVALS)
            except OSError as error:  # a full disk is said where the answer is stored
                why = f"answers are kept in memory until they are stored: {error}"
                self.log_warning(fl_ctx, why, fire_event=False)  # see `publish_steps`
            self.publish_steps(fl_ctx)
            self.note("opened", done=coordinator.done, steps=len(coordinator.plan))
            self.log_info(fl_ctx, f"run {run}: {self._coordinator.done} of {len(self._coordinator.plan)} steps done")
            if coordinator.owed:
                self.publish(fl_ctx)  # what the run has already is there, whatever becomes of this job
                owed = ", ".join(coordinator.owed)
                self.log_info(fl_ctx, f"run {run} is complete but for the results of {owed}: only these are asked")
            self.log_info(fl_ctx, "what travels and what stays:\n" + self._coordinator.partition.table())
        return self._coordinator

    def note(self, event: Event, **fields: Any) -> None:
        """Write a log line about the running step, and bring the curves up to date when a step has closed."""
        coordinator, tracker = self._coordinator, self._tracker
        if coordinator is None or tracker is None:
            return
        self.note_progress("running" if event not in ("completed", "stopped") else event, fields.get("why"))
        tracker.note(event, **fields)
        if event == "closed":
            give_back_now()
        if event in ("opened", "closed"):
            tracker.follow(lambda: server_points(coordinator.records))

    def note_progress(self, state: str = "running", why: str | None = None) -> None:
        """Write down how far the run is, for the consortium's page.

        Args:
            state: `running`, `completed` or `stopped`.
            why: A sentence for those who look after the run.
        """
        coordinator, last = self._coordinator, self._last
        if coordinator is None or last is None:
            return
        progress = coordinator.progress
        report = self.board.report(progress)
        trained = [record["scalars"] for record in coordinator.records if record["task"] in ("pretrain", "train")]
        told = trained[-1] if trained else {}
        said = [int(scalars["patients"]) for scalars in told.values() if "patients" in scalars]
        last.note(
            state=state,
            report=report._asdict(),
            patients=sum(said),
            patients_of=len(said),
            trained=len(told),
            fault=why,
        )

    def publish_steps(self, fl_ctx: FLContext) -> None:
        """Lay into the job's folder how far the run is; a fault is only logged."""
        try:
            publish_steps(self.coordinator, self._job_folder(fl_ctx))
        except StateError as error:
            self.log_warning(fl_ctx, str(error), fire_event=False)  # FLARE shows those events to every admin

    def publish(self, fl_ctx: FLContext, stopped: str | None = None) -> None:
        """Lay results, or the sentence with which the job stops, into the job's folder; a fault is only logged."""
        try:
            publish(None if self._coordinator is None else self._coordinator.folder, self._job_folder(fl_ctx), stopped)
        except StateError as error:
            self.log_warning(fl_ctx, str(error), fire_event=False)  # see `publish_steps`

    @staticmethod
    def _job_folder(fl_ctx: FLContext) -> Path:
        return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer the admin's question how far the run is; let go of the run's folder at the job's end.

        In the simulator its start sees to how sites are started.
        """
        if event_type == EventType.START_RUN:
            end_quickly()
            give_back_freed_memory()
            speak(fl_ctx)
            register().be_server(0)
            go_on_without_what_cannot_be_read()
            if isinstance(engine := fl_ctx.get_engine(), SimulatorServerEngine):
                share_imports(engine.args.threads or 1)
                one_process_per_site(partial(_report_gone, engine, fl_ctx.get_prop(FLContextKey.RUNNER)))
                wait_briefly()
        elif event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            coordinator = self._coordinator
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            if coordinator is not None and collector is not None:
                collector.set_info(GROUP, self.board.report(coordinator.progress)._asdict())
        elif event_type == EventType.ABOUT_TO_END_RUN:
            if simulated(fl_ctx):
                self._say_when_deserted(fl_ctx)
            self._end_at_sites(fl_ctx)
        elif event_type == EventType.CLIENT_DISCONNECTED:
            self.dead.add(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))
        elif event_type == EventType.CLIENT_RECONNECTED:
            self.dead.discard(fl_ctx.get_prop(FLContextKey.RECONNECTED_CLIENT_NAME))
        elif event_type == EventType.END_RUN:
            if self._tracker is not None:
                self._tracker.close()
            if self._coordinator is not None:
                self._coordinator.forget_answers()
                shutil.rmtree(self._coordinator.folder / _ARRIVALS, ignore_errors=True)
            self._held.close()
            wire = register()
            if wire.garbage is not None:
                wire.garbage.end()
            wire.arrivals = wire.handover = wire.garbage = None
            wire.be_site()
            self._coordinator = self._tracker = self._last = None

    def _say_when_deserted(self, fl_ctx: FLContext) -> None:
        """Let a simulation end with a fault when no site was left before its run was complete.

        FLARE's simulator aborts its server when the last of its sites' processes has gone, which is also how every
        simulation ends, and its exit status is 0 then.
        """
        coordinator, aborted = self._coordinator, fl_ctx.get_run_abort_signal()
        whole = coordinator is not None and coordinator.done == len(coordinator.plan)
        if whole or aborted is None or not aborted.triggered or fl_ctx.get_prop(FLContextKey.FATAL_SYSTEM_ERROR, False):
            return
        self.note("stopped", why=_DESERTED)
        self.publish(fl_ctx, stopped=_DESERTED)
        self.system_panic(_DESERTED, fl_ctx)

    def _end_at_sites(self, fl_ctx: FLContext) -> None:
        """Tell the sites that the run is over, until each has answered.

        FLARE tells them once, waits for no answer and ends the server's process in the same moment. Where that message
        is lost on the way, a site asks a server that is gone for its next task, and the lead sees the job RUNNING until
        FLARE's `client_outcome_wait_timeout` of 900 s is over.
        """
        engine, aborted = fl_ctx.get_engine(), fl_ctx.get_run_abort_signal()
        if isinstance(engine, SimulatorServerEngine) or (aborted is not None and aborted.triggered):
            return  # the simulator ends its sites itself, and so does who aborts a job
        left = sorted({client.name for client in engine.get_clients()} - self.dead)
        until = time.monotonic() + _END_TRIED_S
        while left and time.monotonic() < until:
            replies = engine.send_aux_request(
                left, ReservedTopic.END_RUN, Shareable(), _END_ANSWER_S, fl_ctx, optional=True
            )
            said = {name for name, reply in (replies or {}).items() if reply.get_return_code() == ReturnCode.OK}
            if left := [name for name in left if name not in said]:
                time.sleep(0.2)  # one that cannot be reached is told at once
        if left:
            self.log_warning(fl_ctx, f"{', '.join(left)} did not answer that the job is over", fire_event=False)


def _report_gone(engine: SimulatorServerEngine, runner: ServerRunner, site: str) -> None:
    """Report a simulated site as dead, as a real site's parent process does; nothing once no workflow runs."""
    with engine.new_context() as fl_ctx:
        runner.handle_dead_job(site, fl_ctx)
