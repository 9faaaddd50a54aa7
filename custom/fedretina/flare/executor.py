"""The custom Executor: hosts the local trainer of any row, TWEU among them, for every task of a job."""

from __future__ import annotations

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedretina.flare.site_host import SiteHost


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
        """Do one task; see `SiteHost.answer` for what an error becomes."""
        return self._host.answer(shareable, fl_ctx, lambda: bool(abort_signal.triggered))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let go of the run's folder at the job's end."""
        if event_type == EventType.END_RUN:
            self._host.close()
