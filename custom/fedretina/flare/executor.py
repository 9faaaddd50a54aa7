"""The custom Executor: hosts the local trainer of any row, TWEU among them, for every task of a job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedretina.errors import FedretinaError, NotApprovedError, RefusedError, TrainingError
from fedretina.exchange.noise import NOISE_KEY
from fedretina.exchange.partition import partition_of
from fedretina.exchange.payload import Order
from fedretina.exchange.policy import require_kinds, require_numbers
from fedretina.flare.approval_gate import require_approval
from fedretina.flare.handover import handover_of
from fedretina.flare.job_context import RELEASE, load_experiment, load_site_settings, state_root, with_weights_file
from fedretina.flare.plain_bytes import register, speak
from fedretina.flare.wire import APPROVED, WAITS, is_question, pack_error, pack_payload, unpack_order, why
from fedretina.garbage import end_quickly
from fedretina.local.child_trainer import ChildTrainer, SiteRecipe
from fedretina.local.site import Site
from fedretina.local.site_state import read_history
from fedretina.locks import folder_lock
from fedretina.networks.build import build_on_meta
from fedretina.networks.weights import require_digest
from fedretina.seeds import devices_seen
from fedretina.settings.exchange import Kind
from fedretina.settings.plan import Plan
from fedretina.settings.site import REQUIRED, job_data
from fedretina.storage import require_name
from fedretina.told import told
from fedretina.tracking.curves import site_points
from fedretina.tracking.last_step import LastStep
from fedretina.tracking.tracker import Tracker

_log = logging.getLogger(__name__)
_LOCK_WAIT_S = 60.0


class TrainerExecutor(Executor):
    """Answers `train`, `validate` and `finalise` tasks with the site's local trainer.

    Nothing is kept in memory that the next task needs: the simulator with one thread starts a process per task, and
    a hospital's process may end at any time.

    Args:
        experiment_file: Name of the experiment file in the job's config folder.
    """

    def __init__(self, experiment_file: str = "experiment.yaml") -> None:
        super().__init__()
        self._host = SiteHost(experiment_file)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Do one task; see `SiteHost.handle` for what an error becomes."""
        return self._host.handle(shareable, fl_ctx, lambda: bool(abort_signal.triggered))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Tell the server which form of tensors is taken here; let go of the run's folder at the job's end.

        The process then ends without ado.
        """
        if event_type == EventType.START_RUN:
            end_quickly()
            speak(fl_ctx)
            with suppress(FedretinaError):  # settings that cannot be used: the first answer says so
                register().handover = handover_of(fl_ctx, load_site_settings(fl_ctx))
        elif event_type == EventType.END_RUN:
            self._host.close()


class SiteHost:
    """Holds a site's data, state and lock for the life of a process.

    Args:
        experiment_file: Name of the experiment file in the job's config folder.
    """

    def __init__(self, experiment_file: str) -> None:
        self._experiment_file = experiment_file
        self._held = ExitStack()
        self._run: str | None = None
        self._site: Site | ChildTrainer | None = None
        self._tracker: Tracker | None = None
        self._last: LastStep | None = None
        self._plan: Plan | None = None
        self._folder: Path | None = None
        self._asks: bool | None = None

    def handle(self, shareable: Shareable, fl_ctx: FLContext, stop: Callable[[], bool]) -> Shareable:
        """Answer one task; an error becomes a reply that says in a sentence why, without naming a file."""
        began, where = time.monotonic(), {}
        known = {str(fl_ctx.get_identity_name()), *(kind.value for kind in Kind)}  # what the server has too
        try:
            order, tensors = unpack_order(shareable)
            where = {"phase": order.stamp.phase, "round": order.stamp.round, "attempt": order.stamp.attempt}
            known |= {*order.stamp.names, *tensors}
            self._require_approval(order, fl_ctx)
            if is_question(shareable):
                return make_reply(APPROVED)
            site = self._open(order.stamp.run, fl_ctx)
            self._begin(order)
            answer = site.handle(order, tensors, stop)
            if answer.release:  # for the site's filter, which sees other bytes each time
                fl_ctx.set_prop(RELEASE, (answer.stamp, answer.release), private=True, sticky=False)
            reply = pack_payload(answer)
        except NotApprovedError:
            if self._last is not None:
                self._last.note(state="waiting")
            return make_reply(WAITS)
        except FedretinaError as error:
            reply = self._told(error, error, known, fl_ctx)
        except Exception as error:  # noqa: BLE001 - FLARE would log its traceback as an error, and stream it
            sentence = f"the site's trainer failed with {type(error).__name__}."
            reply = self._told(TrainingError(sentence).telling(sentence), error, known, fl_ctx)
        self._track(where, reply, time.monotonic() - began)
        return reply

    def _require_approval(self, order: Order, fl_ctx: FLContext) -> None:
        """Before anything of the site is opened; whether the site asks for it is settled when a job starts."""
        if self._asks is None:
            self._asks = load_site_settings(fl_ctx).approval == REQUIRED
        if self._asks:
            experiment = load_experiment(fl_ctx, self._experiment_file)
            require_approval(fl_ctx, experiment, self._experiment_file, order.stamp.run)

    def _begin(self, order: Order) -> None:
        if self._last is not None and self._plan is not None:
            step = self._plan.find(order.stamp.phase, order.stamp.round)
            rounds = 0 if step is None else step.rounds
            place = {"task": order.task, "phase": order.stamp.phase, "round": order.stamp.round + 1, "rounds": rounds}
            self._last.note(**place, attempt=order.stamp.attempt + 1, state="working", began=time.time())

    def _track(self, where: dict[str, Any], reply: Shareable, seconds: float) -> None:
        if self._tracker is None or self._folder is None:
            return
        folder = self._folder
        good = reply.get_return_code() == ReturnCode.OK
        if self._last is not None:
            done: dict[str, Any] = {"state": "answered", "answered": time.time()} if good else {"state": "failed"}
            self._last.note(
                **done, seconds=round(seconds, 1), devices=devices_seen(), fault=None if good else why(reply)
            )
        if good:
            self._tracker.note("answered", where, seconds=round(seconds, 1))
            self._tracker.follow(lambda: site_points(read_history(folder).numbered()))
        else:
            self._tracker.note("failed", where, seconds=round(seconds, 1), why=why(reply))

    @staticmethod
    def _told(error: FedretinaError, cause: Exception, known: set[str], fl_ctx: FLContext) -> Shareable:
        # Errors reach the server by FLARE's log streaming unless a site forbids it, so that level names no file;
        # warnings stay in the site's own log.
        reply = pack_error(told(error, known))
        _log.error("%s: %s", fl_ctx.get_identity_name(), why(reply))
        if why(reply) != str(cause):
            _log.warning("%s: %s", fl_ctx.get_identity_name(), cause, exc_info=cause if cause is not error else None)
        for note in error.notes:
            _log.warning("%s: %s", fl_ctx.get_identity_name(), note)
        return reply

    def close(self) -> None:
        """Let go of the run's folder."""
        self._end_tracking()
        self._held.close()
        self._run = self._site = None

    def _end_tracking(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
        self._tracker = self._last = self._plan = self._folder = None

    def _open(self, run: str, fl_ctx: FLContext) -> Site | ChildTrainer:
        if self._site is not None:
            if run != self._run:
                raise RefusedError(f"this job belongs to run {self._run!r}, the order to run {run!r}.")
            return self._site
        name = require_name(fl_ctx.get_identity_name(), "site")
        settings = load_site_settings(fl_ctx)
        experiment = with_weights_file(load_experiment(fl_ctx, self._experiment_file), settings)
        # Before the site works for hours: what the run sends is known from its settings.
        net = build_on_meta(experiment.network, experiment.head_width or 2)
        sends = partition_of(experiment, net, experiment.sums is not None and settings.he_keys is not None)
        require_numbers(settings.own_policy, experiment.exchange.codec, sends)
        require_kinds(settings.own_policy, sends.shared_kinds())
        require_digest(experiment.network.weights)
        root = state_root(fl_ctx, settings)
        folder = root / require_name(run, "run") / name
        with ExitStack() as opening:  # a fault lets go of the lock, so that the next attempt finds it free
            lock = opening.enter_context(folder_lock(folder, _LOCK_WAIT_S))
            self._end_tracking()
            self._tracker = Tracker(settings.tracking, folder, run, name, experiment.name)
            self._last, self._plan = LastStep(folder, run), Plan.of(experiment)
            self._folder = folder
            data_settings = job_data(name, settings.data, experiment.phantom_images)
            if data_settings.manifest is None:
                _log.warning("%s points to no data: it takes part as a phantom hospital with synthetic images", name)
            recipe = SiteRecipe(
                experiment=experiment,
                site=name,
                data=data_settings,
                folder=folder,
                cache=root / "cache" / name,
                he_keys=settings.he_keys,
                sums_noise=settings.own_policy.sums_noise,
                small_grades=settings.own_policy.small_grades_when_encrypted,
                noise_key=root / NOISE_KEY,
                gpu=settings.gpu,
            )
            self._site = ChildTrainer(recipe, lock) if settings.trainer == "child" else recipe.build()
            self._held = opening.pop_all()
        self._run = run
        return self._site
