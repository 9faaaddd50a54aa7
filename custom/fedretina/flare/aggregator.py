"""The custom Aggregator: accepted updates go to a spool on disk and are mixed by the row's rule, UAW among them."""

from __future__ import annotations

from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator

from fedretina.errors import FedretinaError
from fedretina.flare.server_run import ServerRun
from fedretina.flare.wire import came_into, unpack_payload, why


class SpoolAggregator(Aggregator):
    """Hands arriving results to the run's coordinator, which checks, spools and mixes them.

    The client contract: a result of `wire.pack_payload`, whose scalars hold what the rule needs (`theta` for UAW,
    `images` for weights by samples). Memory does not grow with the number of sites, and the order of arrival
    changes no bit.

    Args:
        run_id: Component id of the `ServerRun`.
    """

    def __init__(self, run_id: str = "run") -> None:
        super().__init__()
        self._run_id = run_id

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take one site's result; False when it is refused, with the reason in the log and in the step's record."""
        taken = self._take(shareable, fl_ctx)
        self._run(fl_ctx).note_progress()
        return taken

    def _take(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        coordinator = self._run(fl_ctx).coordinator
        site = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "?"))
        if shareable.get_return_code() != ReturnCode.OK:
            coordinator.refuse(site, why(shareable))
            return False
        try:
            payload = unpack_payload(shareable)
        except FedretinaError as error:
            coordinator.refuse(site, str(error))
            return False
        try:
            coordinator.accept(site, payload, came_into(shareable, payload.tensors))
        except FedretinaError as error:
            if not error.public:
                coordinator.refuse(site, "the server could not store the update.")
            self.log_error(fl_ctx, f"the update of {site} was not taken: {error}", fire_event=False)
            return False
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Mix what was accepted and make the step durable; the model stays in the store.

        Raises:
            QuorumError: Too few updates were accepted.
            StateError: The disk is full or not writable.
        """
        self._run(fl_ctx).coordinator.close()
        return Shareable()

    def reset(self, fl_ctx: FLContext) -> None:
        """Do nothing: the spool is erased when a step begins and when it closes."""

    def _run(self, fl_ctx: FLContext) -> ServerRun:
        run: ServerRun = fl_ctx.get_engine().get_component(self._run_id)
        return run
