"""At a site that asks for it: nothing of a run begins, and nothing leaves, without the hospital's approval."""

from __future__ import annotations

import logging
from pathlib import Path

from nvflare.apis.fl_context import FLContext

from fedretina.errors import AWAITS, DataError, NotApprovedError, RefusedError, StateError
from fedretina.kit.approvals import Approvals, AskedPlan
from fedretina.kit.audit import AuditLog
from fedretina.kit.startup_kit import StartupKit, open_kit, submitter_of
from fedretina.kit.waiting_plans import WaitingPlans
from fedretina.settings.experiment import Experiment
from fedretina.yaml_file import read_text

_log = logging.getLogger(__name__)

_REFUSED = "the hospital has refused this run: it is not asked again."
_WITHDRAWN = "the hospital has withdrawn its approval of this run, and takes no further part in it."
_NO_KIT = (
    "this site's setting `approval` asks for its hospital's approval, which needs a startup kit: set it to off here."
)
_NO_LIST = "this site's list of approvals cannot be read or written, so nothing runs: its own log says why."


def require_approval(fl_ctx: FLContext, experiment: Experiment, experiment_file: str, run: str) -> None:
    """Let a run go on only while its plan stands on the site's list; the list is read anew.

    Args:
        fl_ctx: Of the job's process at the site.
        experiment: What the job asks for, as it lies at this site.
        experiment_file: Name of its file in the job's config folder.
        run: Name of the run, as the order says it.

    Raises:
        NotApprovedError: Nobody has decided, or the approval has ended; the plan waits to be shown.
        RefusedError: The hospital has refused it, or withdrawn its approval.
        DataError: There is no startup kit to hold a list.
        StateError: The list cannot be read, or the plan that waits not written.
    """
    workspace = fl_ctx.get_engine().get_workspace()
    try:
        kit = open_kit(Path(workspace.get_root_dir()))
    except DataError as error:
        raise DataError(str(error)).telling(_NO_KIT) from error
    app = Path(workspace.get_app_dir(fl_ctx.get_job_id()))
    submitter = submitter_of(app, kit)
    asked = AskedPlan.of(experiment, run, "" if submitter is None else submitter.name)
    try:
        state, _ = Approvals(kit).state(asked)
        if state == "approved":
            return
        if state == "refused":
            raise RefusedError(_REFUSED).telling(_REFUSED)
        if state == "withdrawn":
            raise RefusedError(_WITHDRAWN).telling(_WITHDRAWN)
        text = read_text(app / "config" / experiment_file, "the experiment file")
        new = WaitingPlans(kit).put(asked, text, submitter, fl_ctx.get_job_id())
        if Approvals(kit).state(asked).state != state:  # it was decided in this moment
            WaitingPlans(kit).drop(asked)
    except StateError as error:
        raise error.telling(_NO_LIST) from error
    if new:
        _tell(kit, asked, state == "ended")
    raise NotApprovedError(AWAITS).telling(AWAITS)


def _tell(kit: StartupKit, asked: AskedPlan, ended: bool) -> None:
    """Say once, in the site's log and audit log, that somebody must decide."""
    why = "its approval has ended" if ended else "nobody has decided"
    _log.warning("run %s waits: %s. `fedretina site approve %s` shows its plan", asked.run, why, kit.folder)
    try:
        AuditLog(kit.folder).note("approval asked for", run=asked.run, plan=asked.number, submitter=asked.submitter)
    except StateError as error:
        _log.warning("%s", error)
