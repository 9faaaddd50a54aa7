"""The same local trainer behind FLARE's ModelLearner, for jobs that are wired that way.

FLARE 2.9 calls ModelLearner deprecated and keeps it; `flare.executor.TrainerExecutor` is the face to prefer. A job
names one `ModelLearnerExecutor` per task with that task as its `train_task`, since `train` is the one call that
returns tensors and scalars together; its `validate_task` must then be some other word, or it would win.
"""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model_learner import ModelLearner
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedretina.flare.executor import SiteHost


class TrainerLearner(ModelLearner):
    """ModelLearner over `SiteHost`.

    Args:
        experiment_file: Name of the experiment file in the job's config folder.
    """

    def __init__(self, experiment_file: str = "experiment.yaml") -> None:
        super().__init__()
        self._host = SiteHost(experiment_file)

    def train(self, model: FLModel) -> FLModel | str:
        """Answer an order; an error stands in the site's log and is returned as FLARE's code.

        It is not told to FLARE, which gathers the errors that it is told for admins to ask for.
        """
        meta = {key: value for key, value in model.meta.items() if key != MetaKey.VALIDATE_TYPE}
        order = DXO(DataKind.WEIGHTS, data=model.params, meta=meta).to_shareable()
        reply = self._host.answer(order, self.fl_ctx, self.is_aborted)
        if reply.get_return_code() != ReturnCode.OK:
            return str(reply.get_return_code())
        return FLModelUtils.from_shareable(reply)

    def validate(self, model: FLModel) -> FLModel | str:
        """Say nothing: the received aggregate is validated inside `train`, where its figure travels with the update."""
        return str(ReturnCode.TASK_UNSUPPORTED)

    def get_model(self, model_name: str) -> str | FLModel:
        """Refuse: a personal model does not leave its site."""
        return str(ReturnCode.TASK_UNSUPPORTED)

    def finalize(self) -> None:
        """Let go of the run's folder at the job's end."""
        self._host.close()

    def configure(self, model: Any) -> None:
        """Take no settings from a task: they come with the job, signed."""
